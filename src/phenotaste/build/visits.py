"""What counts as one visit: an encounter, a day, a week from Monday, or a month; as a number within the patient."""

from typing import TYPE_CHECKING

from phenotaste.build.settings import VISITS
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from ibis import Value

ENCOUNTER, DAY, WEEK, MONTH = VISITS
HASH_BITS = 2**62 - 1
BELOW_ALL_HASHES = 2**40  # takes days without an encounter to negative numbers, where no hash lies


def chosen_unit(wanted: str | None, events: int, in_encounters: int) -> str:
    """The unit asked for, else encounters where most events have one, else days."""
    if wanted is not None and wanted not in VISITS:
        raise InputError(f"visit = {wanted!r} is unknown; use one of {', '.join(VISITS)}.")
    return wanted or (ENCOUNTER if 2 * in_encounters >= max(1, events) else DAY)


def encounter_number(visit: "Value") -> "Value":
    """A source's encounter id as a number of 62 bits, null without one.

    Two encounters of one patient share a number with a probability below one in 10^12.
    """
    import ibis

    return ibis.ifelse(visit.isnull(), ibis.null("int64"), visit.hash() & HASH_BITS)


def visit_number(unit: str, time: "Value", encounter: "Value") -> "Value":
    """Which visit of its patient an event belongs to; visits by day, week and month are numbered in order of time."""
    day = time.cast("date").epoch_days().cast("int64")
    if unit == ENCOUNTER:
        return encounter.coalesce(day - BELOW_ALL_HASHES)
    if unit == MONTH:
        return time.year().cast("int64") * 12 + time.month()
    if unit == WEEK:
        return ((day + 3) / 7).floor().cast("int64")  # 1 January 1970 was a Thursday
    return day
