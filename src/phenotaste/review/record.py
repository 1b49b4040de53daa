"""A clinician's review of a model's phenotypes: names, comments, verdicts, merges and an order, kept as a JSON file.

It belongs to one model, by the model's fingerprint; a review of another one is refused.
"""

import datetime
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from phenotaste.errors import InputError
from phenotaste.storage.atomic import write_file

FORMAT, VERSION = "phenotaste-review", 1

Status = Literal["open", "accepted", "rejected", "merged"]
STATUSES: tuple[str, ...] = get_args(Status)


@dataclass(frozen=True)
class Decision:
    """What was decided about one phenotype; `merge_with` only where the status is "merged".

    Examples
    --------
    >>> from phenotaste.review import Decision
    >>> Decision(2, "Gout", comment="with the drugs for it", status="accepted").name
    'Gout'
    """

    phenotype: int
    name: str = ""
    comment: str = ""
    status: Status = "open"
    merge_with: int | None = None


class Group(NamedTuple):
    """A phenotype that a review keeps, with those merged into it: all numbers count from 1.

    Examples
    --------
    >>> from phenotaste.review import Decision, Review
    >>> gout, flu = Decision(1, "Gout", status="accepted"), Decision(2, "Flu", status="rejected")
    >>> review = Review("0" * 64, (gout, flu, Decision(3, status="merged", merge_with=1)), date="2026-01-31")
    >>> review.groups()
    [Group(number=1, name='Gout', status='accepted', comment='', members=(1, 3))]
    """

    number: int
    name: str  # one line of printable text, or empty
    status: Status
    comment: str
    members: tuple[int, ...]  # in rising order, `number` among them


@dataclass(frozen=True)
class Review:
    """One decision for every phenotype of the model with this fingerprint, in order of their numbers.

    Attributes
    ----------
    model : the fingerprint.
    decisions : one for each phenotype.
    order : phenotypes as the reviewer sorted them; the others follow by number.
    reviewer, date : who, and when; today by default.

    Examples
    --------
    >>> from phenotaste.review import Decision, Review
    >>> gout, flu = Decision(1, "Gout", status="accepted"), Decision(2, "Flu", status="rejected")
    >>> review = Review("0" * 64, (gout, flu, Decision(3, status="merged", merge_with=1)), date="2026-01-31")
    >>> [decision.status for decision in review.decisions]
    ['accepted', 'rejected', 'merged']
    """

    model: str
    decisions: tuple[Decision, ...]
    order: tuple[int, ...] = ()  # phenotypes as the reviewer sorted them; the others follow by number
    reviewer: str = ""
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())

    @classmethod
    def blank(cls, model: Any, reviewer: str = "", names: Mapping[int, str] | None = None) -> "Review":
        """A review of a fitted model with everything still open, dated today.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Review
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> review = Review.blank(TASTE(rank=2, random_state=0, max_iter=20).fit(cohort), names={1: "Gout"})
        >>> [(decision.name, decision.status) for decision in review.decisions]
        [('Gout', 'open'), ('', 'open')]
        """
        names = names or {}
        found = tuple(Decision(r + 1, names.get(r + 1, "")) for r in range(model.V_.shape[1]))
        return cls(fingerprint(model), found, reviewer=reviewer)

    @classmethod
    def read(cls, source: "str | os.PathLike[str] | Mapping[str, Any] | Review") -> "Review":
        """A review from its file, from what its file holds, or as it is; anything unsound is refused.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> gout, flu = Decision(1, "Gout", status="accepted"), Decision(2, "Flu", status="rejected")
        >>> review = Review("0" * 64, (gout, flu, Decision(3, status="merged", merge_with=1)), date="2026-01-31")
        >>> review.write("review.json")
        >>> Review.read("review.json") == review
        True
        """
        from phenotaste.review.reading import json_of, review_of

        if isinstance(source, Review):
            return cls.read(source.as_dict())
        if isinstance(source, Mapping):
            return review_of(source, "The review")
        return review_of(json_of(Path(source)), str(source))

    def as_dict(self) -> dict[str, Any]:
        """What the file holds.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> gout, flu = Decision(1, "Gout", status="accepted"), Decision(2, "Flu", status="rejected")
        >>> review = Review("0" * 64, (gout, flu, Decision(3, status="merged", merge_with=1)), date="2026-01-31")
        >>> found = review.as_dict()
        >>> found["format"], found["date"], found["decisions"][0]["name"]
        ('phenotaste-review', '2026-01-31', 'Gout')
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "phenotypes": len(self.decisions),
            "reviewer": self.reviewer,
            "date": self.date,
            "decisions": [asdict(decision) for decision in self.decisions],
            "order": list(self.order),
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all.

        Examples
        --------
        >>> import json
        >>> from phenotaste.review import Decision, Review
        >>> gout, flu = Decision(1, "Gout", status="accepted"), Decision(2, "Flu", status="rejected")
        >>> review = Review("0" * 64, (gout, flu, Decision(3, status="merged", merge_with=1)), date="2026-01-31")
        >>> review.write("review.json")
        >>> json.load(open("review.json"))["phenotypes"]
        3
        """
        text = json.dumps(Review.read(self).as_dict(), ensure_ascii=False, indent=1) + "\n"
        write_file(Path(os.path.realpath(path)), text)

    def home(self, number: int) -> int:
        """The phenotype that this one ends up in, through all merges.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> gout, flu = Decision(1, "Gout", status="accepted"), Decision(2, "Flu", status="rejected")
        >>> review = Review("0" * 64, (gout, flu, Decision(3, status="merged", merge_with=1)), date="2026-01-31")
        >>> review.home(3), review.home(2)
        (1, 2)
        """
        decision = self.decisions[number - 1]
        while decision.merge_with is not None:
            decision = self.decisions[decision.merge_with - 1]
        return decision.phenotype

    def groups(self) -> list[Group]:
        """The phenotypes that stay, merged and in the reviewer's order; rejected ones are left out.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> gout, flu = Decision(1, "Gout", status="accepted"), Decision(2, "Flu", status="rejected")
        >>> review = Review("0" * 64, (gout, flu, Decision(3, status="merged", merge_with=1)), date="2026-01-31")
        >>> [(group.name, group.members) for group in review.groups()]
        [('Gout', (1, 3))]
        """
        members: dict[int, list[int]] = {}
        for decision in self.decisions:
            members.setdefault(self.home(decision.phenotype), []).append(decision.phenotype)
        ranked = [*self.order, *(number for number in members if number not in set(self.order))]
        kept = [self.decisions[number - 1] for number in ranked if number in members]
        return [
            Group(
                kind.phenotype, one_line(kind.name), kind.status, kind.comment, tuple(members[kind.phenotype])
            )
            for kind in kept
            if kind.status != "rejected"
        ]

    def check_model(self, model: Any) -> None:
        """Refuse the review where it was made of another model than this one.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Review
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> one, other = (TASTE(rank=2, random_state=seed, max_iter=5).fit(cohort) for seed in (0, 1))
        >>> Review.blank(one).check_model(other)
        Traceback (most recent call last):
            ...
        phenotaste.errors.InputError: The review was made of another model: ...
        """
        if self.model != fingerprint(model) or len(self.decisions) != model.V_.shape[1]:
            raise InputError(
                "The review was made of another model: use the model that its report was written from, "
                "or review this one anew."
            )


def one_line(text: str) -> str:
    """The text without line breaks and with what cannot be printed replaced."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(text.split()))


def fingerprint(model: Any) -> str:
    """SHA-256 of a fitted model's definitions: the same before and after saving, on any machine.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.review import fingerprint
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = TASTE(rank=2, random_state=0, max_iter=5).fit(cohort)
    >>> model.save("model")
    >>> fingerprint(TASTE.load("model")) == fingerprint(model), len(fingerprint(model))
    (True, 64)
    """
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    add(type(model).__name__.encode())
    for factor in (model.H_, model.V_, model.F_):
        add(b"none" if factor is None else "×".join(map(str, factor.shape)).encode())
        add(b"" if factor is None else np.ascontiguousarray(factor, "<f8").tobytes())
    for names in (model.feature_names_in_, model.static_names_in_):
        add(b"none" if names is None else str(len(names)).encode())
        for name in [] if names is None else names.tolist():
            add(str(name).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
