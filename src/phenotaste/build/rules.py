"""Validation rules for settings, with the same messages for TOML files, flags and Python."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from phenotaste.build import durations
from phenotaste.errors import InputError
from phenotaste.validation import is_integer, is_number

MAX_AGE = 150  # years


class NotNullable:
    """Marks a setting that is never None."""


NOT_NULLABLE = NotNullable()


@dataclass(frozen=True)
class Rule:
    """`comment` describes the setting in files; `none` is the value that stands for None, which TOML lacks."""

    comment: str
    none: Any = field(default=NOT_NULLABLE, kw_only=True)

    @property
    def nullable(self) -> bool:
        return self.none is not NOT_NULLABLE

    def allowed(self) -> str:
        raise NotImplementedError

    def accepts(self, value: Any) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class Choice(Rule):
    choices: tuple[str, ...] = ()

    def allowed(self) -> str:
        return join_choices(self.choices)

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.choices


@dataclass(frozen=True)
class Visit(Choice):
    """One of the choices, or a number of minutes, hours, days or weeks."""

    def allowed(self) -> str:
        return f'{", ".join(map(literal, self.choices))} or a duration such as "6h"'

    def accepts(self, value: Any) -> bool:
        length = durations.parse(value) if isinstance(value, str) and not value.isdecimal() else None
        return super().accepts(value) or (
            length is not None and length.unit != durations.MONTH and length.number > 0
        )


@dataclass(frozen=True)
class Length(Rule):
    """A duration, as build.durations writes it."""

    minimum: int = 0

    def allowed(self) -> str:
        least = " above 0 such as" if self.minimum else " such as"
        return f'a duration{least} "48h", "30d" or "24mo"'

    def accepts(self, value: Any) -> bool:
        length = durations.parse(value) if isinstance(value, str) else None
        return length is not None and length.number >= self.minimum


@dataclass(frozen=True)
class Integer(Rule):
    minimum: int = 0
    maximum: int = 2**31 - 1

    def allowed(self) -> str:
        upper = f" to {self.maximum}" if self.maximum < 2**31 - 1 else " or more"
        return f"an integer, {self.minimum}{upper}"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, int) and is_integer(value, self.minimum, self.maximum)


@dataclass(frozen=True)
class Number(Rule):
    minimum: float = 0.0

    def allowed(self) -> str:
        return f"a number, {self.minimum:g} or more"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, int | float) and is_number(value, self.minimum)


@dataclass(frozen=True)
class Positive(Rule):
    def allowed(self) -> str:
        return "a number above 0"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, int | float) and is_number(value, 0.0) and value > 0


@dataclass(frozen=True)
class Quantiles(Rule):
    def allowed(self) -> str:
        return "two increasing numbers between 0 and 1"

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, tuple) or len(value) != 2:
            return False
        numbers = all(isinstance(item, int | float) and is_number(item, 0.0) for item in value)
        return numbers and 0 < value[0] < value[1] < 1


@dataclass(frozen=True)
class Flag(Rule):
    def allowed(self) -> str:
        return "true or false"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True)
class Text(Rule):
    def allowed(self) -> str:
        return "text"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True)
class Day(Rule):
    def allowed(self) -> str:
        return "a date such as 2010-12-31"

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value, re.ASCII):
            return False
        try:
            date.fromisoformat(value)
        except ValueError:
            return False
        return True


@dataclass(frozen=True)
class Texts(Rule):
    minimum: int = 0
    choices: tuple[str, ...] | None = None

    def allowed(self) -> str:
        listed = "texts" if self.choices is None else join_choices(self.choices)
        return f"a list of {'one or more of ' if self.minimum else ''}{listed}, all different"

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, tuple) or not all(isinstance(item, str) and item.strip() for item in value):
            return False
        known = self.choices is None or set(value) <= set(self.choices)
        return known and len(value) >= self.minimum and len(set(value)) == len(value)


@dataclass(frozen=True)
class Bands(Rule):
    def allowed(self) -> str:
        return f"an increasing list of integers from 0 to {MAX_AGE}"

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, tuple) or not value:
            return False
        integers = all(isinstance(item, int) and is_integer(item, max=MAX_AGE) for item in value)
        return integers and all(a < b for a, b in itertools.pairwise(value))


def check(record: Any, rules: Mapping[str, Rule], prefix: str) -> None:
    """Raise an InputError for the first value of a record that its rule does not accept."""
    for name, rule in rules.items():
        value = getattr(record, name)
        if not (value is None and rule.nullable) and not rule.accepts(value):
            other = f", or {literal(rule.none)}" if rule.nullable else ""
            raise InputError(f"{prefix}{name} must be {rule.allowed()}{other}.")


def join_choices(words: Sequence[str]) -> str:
    quoted = [literal(word) for word in words]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
