"""Reviews of one model side by side: in which phenotypes reviewers agree, and how far beyond chance."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from phenotaste.errors import InputError
from phenotaste.review.record import STATUSES, Review, one_line

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """What `compare` returns.

    Attributes
    ----------
    table : a row for each phenotype; its columns end in the number of the reviewer, counted from 1.
    agreed : phenotypes about which all say the same.
    kappa : Cohen's, of the verdicts; None where everybody gave everything the same one.

    Examples
    --------
    >>> from phenotaste.review import Decision, Review, compare
    >>> ann = Review("0" * 64, (Decision(1, status="accepted"), Decision(2, status="rejected")), reviewer="Ann")
    >>> bob = Review("0" * 64, (Decision(1, status="accepted"), Decision(2, status="accepted")), reviewer="Bob")
    >>> found = compare([ann, bob])
    >>> found.agreement, found.reviewers, found.table["agree"].tolist()
    (0.5, ['Ann', 'Bob'], [True, False])
    """

    table: "pd.DataFrame"
    reviewers: list[str]
    agreed: int  # phenotypes about which all say the same
    phenotypes: int
    kappa: float | None  # Cohen's, of the verdicts; None where everybody gave everything the same one

    @property
    def agreement(self) -> float:
        """The share of phenotypes about which all say the same."""
        return self.agreed / self.phenotypes

    def as_dict(self) -> dict[str, Any]:
        """For JSON, the table as a list of rows.

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
    """Put two or more reviews of one model side by side.

    Reviewers agree about a phenotype when both reject it, both accept it or both leave it open, merged with the same
    others or with none; which of the merged ones carries the name makes no difference. Kappa counts a phenotype that
    is merged with any other as "merged"; of more than two reviews it is the mean over all pairs.

    Examples
    --------
    >>> from phenotaste.review import Decision, Review, compare
    >>> ann = Review("0" * 64, (Decision(1, status="accepted"), Decision(2, status="rejected")), reviewer="Ann")
    >>> bob = Review("0" * 64, (Decision(1, status="accepted"), Decision(2, status="accepted")), reviewer="Bob")
    >>> found = compare([ann, bob])
    >>> found.agreed, found.phenotypes, found.kappa
    (1, 2, 0.0)
    """
    import pandas as pd

    read = [Review.read(review) for review in reviews]
    if len(read) < 2:
        raise InputError("A comparison needs two reviews or more: give another one.")
    if len({(review.model, len(review.decisions)) for review in read}) > 1:
        raise InputError("The reviews were made of different models: compare reviews of one model.")
    verdicts = [verdicts_of(review) for review in read]
    columns: dict[str, list[Any]] = {"phenotype": [each.phenotype for each in read[0].decisions]}
    for i, review in enumerate(read):
        columns[f"name_{i + 1}"] = [one_line(decision.name) for decision in review.decisions]
    for i, review in enumerate(read):
        columns[f"status_{i + 1}"] = [decision.status for decision in review.decisions]
    for i, found in enumerate(verdicts):
        columns[f"merged_with_{i + 1}"] = [
            ", ".join(str(number) for number in sorted(together - {place + 1}))
            for place, (_, together) in enumerate(found)
        ]
    names = zip(
        *([one_line(each.name).casefold() for each in review.decisions] for review in read), strict=True
    )
    columns["same_name"] = [len(set(row)) == 1 for row in names]
    columns["agree"] = [len(set(row)) == 1 for row in zip(*verdicts, strict=True)]
    return Comparison(
        pd.DataFrame(columns),
        [one_line(review.reviewer) or f"reviewer {i + 1}" for i, review in enumerate(read)],
        sum(columns["agree"]),
        len(read[0].decisions),
        mean_kappa([categories(found) for found in verdicts]),
    )


def verdicts_of(review: Review) -> list[tuple[str, frozenset[int]]]:
    """For each phenotype the status of the one it ends up in, and all that end up there."""
    homes = [review.home(decision.phenotype) for decision in review.decisions]
    together: dict[int, set[int]] = {}
    for number, home in enumerate(homes, 1):
        together.setdefault(home, set()).add(number)
    return [(review.decisions[home - 1].status, frozenset(together[home])) for home in homes]


def categories(verdicts: list[tuple[str, frozenset[int]]]) -> list[str]:
    return [status if len(together) == 1 else "merged" for status, together in verdicts]


def mean_kappa(found: list[list[str]]) -> float | None:
    kappas = [kappa_of(one, other) for one, other in combinations(found, 2)]
    defined = [kappa for kappa in kappas if kappa is not None]
    return sum(defined) / len(defined) if len(defined) == len(kappas) else None


def kappa_of(one: list[str], other: list[str]) -> float | None:
    """(observed − expected agreement) / (1 − expected); None where chance alone would agree on everything."""
    n = len(one)
    expected = sum(one.count(status) * other.count(status) for status in STATUSES) / n**2
    observed = sum(a == b for a, b in zip(one, other, strict=True)) / n
    return None if expected == 1 else (observed - expected) / (1 - expected)
