"""Agreement of reviews of one model: on which phenotypes reviewers agree, and how far beyond chance.

What they agree on can start a further review, in which somebody decides the rest.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from phenotaste.errors import InputError
from phenotaste.review.decisions import (
    MAX_COMMENT_LENGTH,
    STATUSES,
    Decision,
    Review,
    numbered_sources,
    one_line,
)

if TYPE_CHECKING:
    import pandas as pd

# Landis and Koch, Biometrics 1977;33:159-174: the words for kappa, each up to this value.
LANDIS_KOCH = (
    (0.2, "slight"),
    (0.4, "fair"),
    (0.6, "moderate"),
    (0.8, "substantial"),
    (1.0, "almost perfect"),
)


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

    def text(self) -> str:
        """Return the agreement as two sentences.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review, compare
        >>> ann = Review("0" * 64, (Decision(1, status="accepted"), Decision(2, status="rejected")), reviewer="Ann")
        >>> bob = Review("0" * 64, (Decision(1, status="accepted"), Decision(2)), reviewer="Bob")
        >>> text = compare([ann, bob]).text()
        >>> text.split(". ")[0], "0.33, fair agreement" in text
        ('Ann and Bob agree on 1 of 2 phenotypes', True)
        """
        who = " and ".join([", ".join(self.reviewers[:-1]), self.reviewers[-1]])
        counted = f"{who} agree on {self.agreed} of {self.phenotypes} phenotypes."
        if self.kappa is None:
            return f"{counted} Cohen's kappa is undefined, because all verdicts are the same."
        mean = ", the mean over all pairs," if len(self.reviewers) > 2 else ""
        return (
            f"{counted} Cohen's kappa of their verdicts{mean} is {self.kappa:.2f}, {kappa_in_words(self.kappa)} "
            "agreement in the words of Landis and Koch (1977)."
        )

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


def kappa_in_words(kappa: float) -> str:
    if kappa < 0:
        return "poor"
    return next(word for limit, word in LANDIS_KOCH if kappa <= limit)


def agreed(reviews: Sequence[Review]) -> Review:
    """Return a review that starts with what several reviews of one model agree on; the rest is open.

    They agree on a phenotype if they give it the same verdict, merge it with the same others, and do not give it, or
    one of these, different names. A phenotype left open has the first name that one of them gave it.

    Examples
    --------
    >>> from phenotaste.review import Decision, Review
    >>> from phenotaste.review.comparison import agreed
    >>> ann = Review("0" * 64, (Decision(1, "Gout", status="accepted"), Decision(2, status="rejected")), reviewer="Ann")
    >>> bob = Review("0" * 64, (Decision(1, status="accepted"), Decision(2, "Flu", status="accepted")), reviewer="Bob")
    >>> for decision in agreed([ann, bob]).decisions:
    ...     print(decision.name, decision.status, decision.sources)
    Gout accepted (1, 2)
    Flu open ()
    """
    agree = settled(reviews)
    based_on = tuple(review.provenance() for review in reviews)
    decisions = []
    for r, own in enumerate(zip(*(review.decisions for review in reviews), strict=True)):
        name = next((each.name for each in own if each.name), "")
        if not agree[r] or own[0].status == "open":
            decisions.append(Decision(r + 1, name))
            continue
        authors = [author for review in reviews for author in review.authors(r + 1)]
        based_on, sources = numbered_sources(based_on, authors)
        comment = joined_comments(reviews, r)
        decisions.append(replace(own[0], name=name, comment=comment, sources=sources))
    return Review(reviews[0].model, tuple(decisions), based_on=based_on)


def settled(reviews: Sequence[Review]) -> list[bool]:
    """Whether all agree on each phenotype, and on the names of those merged with it."""
    verdicts = [verdicts_by_phenotype(review) for review in reviews]
    same_name = [len(names_given(reviews, r)) <= 1 for r in range(len(verdicts[0]))]
    return [
        len(set(row)) == 1 and all(same_name[number - 1] for number in row[0][1])
        for row in zip(*verdicts, strict=True)
    ]


def names_given(reviews: Sequence[Review], r: int) -> set[str]:
    return {one_line(review.decisions[r].name).casefold() for review in reviews} - {""}


def joined_comments(reviews: Sequence[Review], r: int) -> str:
    """The comments of several reviewers as one, each with its author unless there is only one."""
    given = {review.decisions[r].comment: one_line(review.reviewer) for review in reviews}
    given.pop("", None)
    if len(given) <= 1:
        return "".join(given)
    return "\n".join(f"{who}: {comment}" for comment, who in given.items())[:MAX_COMMENT_LENGTH]
