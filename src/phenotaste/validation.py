"""Checks of settings: every refusal is one sentence, `name=value must be ...`."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Literal

from phenotaste.errors import InputError

Closed = Literal["both", "left", "right", "neither"]


def is_integer(value: Any, min: int = 0, max: float = math.inf) -> bool:
    """Return whether a value is an integer, and not a bool, from `min` to `max`."""
    return isinstance(value, Integral) and not isinstance(value, bool) and min <= int(value) <= max


def is_number(value: Any, min: float = 0, max: float = math.inf, closed: Closed = "both") -> bool:
    """Return whether a value is a finite number in an interval that contains the bounds that are `closed`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        number = float(value)
    except OverflowError:
        return False
    above = min <= number if closed in ("both", "left") else min < number
    below = number <= max if closed in ("both", "right") else number < max
    return above and below and math.isfinite(number)


def check_integer(name: str, value: Any, *, min: int = 0, max: float = math.inf) -> int:
    """Return the value as int; raise InputError if it is not an integer from `min` to `max`.

    Examples
    --------
    >>> from phenotaste.validation import check_integer
    >>> check_integer("rank", 0, min=1)
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: rank=0 must be an integer of at least 1.
    """
    if not is_integer(value, min, max):
        bounds = f"of at least {min}" if math.isinf(max) else f"from {min} to {max:,}"
        raise InputError(f"{name}={value!r} must be an integer {bounds}.")
    return int(value)


def check_number(
    name: str, value: Any, *, min: float = 0, max: float = math.inf, closed: Closed = "both"
) -> float:
    """Return the value as float; raise InputError if it is not a finite number in the interval.

    Examples
    --------
    >>> from phenotaste.validation import check_number
    >>> check_number("dropout", 1, max=1, closed="left")
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: dropout=1 must be a number of at least 0 and below 1.
    """
    if not is_number(value, min, max, closed):
        lower = f"of at least {min:g}" if closed in ("both", "left") else f"above {min:g}"
        upper = f"at most {max:g}" if closed in ("both", "right") else f"below {max:g}"
        kind, bounds = ("finite number", lower) if math.isinf(max) else ("number", f"{lower} and {upper}")
        raise InputError(f"{name}={value!r} must be a {kind} {bounds}.")
    return float(value)


def check_choice(name: str, value: Any, choices: Sequence[str | None]) -> None:
    """Raise InputError if the value is none of the choices.

    Examples
    --------
    >>> from phenotaste.validation import check_choice
    >>> check_choice("init", "zeros", ("nmf", "random"))
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: init='zeros' must be one of 'nmf', 'random'.
    """
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise InputError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}.")


def check_seed(value: Any) -> int:
    """Return `random_state` as int; None and generators are refused, as a resumed run could not repeat their draws."""
    if not is_integer(value):
        raise InputError(
            f"random_state={value!r} must be an integer of at least 0, so that a resumed run repeats the same draws."
        )
    return int(value)
