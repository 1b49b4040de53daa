"""Events without an encounter: placed in the encounter that covers their time, or in the nearest one.

A midnight stands for its whole day: sources write dates without a time so.
"""

from typing import TYPE_CHECKING, NamedTuple

from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table, Value

COVERED, NEAR = "covered", "near"

# Encounters that overlap form a group. Groups of one patient are disjoint, so that an event is compared with two of
# them at most, whatever the number of encounters.
GROUPED = """
WITH ordered AS (
  SELECT *, max("end") OVER earlier AS end_before FROM {encounters}
  WINDOW earlier AS (PARTITION BY patient ORDER BY start, "end", encounter
                     ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
SELECT patient, encounter, start, "end", sum(CASE WHEN start <= end_before THEN 0 ELSE 1 END) OVER so_far AS number
FROM ordered
WINDOW so_far AS (PARTITION BY patient ORDER BY start, "end", encounter ROWS UNBOUNDED PRECEDING)
"""
GROUPS = """
SELECT patient, number, min(start) AS start, max("end") AS "end", count(*) AS encounters,
       arg_min(encounter, (start, "end", encounter)) AS first, arg_max(encounter, ("end", start, encounter)) AS last
FROM {grouped} GROUP BY patient, number
"""
# For each time: the last group that starts before its end, and the first that starts after it.
NEIGHBOURS = """
SELECT times.patient, times.time, times.until, before.number, before.encounters, before.last, after.first,
       before."end" >= times.time AS covered,
       CASE WHEN before."end" < times.time THEN times.time - before."end" END AS since_end,
       after.start - times.until AS to_start
FROM {times} AS times
ASOF LEFT JOIN {groups} AS before ON times.patient = before.patient AND times.until >= before.start
ASOF LEFT JOIN {groups} AS after ON times.patient = after.patient AND times.until < after.start
"""
# Of several encounters that cover a time, the one that starts last: the inner one of two, such as a stay within a stay.
PLACED = """
SELECT found.patient, found.time, arg_max(inside.encounter, (inside.start, -epoch_us(inside."end"), inside.encounter))
         AS placed, '{covered}' AS how
FROM {neighbours} AS found JOIN {grouped} AS inside
  ON found.patient = inside.patient AND found.number = inside.number
  AND inside.start <= found.until AND inside."end" >= found.time
WHERE found.covered AND found.encounters > 1 GROUP BY found.patient, found.time
UNION ALL
SELECT patient, time, last, '{covered}' FROM {neighbours} WHERE covered AND encounters = 1
UNION ALL
SELECT patient, time, CASE WHEN coalesce(since_end <= to_start, since_end IS NOT NULL) THEN last ELSE first END,
       '{near}'
FROM {neighbours} WHERE covered IS NOT TRUE AND least(since_end, to_start) <= to_microseconds({tolerance})
"""


class Placed(NamedTuple):
    """How events came to their encounters; numbers of events without duplicates."""

    own: int
    covered: int = 0  # placed in an encounter that covers their time
    near: int = 0  # placed in the nearest encounter within the tolerance
    by_day: int = 0  # in no encounter: visits by day

    @property
    def in_encounters(self) -> int:
        return self.own + self.covered + self.near

    def note(self, hours: float) -> str | None:
        """A sentence for the user; None where every event has an encounter of its own."""
        if not self.covered + self.near + self.by_day:
            return None
        return (
            f"{self.own:,} events have an encounter of their own; {self.covered:,} were placed in the encounter that "
            f"covers their time and {self.near:,} in the nearest one within {hours:g} hours; {self.by_day:,} are in no "
            "encounter and form visits by day."
        )

    def days_note(self) -> str:
        """A sentence for the user where visits are by date because few events are in an encounter."""
        total = self.in_encounters + self.by_day
        return f"only {self.in_encounters:,} of {total:,} events are in or near an encounter: visits are by date."


def place(workspace: Workspace, events: "Table", encounters: "Table", hours: float) -> tuple["Table", Placed]:
    """The events with the column `placed`: their own encounter, else one that covers or is near their time."""
    times = events.filter(events.encounter.isnull()).select("patient", "time").distinct()
    tables = {
        "times": workspace.materialise(times.mutate(until=end_of_day(times.time)), "times to place"),
        "encounters": workspace.materialise(encounters, "encounter intervals"),
    }
    for name, query in (
        ("grouped", GROUPED),
        ("groups", GROUPS),
        ("neighbours", NEIGHBOURS),
        ("placed", PLACED),
    ):
        words = {"covered": COVERED, "near": NEAR, "tolerance": round(hours * 3_600_000_000)}
        text = query.format(**{key: f'"{table.get_name()}"' for key, table in tables.items()}, **words)
        tables[name] = workspace.materialise_sql(text, f"placement {name}")
    placed = tables["placed"].rename(placed_patient="patient", placed_time="time")
    joined = events.left_join(
        placed,
        [
            events.patient == placed.placed_patient,
            events.time == placed.placed_time,
            events.encounter.isnull(),
        ],
    )
    filled = joined.select(*events.columns, "how", placed=joined.encounter.coalesce(joined.placed))
    filled = workspace.materialise(filled, "placed events")
    counts = filled.aggregate(
        own=filled.encounter.count(),
        covered=filled.count(where=filled.how == COVERED),
        near=filled.count(where=filled.how == NEAR),
        by_day=filled.count(where=filled.placed.isnull()),
    )
    return filled.drop("how"), Placed(**counts.to_pyarrow().to_pylist()[0])


def intervals(events: "Table", visits: "Table | None") -> "Table":
    """patient, encounter, start, end: as listed, else from the first to the last event of the encounter."""
    known = events.filter(events.encounter.notnull())
    seen = known.group_by("patient", "encounter").aggregate(first=known.time.min(), last=known.time.max())
    if visits is None:
        return seen.select("patient", "encounter", start=seen["first"], end=end_of_day(seen["last"]))
    listed = visits.group_by("patient", "encounter").aggregate(
        start=visits.time.min(), end=visits.end_time.max()
    )
    joined = listed.outer_join(seen, ["patient", "encounter"])
    start = joined.start.coalesce(joined["first"])
    end = joined.end.coalesce(joined["last"]).coalesce(start)
    rows = joined.select(
        patient=joined.patient.coalesce(joined.patient_right),
        encounter=joined.encounter.coalesce(joined.encounter_right),
        start=start,
        end=(end < start).ifelse(start, end),
    )
    rows = rows.filter(rows.start.notnull(), rows.encounter.notnull())
    return rows.mutate(end=end_of_day(rows.end))


def end_of_day(time: "Value") -> "Value":
    """The last microsecond of the day for a time that is a date, else the time itself."""
    import ibis

    is_date = time == time.truncate("D")
    return is_date.ifelse(time + ibis.interval(days=1) - ibis.interval(microseconds=1), time)
