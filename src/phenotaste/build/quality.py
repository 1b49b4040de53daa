"""What is odd about the data, counted: said in a summary, and dropped only where the settings ask for it."""

from typing import TYPE_CHECKING

from phenotaste.build.normalise import AFTER_DEATH, BEFORE_BIRTH, IN_FUTURE, Compact, Reading

if TYPE_CHECKING:
    import pandas as pd


def summary(compact: Compact, reading: Reading, unmapped: "pd.DataFrame") -> dict[str, int | None]:
    """Counts of events are of rows in the source; those about dates leave duplicates out."""
    events = compact.events
    doubts = {
        name: ((events.doubt & bit) > 0).sum().coalesce(0)
        for name, bit in (
            ("events_before_birth", BEFORE_BIRTH),
            ("events_after_death", AFTER_DEATH),
            ("events_in_the_future", IN_FUTURE),
        )
    }
    dates = events.aggregate(**doubts, patients=events.patient.nunique()).to_pyarrow().to_pylist()[0]
    patients = compact.people.count().execute()
    return {
        "events": reading.events,
        "events_without_code": reading.without_code,
        "events_without_date": reading.without_date,
        "events_of_unknown_patients": reading.unknown_patients,
        "duplicate_events": reading.duplicates,
        "events_before_birth": int(dates["events_before_birth"]),
        "events_after_death": int(dates["events_after_death"]),
        "events_in_the_future": int(dates["events_in_the_future"]),
        "visits_without_codes": _visits_without_codes(compact),
        "patients": int(patients),
        "patients_without_events": int(patients) - int(dates["patients"]),
        "codes": compact.codes.num_rows,
        "unmapped_codes": len(unmapped),
        "unmapped_events": int(unmapped["events"].sum()),
    }


def _visits_without_codes(compact: Compact) -> int | None:
    """Encounters that no event points to; None where the source does not list its encounters."""
    if compact.visits is None:
        return None
    used = compact.events.select("patient", "encounter").filter(compact.events.encounter.notnull()).distinct()
    return int(compact.visits.anti_join(used, ["patient", "encounter"]).count().execute())
