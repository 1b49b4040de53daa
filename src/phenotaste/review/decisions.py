"""A clinician's review of the phenotypes of a model: names, comments, verdicts, merges and an order, as a JSON file.

It belongs to the model with its fingerprint, and is refused for any other. Files are validated strictly, because they
may come from anywhere and their texts go into pages and tables.
"""

import datetime
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, cast, get_args

import numpy as np

from phenotaste.disclosure import printable
from phenotaste.errors import InputError
from phenotaste.storage.atomic import write_file

FORMAT, VERSION = "phenotaste-review", 1
MAX_FILE_SIZE = 32 * 2**20
MAX_PHENOTYPES = 2000
MAX_NAME_LENGTH, MAX_COMMENT_LENGTH = 200, 5000  # characters

Status = Literal["open", "accepted", "rejected", "merged"]
STATUSES: tuple[str, ...] = get_args(Status)


@dataclass(frozen=True)
class Decision:
    """The decision on one phenotype; `merge_with` is set only if the status is "merged".

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
    """A phenotype that a review keeps, with those merged into it; numbers count from 1.

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
    members: tuple[int, ...]  # ascending, including `number`


@dataclass(frozen=True)
class Review:
    """A decision on every phenotype of the model with this fingerprint, in order of their numbers.

    Attributes
    ----------
    model : the fingerprint.
    decisions : one for each phenotype.
    order : phenotypes as the reviewer sorted them; the others follow by number.
    reviewer, date : the reviewer's name, and the day of the review; today by default.

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
    order: tuple[int, ...] = ()
    reviewer: str = ""
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())

    @classmethod
    def blank(cls, model: Any, reviewer: str = "", names: Mapping[int, str] | None = None) -> "Review":
        """Return a review of a fitted model, dated today, in which all decisions are open.

        Phenotypes that a refit has kept are accepted already, and names and comments are those the model has.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Review
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> review = Review.blank(TASTE(rank=2, random_state=0, max_iter=20).fit(cohort), names={1: "Gout"})
        >>> [(decision.name, decision.status) for decision in review.decisions]
        [('Gout', 'open'), ('', 'open')]
        """
        R = model.V_.shape[1]
        names = dict(enumerate(getattr(model, "names_", [""] * R), 1)) | dict(names or {})
        record = getattr(model, "refit_", None) or {}
        rows = {row["phenotype"]: row for row in record.get("phenotypes", [])}
        decisions = []
        for number in range(1, R + 1):
            row = rows.get(number, {})
            status: Status = "accepted" if row.get("decision") == "accepted" else "open"
            decisions.append(Decision(number, names.get(number, ""), row.get("comment", ""), status))
        return cls(fingerprint(model), tuple(decisions), tuple(record.get("order", ())), reviewer)

    @classmethod
    def read(cls, source: "str | os.PathLike[str] | Mapping[str, Any] | Review") -> "Review":
        """Read and validate a review: a file, the contents of one as a dict, or a Review.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> gout, flu = Decision(1, "Gout", status="accepted"), Decision(2, "Flu", status="rejected")
        >>> review = Review("0" * 64, (gout, flu, Decision(3, status="merged", merge_with=1)), date="2026-01-31")
        >>> review.write("review.json")
        >>> Review.read("review.json") == review
        True
        """
        if isinstance(source, Review):
            return cls.read(source.as_dict())
        if isinstance(source, Mapping):
            return parse_review(source, "The review")
        return parse_review(read_json(Path(source)), str(source))

    def as_dict(self) -> dict[str, Any]:
        """Return the contents of the file.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> gout, flu = Decision(1, "Gout", status="accepted"), Decision(2, "Flu", status="rejected")
        >>> review = Review("0" * 64, (gout, flu, Decision(3, status="merged", merge_with=1)), date="2026-01-31")
        >>> record = review.as_dict()
        >>> record["format"], record["date"], record["decisions"][0]["name"]
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
        """Write the file atomically.

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

    def merge_target(self, number: int) -> int:
        """Follow all merges of a phenotype, and return the one it is merged into, or itself.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> gout, flu = Decision(1, "Gout", status="accepted"), Decision(2, "Flu", status="rejected")
        >>> review = Review("0" * 64, (gout, flu, Decision(3, status="merged", merge_with=1)), date="2026-01-31")
        >>> review.merge_target(3), review.merge_target(2)
        (1, 2)
        """
        decision = self.decisions[number - 1]
        while decision.merge_with is not None:
            decision = self.decisions[decision.merge_with - 1]
        return decision.phenotype

    def groups(self) -> list[Group]:
        """Return the phenotypes that are kept, merged and in the reviewer's order; rejected ones are left out.

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
            members.setdefault(self.merge_target(decision.phenotype), []).append(decision.phenotype)
        order = [*self.order, *(number for number in members if number not in set(self.order))]
        kept = [self.decisions[number - 1] for number in order if number in members]
        return [
            Group(d.phenotype, one_line(d.name), d.status, d.comment, tuple(members[d.phenotype]))
            for d in kept
            if d.status != "rejected"
        ]

    def check_model(self, model: Any) -> None:
        """Raise an error if the review is of another model.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Review
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> one, other = (TASTE(rank=2, random_state=seed, max_iter=5).fit(cohort) for seed in (0, 1))
        >>> Review.blank(one).check_model(other)
        Traceback (most recent call last):
            ...
        phenotaste.errors.InputError: The review is of another model: ...
        """
        if self.model != fingerprint(model) or len(self.decisions) != model.V_.shape[1]:
            raise InputError(
                "The review is of another model: use the model that its report was written from, or review this one."
            )


def one_line(text: str) -> str:
    """Return the text without line breaks, and with unprintable characters replaced."""
    return printable(" ".join(text.split()))


def fingerprint(model: Any) -> str:
    """Return the SHA-256 of the definitions of a fitted model, which does not depend on the machine.

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
    background = getattr(model, "background_", None)  # of a refitted model
    hidden = () if background is None else (background.H, background.V, background.F)
    for factor in (getattr(model, "H_", None), model.V_, model.F_, *hidden):  # no H without courses
        add(b"none" if factor is None else "×".join(map(str, factor.shape)).encode())
        add(b"" if factor is None else np.ascontiguousarray(factor, "<f8").tobytes())
    for names in (model.feature_names_in_, model.static_names_in_):
        add(b"none" if names is None else str(len(names)).encode())
        for name in [] if names is None else names.tolist():
            add(str(name).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file of limited size in which no object has a repeated name."""
    if not path.exists():
        raise InputError(f"{path} does not exist: give the review.json that the report page saved.")
    if not path.is_file() or path.stat().st_size > MAX_FILE_SIZE:
        refuse(str(path), "it is not a file of at most 32 MB")
    try:
        text = path.read_bytes()[: MAX_FILE_SIZE + 1].decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=reject_repeats, parse_constant=reject_constant)
    except (ValueError, RecursionError):
        refuse(str(path), "it is truncated or damaged")


def reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("repeated name")
    return result


def reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")


def refuse(where: str, fault: str) -> NoReturn:
    raise InputError(f"{where} is not a valid review: {fault}; save it again from the report page.")


def parse_review(record: Any, where: str) -> Review:
    """Build a review from the contents of a file, and validate all of it."""
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        refuse(where, "it was not saved by a phenotaste report")
    if type(record.get("version")) is int and record["version"] > VERSION:
        raise InputError(f"{where} was saved by a newer phenotaste: upgrade phenotaste to use it.")
    fields = Fields(record, where, "")
    fields.require("format", "version", "model", "phenotypes", "reviewer", "date", "decisions", "order")
    fields.integer("version", VERSION, VERSION)
    R = fields.integer("phenotypes", 1, MAX_PHENOTYPES)
    items = fields.items("decisions", R)
    if len(items) < R:
        refuse(where, f"it has decisions for {len(items)} of its {R} phenotypes")
    decisions = [parse_decision(item, where, R) for item in items]
    by_number = {decision.phenotype: decision for decision in decisions}
    if len(by_number) < R:
        refuse(where, "it has two decisions on a phenotype")
    review = Review(
        fields.text("model", 64, re.compile("[0-9a-f]{64}").fullmatch, "the fingerprint of a model"),
        tuple(by_number[r + 1] for r in range(R)),
        parse_order(fields.items("order", R), where, R),
        fields.text("reviewer", MAX_NAME_LENGTH),
        fields.text("date", 10, is_date, "a date such as 2026-01-31"),
    )
    check_merges(review, where)
    return review


def parse_decision(item: Any, where: str, R: int) -> Decision:
    if not isinstance(item, Mapping):
        refuse(where, "a decision is not an object")
    number = Fields(item, where, " of a decision").integer("phenotype", 1, R)
    fields = Fields(item, where, f" of phenotype {number}")
    fields.require("phenotype", "name", "comment", "status", "merge_with")
    status = fields.text("status", 8, STATUSES.__contains__, "one of " + ", ".join(STATUSES))
    target = item.get("merge_with")
    if (status == "merged") == (target is None):
        refuse(where, f"phenotype {number} is {status} but has {'no' if target is None else 'a'} merge_with")
    return Decision(
        number,
        fields.text("name", MAX_NAME_LENGTH),
        fields.text("comment", MAX_COMMENT_LENGTH),
        cast(Status, status),
        None if target is None else fields.integer("merge_with", 1, R),
    )


def parse_order(items: list[Any], where: str, R: int) -> tuple[int, ...]:
    if not all(type(number) is int and 1 <= number <= R for number in items):
        refuse(where, f"its order holds numbers that are not from 1 to {R}")
    if len(set(items)) < len(items):
        refuse(where, "its order names a phenotype twice")
    return tuple(items)


def check_merges(review: Review, where: str) -> None:
    """Refuse cyclic merges, and merges with a rejected phenotype."""
    for first in review.decisions:
        seen, decision = {first.phenotype}, first
        while decision.merge_with is not None:
            decision = review.decisions[decision.merge_with - 1]
            if decision.phenotype in seen:
                refuse(where, f"it merges phenotype {first.phenotype} in a circle")
            seen.add(decision.phenotype)
        if decision is not first and decision.status == "rejected":
            refuse(
                where,
                f"it merges phenotype {first.phenotype} with phenotype {decision.phenotype}, which it rejects",
            )


def is_date(text: str) -> bool:
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


class Fields:
    """The values of one JSON object, each checked for type and size."""

    def __init__(self, record: Mapping[str, Any], where: str, owner: str) -> None:
        self.record, self.where, self.owner = record, where, owner

    def require(self, *names: str) -> None:
        missing = [name for name in names if name not in self.record]
        if missing:
            refuse(self.where, f"{missing[0]}{self.owner} is missing")
        if len(self.record) > len(names):
            refuse(self.where, f"it has entries{self.owner} that this version does not know")

    def integer(self, name: str, low: int, high: int) -> int:
        value = self.record.get(name)
        if type(value) is not int or not low <= value <= high:
            refuse(self.where, f"{name}{self.owner} is not an integer from {low} to {high}")
        return value

    def text(
        self, name: str, limit: int, is_valid: Callable[[str], object] | None = None, expected: str = ""
    ) -> str:
        value = self.record.get(name)
        if not isinstance(value, str) or len(value) > limit:
            refuse(self.where, f"{name}{self.owner} is not a text of at most {limit:,} characters")
        if is_valid is not None and not is_valid(value):
            refuse(self.where, f"{name}{self.owner} is not {expected}")
        # Replaces lone surrogates, which truncation can leave and which cannot be encoded.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def items(self, name: str, max_length: int) -> list[Any]:
        value = self.record.get(name)
        if not isinstance(value, list) or len(value) > max_length:
            refuse(self.where, f"{name} is not a list of at most {max_length:,}")
        return value
