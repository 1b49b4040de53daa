"""Records as narrow tables on disk: patients and codes by number, each event in its visit, no row twice."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table


class Compact(NamedTuple):
    """Tables of the workspace; `patient` is an int32, the rank of the source's id from 0.

    Events are all that have a known patient, a date and a code, of every kind and in every code group or none,
    so that an index code may be anything; `Attrition.tally` counts those that become features.
    """

    people: "Table"  # patient, id, birth, death: date, then the source's further columns: text
    events: "Table"  # patient, time: timestamp, visit: int64 within the patient, code: int32, value: float
    codes: "pa.Table"  # vocabulary, code, kind, name (or null), events (how many); `code` is the row number
    periods: "Table | None"  # patient, start, end: date, both inclusive
    labels: "Table | None"  # patient, time: timestamp, value: float
    visits: "Table | None"  # patient, visit: the same int64 as in events, time: timestamp of the start
    facts: "Table | None"  # patient, time: timestamp, name, value: text, number: float
