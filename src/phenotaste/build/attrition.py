"""Attrition (patients, visits and events after each step of a build) and the data quality summary."""

from typing import TYPE_CHECKING, NamedTuple

from phenotaste.build.normalise import (
    AFTER_DEATH,
    BEFORE_BIRTH,
    ENCOUNTER,
    IN_FUTURE,
    Normalised,
    ReadCounts,
)
from phenotaste.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from ibis import Table


class Step(NamedTuple):
    """Counts after a step."""

    step: str
    patients: int
    visits: int
    events: int


class Attrition:
    """The steps of a build in order; a step that leaves no patient raises an InputError.

    `tally` has a row for each patient remaining after code groups are applied: patient, visits, events.
    Steps that select patients are counted from it, independently of the number of events.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.tally: Table | None = None

    def record(self, step: str, patients: int, visits: int, events: int, if_empty: str) -> None:
        """Add a step with its counts; `if_empty` is the message where nothing is left."""
        self.steps.append(Step(step, int(patients), int(visits), int(events)))
        if not patients or not events:
            raise InputError(if_empty)

    def keep(self, step: str, people: "Table", if_empty: str) -> None:
        """Add a step that keeps these patients (column `patient`; other columns and repeated rows are ignored).

        Patients without an event in a code group have been removed by an earlier step and are not counted.
        """
        if self.tally is None:
            raise RuntimeError("patients are selected after code groups are applied")
        left = self.tally.semi_join(people.select("patient"), "patient")
        counts = left.aggregate(
            patients=left.count(), visits=left.visits.sum().coalesce(0), events=left.events.sum().coalesce(0)
        )
        self.record(step, **counts.to_pyarrow().to_pylist()[0], if_empty=if_empty)

    def frame(self) -> "pd.DataFrame":
        """A row for each step: the counts after it, and the differences to the step before."""
        import pandas as pd

        table = pd.DataFrame(self.steps, columns=list(Step._fields))
        for name in Step._fields[1:]:
            table[f"{name}_removed"] = -table[name].diff().fillna(0).astype("int64")
        return table


def quality_summary(
    tables: Normalised, counts: ReadCounts, unmapped: "pd.DataFrame"
) -> dict[str, int | None]:
    """Data quality counts: of rows in the source, but without duplicates where they concern dates."""
    events = tables.events
    flags = {
        name: ((events.implausible & bit) > 0).sum().coalesce(0)
        for name, bit in (
            ("events_before_birth", BEFORE_BIRTH),
            ("events_after_death", AFTER_DEATH),
            ("events_in_the_future", IN_FUTURE),
        )
    }
    dates = events.aggregate(**flags, patients=events.patient.nunique()).to_pyarrow().to_pylist()[0]
    patients = tables.people.count().execute()
    return {
        "events": counts.events,
        "events_without_code": counts.without_code,
        "events_without_date": counts.without_date,
        "events_of_unknown_patients": counts.unknown_patients,
        "duplicate_events": counts.duplicates,
        "events_before_birth": int(dates["events_before_birth"]),
        "events_after_death": int(dates["events_after_death"]),
        "events_in_the_future": int(dates["events_in_the_future"]),
        "visits_without_codes": _visits_without_codes(tables, counts.unit),
        **_placement(counts),
        "patients": int(patients),
        "patients_without_events": int(patients) - int(dates["patients"]),
        "codes": tables.codes.num_rows,
        "unmapped_codes": len(unmapped),
        "unmapped_events": int(unmapped["events"].sum()),
    }


def _placement(counts: ReadCounts) -> dict[str, int | None]:
    """Events by the way they came to their encounter; None where visits are not encounters."""
    placed = counts.placed if counts.unit == ENCOUNTER else None
    return {
        "events_with_encounter": None if placed is None else placed.own,
        "events_covered_by_encounter": None if placed is None else placed.covered,
        "events_near_encounter": None if placed is None else placed.near,
        "events_by_day": None if placed is None else placed.by_day,
    }


def _visits_without_codes(tables: Normalised, unit: str) -> int | None:
    """The number of encounters without events; None where the source lists no encounters."""
    if tables.visits is None:
        return None
    events = tables.events
    encounter = events.visit if unit == ENCOUNTER else events.encounter  # visits include placed events
    used = events.select("patient", encounter=encounter).filter(encounter.notnull()).distinct()
    return int(tables.visits.anti_join(used, ["patient", "encounter"]).count().execute())
