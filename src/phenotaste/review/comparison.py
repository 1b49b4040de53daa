"""Agreement of reviews of one model: on which phenotypes reviewers agree, and how far beyond chance."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from phenotaste.errors import InputError
from phenotaste.review.decisions import STATUSES, Review, one_line

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """What `compare` returns.

    Attributes
    ----------
    table : a row for each phenotype; its columns end in the number of the reviewer, counted from 1.
    agreed : number of phenotypes on which all reviewers agree.
    kappa : Cohen's kappa of the verdicts; None if all verdicts are the same.

    Examples
    --------
    >>> from phenotaste.review import Decision, Review, compare
    >>> ann = Review("0" * 64, (Decision(1, status="accepted"), Decision(2, status="rejected")), reviewer="Ann")
    >>> bob = Review("0" * 64, (Decision(1, status="accepted"), Decision(2, status="accepted")), reviewer="Bob")
    >>> result = compare([ann, bob])
    >>> result.agreement, result.reviewers, result.table["agree"].tolist()
    (0.5, ['Ann', 'Bob'], [True, False])
    """

    table: "pd.DataFrame"
    reviewers: list[str]
    agreed: int
    phenotypes: int
    kappa: float | None

    @property
    def agreement(self) -> float:
        """The share of phenotypes on which all reviewers agree."""
        return self.agreed / self.phenotypes

    def as_dict(self) -> dict[str, Any]:
        """Return a record for JSON, with the table as a list of rows.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review, compare
        >>> both = [Review("0" * 64, (Decision(1, status=status),)) for status in ("accepted", "rejected")]
        >>> compare(both).as_dict()["agreed"]
        0
        """
        return {
            "reviewers": self.reviewers,
            "agreed": self.agreed,
            "phenotypes": self.phenotypes,
            "agreement": self.agreement,
            "kappa": self.kappa,
            "table": self.table.to_dict("records"),
        }


def compare(reviews: Sequence[str | os.PathLike[str] | Mapping[str, Any] | Review]) -> Comparison:
    """Compare two or more reviews of one model.

    Reviewers agree on a phenotype if all reject it, all accept it or all leave it open, merged with the same others
    or with none, no matter which of the merged ones carries the name. Kappa counts a phenotype that is merged with
    any other as "merged"; of more than two reviews it is the mean over all pairs.

    Examples
    --------
    >>> from phenotaste.review import Decision, Review, compare
    >>> ann = Review("0" * 64, (Decision(1, status="accepted"), Decision(2, status="rejected")), reviewer="Ann")
    >>> bob = Review("0" * 64, (Decision(1, status="accepted"), Decision(2, status="accepted")), reviewer="Bob")
    >>> result = compare([ann, bob])
    >>> result.agreed, result.phenotypes, result.kappa
    (1, 2, 0.0)
    """
    import pandas as pd

    loaded = [Review.read(review) for review in reviews]
    if len(loaded) < 2:
        raise InputError("A comparison needs two reviews or more: give another one.")
    if len({(review.model, len(review.decisions)) for review in loaded}) > 1:
        raise InputError("The reviews are of different models: compare reviews of one model.")
    verdicts = [verdicts_by_phenotype(review) for review in loaded]
    columns: dict[str, list[Any]] = {"phenotype": [each.phenotype for each in loaded[0].decisions]}
    for i, review in enumerate(loaded):
        columns[f"name_{i + 1}"] = [one_line(decision.name) for decision in review.decisions]
    for i, review in enumerate(loaded):
        columns[f"status_{i + 1}"] = [decision.status for decision in review.decisions]
    for i, of_reviewer in enumerate(verdicts):
        columns[f"merged_with_{i + 1}"] = [
            ", ".join(str(number) for number in sorted(merged - {index + 1}))
            for index, (_, merged) in enumerate(of_reviewer)
        ]
    names = zip(
        *([one_line(each.name).casefold() for each in review.decisions] for review in loaded), strict=True
    )
    columns["same_name"] = [len(set(row)) == 1 for row in names]
    columns["agree"] = [len(set(row)) == 1 for row in zip(*verdicts, strict=True)]
    return Comparison(
        pd.DataFrame(columns),
        [one_line(review.reviewer) or f"reviewer {i + 1}" for i, review in enumerate(loaded)],
        sum(columns["agree"]),
        len(loaded[0].decisions),
        mean_kappa([categories(of_reviewer) for of_reviewer in verdicts]),
    )


def verdicts_by_phenotype(review: Review) -> list[tuple[str, frozenset[int]]]:
    """For each phenotype, the status of the one it is merged into (or its own), and all that are merged there."""
    targets = [review.merge_target(decision.phenotype) for decision in review.decisions]
    merged: dict[int, set[int]] = {}
    for number, target in enumerate(targets, 1):
        merged.setdefault(target, set()).add(number)
    return [(review.decisions[target - 1].status, frozenset(merged[target])) for target in targets]


def categories(verdicts: list[tuple[str, frozenset[int]]]) -> list[str]:
    return [status if len(merged) == 1 else "merged" for status, merged in verdicts]


def mean_kappa(verdicts: list[list[str]]) -> float | None:
    kappas = [cohen_kappa(one, other) for one, other in combinations(verdicts, 2)]
    defined = [kappa for kappa in kappas if kappa is not None]
    return sum(defined) / len(defined) if len(defined) == len(kappas) else None


def cohen_kappa(one: list[str], other: list[str]) -> float | None:
    """(observed − expected agreement) / (1 − expected); None if the expected agreement is 1."""
    n = len(one)
    expected = sum(one.count(status) * other.count(status) for status in STATUSES) / n**2
    observed = sum(a == b for a, b in zip(one, other, strict=True)) / n
    return None if expected == 1 else (observed - expected) / (1 - expected)
