"""The phenotypes of a model, or of a model under a review, as what is written outside describes them."""

from typing import Any, NamedTuple

from phenotaste.errors import InputError
from phenotaste.review import Reviewed

TOP_FEATURES = 10


class Phenotype(NamedTuple):
    """`number` is the model's, counted from 1; `numbers` are all that a review merged into it."""

    number: int
    label: str  # for columns: the reviewer's name, or the number
    name: str  # for people
    numbers: tuple[int, ...]
    features: list[dict[str, Any]]  # the heaviest: kind, feature, weight


def fitted_of(model: Any) -> Any:
    return model.model if isinstance(model, Reviewed) else model


def phenotypes_of(model: Any) -> list[Phenotype]:
    if getattr(model, "V_", None) is None:
        raise InputError("the model is not fitted: fit it, or load one that is.")
    table = model.phenotypes(top=TOP_FEATURES)
    if isinstance(model, Reviewed):
        groups = zip(model.groups, model.labels(), model.names, strict=True)
        known = [(group.number, label, name, group.members) for group, label, name in groups]
    else:
        known = [(r, str(r), f"Phenotype {r}", (r,)) for r in range(1, model.V_.shape[1] + 1)]
    columns = ["kind", "feature", "weight"]
    return [
        Phenotype(*one, table.loc[table["phenotype"] == one[0], columns].to_dict("records")) for one in known
    ]
