"""Names of features as they may be shown: no dates, no control codes, and all ages from 90 up in one band."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from phenotaste.disclosure import AGE_WORDS, OLDEST, printable
from phenotaste.report.schema import FeatureGroup

GROUPS: dict[str, FeatureGroup] = {"Dx_": "diagnosis", "Rx_": "medication", "Px_": "procedure"}

DATE = re.compile(
    r"(?<!\d)(?:(?:19|20)\d\d([-/.])(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12]\d|3[01])"
    r"|(?:0?[1-9]|[12]\d|3[01])([-/.])(?:0?[1-9]|[12]\d|3[01])\2(?:19|20)\d\d"
    r"|(?<==)(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))(?!\d)"
)
MOMENT = r"\b(?:at|index|first|last|visit|entry|baseline|diagnosis|enrolment|enrollment)\b"
# The word "age", then only punctuation and words that go with an age, then a number.
AGE = re.compile(
    rf"(?i)(?<![a-z])(ages?|aged)((?:[^a-z0-9]|(?:{AGE_WORDS})(?![a-z]))*?)(\d{{1,3}})(?!\d)(.*)$", re.S
)
UP_TO = re.compile(r"(?i)(<|under|less|below|up[^a-z]*to)")
INCLUDED = re.compile(r"(?i)(=\s*$|equal|up[^a-z]*to)")
BEYOND = re.compile(r"(?i)(>|over|above|greater|older|more|least)")
NEXT_NUMBER = re.compile(r"(?i)^(?:[^a-z0-9]|(?:to|and|years?|yrs?)(?![a-z]))*?(\d{1,3})(?!\d)")
OPEN_END = re.compile(
    r"(?i)^[^a-z0-9]*(\+|(?:years?|yrs?)?[^a-z0-9+]*(?:\+|plus|and|or)?[^a-z0-9]*"
    r"(?:over|above|older|more|plus|up))"
)


class AgeBand(NamedTuple):
    column: str  # the text before the number
    low: int
    high: float


def group_of(name: str) -> tuple[FeatureGroup, str]:
    """Return the kind of code of a temporal feature, and its name without the prefix for that kind."""
    for prefix, group in GROUPS.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            return group, printable(name[len(prefix) :])
    return "other", printable(name)


def static_label(name: str) -> str:
    """Return the name of a static feature without the prefix of the paper's tables and without underscores."""
    text = printable(name)
    return (text.removeprefix("Static_") or text).replace("_", " ")


def has_date(name: str) -> bool:
    return DATE.search(name) is not None


def without_dates(text: str) -> str:
    return DATE.sub("(date)", text)


def age_band(name: str) -> AgeBand | None:
    """Parse the range of ages in the name of a static feature; None if there is none.

    >>> age_band("age=93"), age_band("Static_age_between_90_94").low, age_band("age: 95+").high
    (AgeBand(column='age=', low=93, high=93), 90, inf)
    >>> age_band("stage 93"), age_band("age-related disorders [93.]")
    (None, None)
    """
    match = AGE.search(name)
    if match is None:
        return None
    before, number, rest = match[2], int(match[3]), match[4]
    moment = re.findall(MOMENT, before.replace("_", " "), re.I)
    column = " ".join([name[: match.start(1)] + match[1], *moment]) + "="
    if UP_TO.search(before):
        return AgeBand(column, 0, number if INCLUDED.search(before) else number - 1)
    if BEYOND.search(before) or OPEN_END.match(rest):
        return AgeBand(column, number, float("inf"))
    second = NEXT_NUMBER.match(rest)
    return AgeBand(column, number, max(number, int(second[1])) if second else number)


def old_ages(names: Sequence[Any]) -> dict[str, list[int]]:
    """Map the name of each merged band of old ages to the positions of the static features it replaces."""
    reaching: dict[str, list[tuple[int, AgeBand]]] = {}
    for position, name in enumerate(names):
        band = age_band(str(name))
        if band is not None and band.high >= OLDEST:
            reaching.setdefault(band.column, []).append((position, band))
    merged = {}
    for column, bands in reaching.items():
        low = min(band.low for _, band in bands)
        if len(bands) > 1 or low > OLDEST or bands[0][1].high < float("inf"):
            merged[f"{column}{min(low, OLDEST)}+"] = [position for position, _ in bands]
    return merged
