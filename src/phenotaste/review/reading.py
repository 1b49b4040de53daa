"""Review files, read strictly: a file may come from anywhere, and what is read goes into pages and tables."""

import datetime
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from phenotaste.errors import InputError
from phenotaste.review.record import FORMAT, STATUSES, VERSION, Decision, Review, Status

LARGEST_FILE = 32 * 2**20
MOST_PHENOTYPES = 2000
NAME_LIMIT, COMMENT_LIMIT = 200, 5000  # characters


def json_of(path: Path) -> Any:
    """The JSON in a file of reasonable size; a name given twice in one object is refused."""
    if not path.exists():
        raise InputError(f"{path} does not exist: give the review.json that the report page saved.")
    if not path.is_file() or path.stat().st_size > LARGEST_FILE:
        refuse(str(path), "is not a file of at most 32 MB")
    try:
        text = path.read_bytes()[: LARGEST_FILE + 1].decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=without_repeats, parse_constant=no_constant)
    except (ValueError, RecursionError):
        refuse(str(path), "is cut off or damaged")


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def refuse(where: str, fault: str) -> NoReturn:
    raise InputError(f"{where} cannot be used as a review: it {fault}; save it again from the report page.")


def review_of(found: Any, where: str) -> Review:
    """A review from what its file holds, everything in it checked."""
    if not isinstance(found, Mapping) or found.get("format") != FORMAT:
        refuse(where, "is no review saved by a phenotaste report")
    if type(found.get("version")) is int and found["version"] > VERSION:
        raise InputError(f"{where} was saved by a newer phenotaste: upgrade phenotaste to use it.")
    fields = Fields(found, where, "")
    fields.only("format", "version", "model", "phenotypes", "reviewer", "date", "decisions", "order")
    fields.number("version", VERSION, VERSION)
    R = fields.number("phenotypes", 1, MOST_PHENOTYPES)
    listed = fields.items("decisions", R)
    if len(listed) < R:
        refuse(where, f"has decisions for {len(listed)} of its {R} phenotypes")
    decisions = [decision_of(item, where, R) for item in listed]
    by_number = {decision.phenotype: decision for decision in decisions}
    if len(by_number) < R:
        refuse(where, "decides about a phenotype twice")
    review = Review(
        fields.text("model", 64, re.compile("[0-9a-f]{64}").fullmatch, "is no fingerprint of a model"),
        tuple(by_number[r + 1] for r in range(R)),
        order_of(fields.items("order", R), where, R),
        fields.text("reviewer", NAME_LIMIT),
        fields.text("date", 10, is_day, "is no date such as 2026-01-31"),
    )
    check_merges(review, where)
    return review


def decision_of(item: Any, where: str, R: int) -> Decision:
    if not isinstance(item, Mapping):
        refuse(where, "has a decision that is no record")
    number = Fields(item, where, " of a decision").number("phenotype", 1, R)
    fields = Fields(item, where, f" of phenotype {number}")
    fields.only("phenotype", "name", "comment", "status", "merge_with")
    status = fields.text("status", 8, STATUSES.__contains__, "is none of " + ", ".join(STATUSES))
    target = item.get("merge_with")
    if (status == "merged") == (target is None):
        refuse(where, f"says {status} of phenotype {number} and {'no' if target is None else 'a'} merge_with")
    return Decision(
        number,
        fields.text("name", NAME_LIMIT),
        fields.text("comment", COMMENT_LIMIT),
        cast(Status, status),
        None if target is None else fields.number("merge_with", 1, R),
    )


def order_of(listed: list[Any], where: str, R: int) -> tuple[int, ...]:
    if not all(type(number) is int and 1 <= number <= R for number in listed):
        refuse(where, f"has an order that is not of phenotypes from 1 to {R}")
    if len(set(listed)) < len(listed):
        refuse(where, "has an order that names a phenotype twice")
    return tuple(listed)


def check_merges(review: Review, where: str) -> None:
    """Every chain of merges ends at a phenotype that stays."""
    for first in review.decisions:
        seen, decision = {first.phenotype}, first
        while decision.merge_with is not None:
            decision = review.decisions[decision.merge_with - 1]
            if decision.phenotype in seen:
                refuse(where, f"merges phenotype {first.phenotype} in a circle")
            seen.add(decision.phenotype)
        if decision is not first and decision.status == "rejected":
            refuse(
                where,
                f"merges phenotype {first.phenotype} with phenotype {decision.phenotype}, which it rejects",
            )


def is_day(text: str) -> bool:
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


class Fields:
    """One object of the file: its values, of the type and size they must have."""

    def __init__(self, found: Mapping[str, Any], where: str, of: str) -> None:
        self.found, self.where, self.of = found, where, of

    def only(self, *known: str) -> None:
        missing = [name for name in known if name not in self.found]
        if missing:
            refuse(self.where, f"lacks {missing[0]}{self.of}")
        if len(self.found) > len(known):
            refuse(self.where, f"has entries{self.of} that this version does not know")

    def number(self, name: str, low: int, high: int) -> int:
        value = self.found.get(name)
        if type(value) is not int or not low <= value <= high:
            refuse(self.where, f"has a {name}{self.of} that is no whole number from {low} to {high}")
        return value

    def text(
        self, name: str, limit: int, sound: Callable[[str], object] | None = None, fault: str = ""
    ) -> str:
        value = self.found.get(name)
        if not isinstance(value, str) or len(value) > limit:
            refuse(self.where, f"has a {name}{self.of} that is no text of at most {limit:,} characters")
        if sound is not None and not sound(value):
            refuse(self.where, f"has a {name}{self.of} that {fault}")
        # Half a letter, as cutting a text short can leave it, could not be written to any file.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def items(self, name: str, most: int) -> list[Any]:
        value = self.found.get(name)
        if not isinstance(value, list) or len(value) > most:
            refuse(self.where, f"has {name} that are no list of at most {most:,}")
        return value
