"""Who has a phenotype: a threshold on each patient's share, score or intensity, and the history behind it."""

import warnings
from contextlib import suppress
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate
from phenotaste.errors import InputError
from phenotaste.report.patients import Patients
from phenotaste.review import Reviewed, fingerprint
from phenotaste.validation import check_choice

Measure = Literal["share", "score", "intensity"]
MEASURES: tuple[str, ...] = get_args(Measure)
MAJORITY = 0.5
FORMAT = "phenotaste-membership"
TOP_FEATURES = 10


class Phenotype(NamedTuple):
    """A phenotype of a model or of a reviewed model; `numbers` are those that a review merged into `number`."""

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


class Rule(NamedTuple):
    """A patient has a phenotype where its `measure` is at least the `threshold`.

    The share is part of one, so that one half makes a sense of its own; scores and intensities have no size that
    could be named without looking at them.

    Examples
    --------
    >>> from phenotaste.ecosystem import Rule
    >>> Rule()
    Rule(measure='share', threshold=0.5)
    >>> Rule("score", threshold=2.5).measure
    'score'
    """

    measure: Measure = "share"
    threshold: float = MAJORITY

    def check(self) -> None:
        """Refuse a measure that there is not, and a threshold that nobody or everybody reaches.

        Examples
        --------
        >>> from phenotaste.ecosystem import Rule
        >>> Rule("share", threshold=2.0).check()
        Traceback (most recent call last):
            ...
        phenotaste.errors.InputError: The threshold is 2.0, and no share exceeds 1: give one up to 1.
        """
        check_choice("measure", self.measure, MEASURES)
        if not 0 < self.threshold < np.inf:
            raise InputError(
                f"The threshold is {self.threshold}: give a number above zero, or everybody has it."
            )
        if self.measure == "share" and self.threshold > 1:
            raise InputError(f"The threshold is {self.threshold}, and no share exceeds 1: give one up to 1.")


class Membership(NamedTuple):
    """A row for each patient with visits, a column for each phenotype. Patient-level."""

    rule: Rule
    phenotypes: list[Phenotype]
    subjects: NDArray[np.int64]
    first: NDArray[np.datetime64]  # visit
    last: NDArray[np.datetime64]
    values: NDArray[np.float64]
    without_visits: int  # patients who have no date to stand under, and are left out

    @property
    def members(self) -> NDArray[np.bool_]:
        return self.values >= self.rule.threshold


def membership(model: Any, cohort: Cohort, rule: Rule) -> Membership:
    """Everything is checked before anybody is scored."""
    rule.check()
    phenotypes = phenotypes_of(model)
    subjects, times = whole_ids(cohort), dates(cohort)
    if fitted_of(model).get_params().get("nonnegative") is False:
        raise InputError(
            "The model's scores may be negative, so that no threshold says who has a phenotype: fit one whose are not."
        )
    found = model.project(cohort)
    patients = Patients(found.W, found.U, found.offsets)
    measures = {"share": patients.shares, "intensity": patients.intensities, "score": lambda: found.W}
    seen = np.flatnonzero(patients.visits)
    return Membership(
        rule,
        phenotypes,
        subjects[seen],
        times[cohort.offsets[seen]],
        times[cohort.offsets[seen + 1] - 1],
        np.asarray(measures[rule.measure]()[seen], np.float64),
        len(cohort) - len(seen),
    )


def whole_ids(cohort: Cohort) -> NDArray[np.int64]:
    """The ids as the whole numbers that both formats ask for; texts only where nothing is lost."""
    ids = cohort.patient_ids
    if ids.dtype.kind == "U":
        texts, ids = ids, np.empty(0)
        with suppress(ValueError, OverflowError):
            ids = np.array([int(text) for text in texts.tolist()], np.int64)
        if not np.array_equal(ids.astype(str), texts):
            raise InputError(
                "The patients' ids are texts, and subject_id must be a whole number: build the cohort with the "
                "person_id or subject_id of the source as its patient."
            )
    if len(ids) and ids.max() > np.iinfo(np.int64).max:
        raise InputError("A patient's id has more than 64 bits: build the cohort with the ids of the source.")
    if np.array_equal(ids, np.arange(len(ids))):
        warnings.warn(
            "the patients are numbered from 0, as in a cohort without ids: make sure that these are your source's.",
            stacklevel=4,
        )
    return ids.astype(np.int64)


def dates(cohort: Cohort) -> NDArray[np.datetime64]:
    times = cohort.visit_times
    if times is None or times.dtype.kind != "M":
        kind = "have no times" if times is None else "have numbers for times"
        raise InputError(
            f"The cohort's visits {kind}, and both formats ask for dates: build the cohort with dated visits."
        )
    return times


def definition(model: Any, found: Membership, dates: str) -> dict[str, Any]:
    """How membership came about, for the file that lies beside it: nothing about patients."""
    fitted = fitted_of(model)
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "phenotaste": __version__,
        "rule": {"measure": found.rule.measure, "comparison": ">=", "threshold": found.rule.threshold},
        "dates": dates,
        "model": {
            "method": type(fitted).__name__,
            "fingerprint": fingerprint(fitted),
            "phenotypes": int(fitted.V_.shape[1]),
        },
        "phenotypes": [
            {
                "number": each.number,
                "name": each.name,
                "merged": list(each.numbers),
                "heaviest_features": each.features,
            }
            for each in found.phenotypes
        ],
    }
    if isinstance(model, Reviewed):
        record["review"] = {"date": model.review.date}
    return record


class Exported(NamedTuple):
    """What was written, in a few numbers that may be shown."""

    files: list[str]
    patients: int
    without_visits: int
    names: list[str]
    members: list[int | None]  # of each phenotype; None where they, or all others, are fewer than 11


def exported(found: Membership, files: list[str]) -> Exported:
    gate, total = Gate(), len(found.subjects)
    counts = [int(count) for count in found.members.sum(axis=0)]
    names = [phenotype.name for phenotype in found.phenotypes]
    members = [
        gate.count("export", name, count, total - count) for name, count in zip(names, counts, strict=True)
    ]
    return Exported(files, total, found.without_visits, names, members)
