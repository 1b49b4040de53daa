"""Strict reading of the JSON of a review: limited sizes, exact types, no unknown entries."""

import datetime
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from phenotaste.errors import InputError

MAX_FILE_SIZE = 32 * 2**20


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
            refuse(self.where, f"{name}{self.owner} is not a list of at most {max_length:,}")
        return value

    def numbers(self, name: str, high: int) -> tuple[int, ...]:
        """A list of different numbers from 1."""
        values = self.items(name, high)
        if not all(type(number) is int and 1 <= number <= high for number in values):
            refuse(self.where, f"{name}{self.owner} holds numbers that are not from 1 to {high}")
        if len(set(values)) < len(values):
            refuse(self.where, f"{name}{self.owner} names a number twice")
        return tuple(values)
