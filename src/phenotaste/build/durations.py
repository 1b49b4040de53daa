"""Lengths of time with a unit: "48h", "30d", "24mo"; a number alone is months."""

import re
from typing import Any, NamedTuple

import numpy as np

MINUTES = {"min": 1, "h": 60, "d": 24 * 60, "w": 7 * 24 * 60}  # months have no fixed length
MONTH = "mo"
NAMES = {"min": "minute", "h": "hour", "d": "day", "w": "week", MONTH: "month"}
SPELLINGS = {
    **{spelling: unit for unit, name in NAMES.items() for spelling in (unit, name, f"{name}s")},
    "": MONTH,
    "mon": MONTH,
}
LONGEST = 1200  # months
MINUTES_IN_MONTH = 31 * 24 * 60
TEXT = re.compile(r"(\d{1,12})\s*([a-z]*)", re.ASCII)


class Duration(NamedTuple):
    """A number of one unit of NAMES.

    Examples
    --------
    >>> from phenotaste.build.durations import Duration
    >>> Duration(48, "h").text(), str(Duration(1, "mo"))
    ('48h', '1 month')
    """

    number: int
    unit: str

    @property
    def exact(self) -> bool:
        """Whether it is counted from a time of the day; days and longer units are counted from dates."""
        return self.unit in ("min", "h") and self.number > 0

    @property
    def minutes(self) -> int:
        """The length in minutes; a month is at most 31 days."""
        return self.number * MINUTES.get(self.unit, MINUTES_IN_MONTH)

    def text(self) -> str:
        return f"{self.number}{self.unit}"

    def __str__(self) -> str:
        return f"{self.number} {NAMES[self.unit]}{'' if self.number == 1 else 's'}"


def parse(value: Any) -> Duration | None:
    """The duration that a text or a number of months states; None where it states none.

    >>> parse("48 hours"), parse(24), parse("2 fortnights")
    (Duration(number=48, unit='h'), Duration(number=24, unit='mo'), None)
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        value = str(value)
    match = TEXT.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None or match[2] not in SPELLINGS:
        return None
    duration = Duration(int(match[1]), SPELLINGS[match[2]])
    return duration if duration.minutes <= LONGEST * MINUTES_IN_MONTH else None


def normalised(value: Any) -> Any:
    """The text in which settings keep a duration; other values unchanged, for the rules to refuse."""
    duration = parse(value)
    return value if duration is None else duration.text()


def known(text: str) -> Duration:
    """The duration of a setting, which its rule has validated."""
    duration = parse(text)
    assert duration is not None
    return duration


def before(times: np.ndarray, duration: Duration, sign: int = -1) -> np.ndarray:
    """Subtract a duration from times, or add it with `sign` 1."""
    if duration.unit == MONTH:
        return add_months(times, sign * duration.number)
    minutes = np.timedelta64(sign * duration.number * MINUTES[duration.unit], "m")
    return np.asarray(times, "datetime64[us]") + minutes


def add_months(times: np.ndarray, months: int) -> np.ndarray:
    """Add calendar months, clipped to the end of the month: 31 August minus 6 months is 28 or 29 February.

    Added in one step, as databases do; two steps can give a different day. The time of day is kept.
    """
    times = np.asarray(times)
    days = times.astype("datetime64[D]")
    month = days.astype("datetime64[M]")
    other = month + months
    last = (other + 1).astype("datetime64[D]") - 1
    moved = np.minimum(other.astype("datetime64[D]") + (days - month.astype("datetime64[D]")), last)
    return moved if times.dtype == days.dtype else moved + (times - days)
