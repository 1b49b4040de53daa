"""A clinician's review of the phenotypes of a model: names, comments, verdicts, merges and an order, as a JSON file.

It belongs to the model with its fingerprint, and is refused for any other. Files are validated strictly, because they
may come from anywhere and their texts go into pages and tables.
"""

import datetime
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from phenotaste.disclosure import printable
from phenotaste.errors import InputError
from phenotaste.review.strict_json import Fields, is_date, read_json, refuse
from phenotaste.storage.atomic import write_file

FORMAT, VERSION = "phenotaste-review", 2  # version 1 knew neither earlier reviews nor sources
MAX_PHENOTYPES = 2000
MAX_SOURCES = 100  # earlier reviews that one builds on
MAX_NAME_LENGTH, MAX_COMMENT_LENGTH = 200, 5000  # characters

SHA256 = re.compile("[0-9a-f]{64}")

Status = Literal["open", "accepted", "rejected", "merged"]
STATUSES: tuple[str, ...] = get_args(Status)


class Provenance(NamedTuple):
    """Which review: by whom, when and of which model; `review` is the digest of its contents.

    Examples
    --------
    >>> from phenotaste.review import Decision, Review
    >>> review = Review("0" * 64, (Decision(1, "Gout"),), reviewer="Ann", date="2026-01-31")
    >>> review.provenance().reviewer, len(review.provenance().review)
    ('Ann', 64)
    """

    reviewer: str
    date: str
    model: str
    review: str


@dataclass(frozen=True)
class Decision:
    """The decision on one phenotype; `merge_with` is set only if the status is "merged".

    A decision that was carried over has in `sources` the numbers, from 1, of the reviews in `Review.based_on` that made
    it; one without sources is the reviewer's own.

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
    sources: tuple[int, ...] = ()


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
    based_on : earlier reviews, whose decisions this one started from.

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
    based_on: tuple[Provenance, ...] = ()

    @classmethod
    def blank(cls, model: Any, reviewer: str = "", names: Mapping[int, str] | None = None) -> "Review":
        """Return a review of a fitted model, dated today, in which all decisions are open.

        Phenotypes that a refit has kept are accepted already, with the author of that decision; names and comments are
        those of the model.

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
            name, comment, sources = (
                names.get(number, ""),
                row.get("comment", ""),
                tuple(row.get("sources", ())),
            )
            decisions.append(Decision(number, name, comment, status, sources=sources))
        order = tuple(record.get("order", ()))
        based_on = tuple(Provenance(**source) for source in record.get("based_on", ()))
        return cls(fingerprint(model), tuple(decisions), order, reviewer, based_on=based_on)

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
            "based_on": [source._asdict() for source in self.based_on],
            "decisions": [asdict(each) | {"sources": list(each.sources)} for each in self.decisions],
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

    def provenance(self) -> Provenance:
        """Return who made this review, when and of which model, with a digest that changes with any of its contents.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> ann, bob = (Review("0" * 64, (Decision(1, name),)) for name in ("Gout", "Flu"))
        >>> ann.provenance().review == bob.provenance().review
        False
        """
        text = json.dumps(self.as_dict(), sort_keys=True)
        return Provenance(self.reviewer, self.date, self.model, hashlib.sha256(text.encode()).hexdigest())

    def authors(self, number: int) -> tuple[Provenance, ...]:
        """Return the reviews in which the decision on a phenotype was made: this one, unless it was carried over.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> ann = Review("0" * 64, (Decision(1, "Gout", status="accepted"),), reviewer="Ann")
        >>> kept, new = Decision(1, "Gout", status="accepted", sources=(1,)), Decision(2, "Flu")
        >>> bob = Review("1" * 64, (kept, new), reviewer="Bob", based_on=(ann.provenance(),))
        >>> [bob.authors(number)[0].reviewer for number in (1, 2)]
        ['Ann', 'Bob']
        """
        sources = self.decisions[number - 1].sources
        return tuple(self.based_on[source - 1] for source in sources) or (self.provenance(),)

    def provenance_record(self) -> dict[str, Any]:
        """Return the provenance of this review and of those it is based on, for the metadata of files.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> record = Review("0" * 64, (Decision(1, "Gout"),), reviewer="Ann", date="2026-01-31").provenance_record()
        >>> list(record), record["based_on"]
        (['reviewer', 'date', 'model', 'review', 'based_on'], [])
        """
        own, *based_on = (
            source._asdict() | {"reviewer": one_line(source.reviewer)}
            for source in (self.provenance(), *self.based_on)
        )
        return own | {"based_on": based_on}

    def decision_record(self, number: int) -> dict[str, Any]:
        """Return the status of a phenotype, and who decided that and when, for the metadata of files.

        Examples
        --------
        >>> from phenotaste.review import Decision, Review
        >>> review = Review("0" * 64, (Decision(1, "Gout", status="accepted"),), reviewer="Ann", date="2026-01-31")
        >>> review.decision_record(1)
        {'status': 'accepted', 'decided_by': [{'reviewer': 'Ann', 'date': '2026-01-31'}]}
        """
        authors = self.authors(number)
        return {
            "status": self.decisions[number - 1].status,
            "decided_by": [{"reviewer": one_line(each.reviewer), "date": each.date} for each in authors],
        }

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


def numbered_sources(
    based_on: Sequence[Provenance], authors: Sequence[Provenance]
) -> tuple[tuple[Provenance, ...], tuple[int, ...]]:
    """Return the reviews that a review is based on with these authors among them, and the authors' numbers."""
    extended = tuple(dict.fromkeys([*based_on, *authors]))
    return extended, tuple(extended.index(author) + 1 for author in dict.fromkeys(authors))


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


def parse_review(record: Any, where: str) -> Review:
    """Build a review from the contents of a file, and validate all of it."""
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        refuse(where, "it was not saved by a phenotaste report")
    if type(record.get("version")) is int and record["version"] > VERSION:
        raise InputError(f"{where} was saved by a newer phenotaste: upgrade phenotaste to use it.")
    fields = Fields(record, where, "")
    first = fields.integer("version", 1, VERSION) == 1
    names = ("format", "version", "model", "phenotypes", "reviewer", "date", "decisions", "order")
    fields.require(*names, *(() if first else ("based_on",)))
    R = fields.integer("phenotypes", 1, MAX_PHENOTYPES)
    based_on = [] if first else [parse_source(item, where) for item in fields.items("based_on", MAX_SOURCES)]
    items = fields.items("decisions", R)
    if len(items) < R:
        refuse(where, f"it has decisions for {len(items)} of its {R} phenotypes")
    decisions = [parse_decision(item, where, R, None if first else len(based_on)) for item in items]
    by_number = {decision.phenotype: decision for decision in decisions}
    if len(by_number) < R:
        refuse(where, "it has two decisions on a phenotype")
    review = Review(
        fields.text("model", 64, SHA256.fullmatch, "the fingerprint of a model"),
        tuple(by_number[r + 1] for r in range(R)),
        fields.numbers("order", R),
        fields.text("reviewer", MAX_NAME_LENGTH),
        fields.text("date", 10, is_date, "a date such as 2026-01-31"),
        tuple(based_on),
    )
    check_merges(review, where)
    return review


def parse_source(item: Any, where: str) -> Provenance:
    """One of the reviews that a review is based on."""
    if not isinstance(item, Mapping):
        refuse(where, "a review that it is based on is not an object")
    fields = Fields(item, where, " of a review that it is based on")
    fields.require(*Provenance._fields)
    return Provenance(
        fields.text("reviewer", MAX_NAME_LENGTH),
        fields.text("date", 10, is_date, "a date such as 2026-01-31"),
        fields.text("model", 64, SHA256.fullmatch, "the fingerprint of a model"),
        fields.text("review", 64, SHA256.fullmatch, "the digest of a review"),
    )


def parse_decision(item: Any, where: str, R: int, n_sources: int | None) -> Decision:
    """One decision; files of the first version have no sources."""
    if not isinstance(item, Mapping):
        refuse(where, "a decision is not an object")
    number = Fields(item, where, " of a decision").integer("phenotype", 1, R)
    fields = Fields(item, where, f" of phenotype {number}")
    names = ("phenotype", "name", "comment", "status", "merge_with")
    fields.require(*names, *(() if n_sources is None else ("sources",)))
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
        () if n_sources is None else fields.numbers("sources", n_sources),
    )


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
