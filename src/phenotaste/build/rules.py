"""What a setting may be, and the sentence for what it may not, the same from a TOML file, a flag and Python."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from phenotaste.errors import InputError

OLDEST = 150  # years


class Absent:
    """The word for None of a setting that is never None."""


ABSENT = Absent()


@dataclass(frozen=True)
class Rule:
    """`comment` explains the setting in files; `none` is how they say None, for which TOML has no word."""

    comment: str
    none: Any = field(default=ABSENT, kw_only=True)

    @property
    def nullable(self) -> bool:
        return self.none is not ABSENT

    def allowed(self) -> str:
        raise NotImplementedError

    def holds(self, value: Any) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class Choice(Rule):
    choices: tuple[str, ...] = ()

    def allowed(self) -> str:
        return either(self.choices)

    def holds(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.choices


@dataclass(frozen=True)
class Whole(Rule):
    least: int = 0
    most: int = 2**31 - 1

    def allowed(self) -> str:
        upper = f" to {self.most}" if self.most < 2**31 - 1 else " or more"
        return f"a whole number, {self.least}{upper}"

    def holds(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most


@dataclass(frozen=True)
class Number(Rule):
    least: float = 0.0

    def allowed(self) -> str:
        return f"a number, {self.least:g} or more"

    def holds(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return math.isfinite(value) and value >= self.least


@dataclass(frozen=True)
class Flag(Rule):
    def allowed(self) -> str:
        return "true or false"

    def holds(self, value: Any) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True)
class Text(Rule):
    def allowed(self) -> str:
        return "text"

    def holds(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True)
class Day(Rule):
    def allowed(self) -> str:
        return "a date such as 2010-12-31"

    def holds(self, value: Any) -> bool:
        if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value, re.ASCII):
            return False
        try:
            date.fromisoformat(value)
        except ValueError:
            return False
        return True


@dataclass(frozen=True)
class Texts(Rule):
    least: int = 0
    choices: tuple[str, ...] | None = None

    def allowed(self) -> str:
        listed = "texts" if self.choices is None else either(self.choices)
        return f"a list of {'one or more of ' if self.least else ''}{listed}, none twice"

    def holds(self, value: Any) -> bool:
        if not isinstance(value, tuple) or not all(isinstance(item, str) and item.strip() for item in value):
            return False
        known = self.choices is None or set(value) <= set(self.choices)
        return known and len(value) >= self.least and len(set(value)) == len(value)


@dataclass(frozen=True)
class Bands(Rule):
    def allowed(self) -> str:
        return f"a rising list of whole numbers from 0 to {OLDEST}"

    def holds(self, value: Any) -> bool:
        if not isinstance(value, tuple) or not value:
            return False
        whole = all(isinstance(item, int) and not isinstance(item, bool) for item in value)
        ascending = whole and all(a < b for a, b in itertools.pairwise(value))
        return ascending and value[0] >= 0 and value[-1] <= OLDEST


def check(record: Any, rules: Mapping[str, Rule], prefix: str) -> None:
    """Refuse the first value of a record that its rule does not allow."""
    for name, rule in rules.items():
        value = getattr(record, name)
        if not (value is None and rule.nullable) and not rule.holds(value):
            other = f", or {literal(rule.none)}" if rule.nullable else ""
            raise InputError(f"{prefix}{name} must be {rule.allowed()}{other}.")


def either(words: Sequence[str]) -> str:
    quoted = [literal(word) for word in words]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
