"""Records of a few rows, to test what is built from them."""

import pandas as pd
import pyarrow as pa

from phenotaste.sources.records import Records

TIME = pa.timestamp("us")
TYPES = {
    "events": {
        "patient": pa.string(),
        "time": TIME,
        "visit": pa.string(),
        "code": pa.string(),
        "vocabulary": pa.string(),
        "kind": pa.string(),
        "value": pa.float64(),
    },
    "persons": {
        "patient": pa.string(),
        "birth": pa.date32(),
        "death": pa.date32(),
        "sex": pa.string(),
        "race": pa.string(),
        "ethnicity": pa.string(),
    },
    "facts": {
        "patient": pa.string(),
        "time": TIME,
        "name": pa.string(),
        "value": pa.string(),
        "number": pa.float64(),
    },
    "visits": {"patient": pa.string(), "visit": pa.string(), "time": TIME, "end_time": TIME},
    "periods": {"patient": pa.string(), "start": pa.date32(), "end": pa.date32()},
    "labels": {"patient": pa.string(), "time": TIME, "value": pa.float64()},
    "measurements": {
        "patient": pa.string(),
        "time": TIME,
        "visit": pa.string(),
        "code": pa.string(),
        "vocabulary": pa.string(),
        "value": pa.float64(),
        "unit": pa.string(),
        "low": pa.float64(),
        "high": pa.float64(),
        "flag": pa.string(),
    },
    "names": {"vocabulary": pa.string(), "code": pa.string(), "name": pa.string()},
}


def table(workspace, name, rows):
    """Rows (dicts or a DataFrame) as a table of the workspace; columns they lack are null, others are text."""
    rows = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else list(rows)
    kinds = dict(TYPES[name])
    for row in rows:
        kinds |= {column: pa.string() for column in row if column not in kinds}
    columns = {
        column: pa.array([_plain(row.get(column)) for row in rows], kind) for column, kind in kinds.items()
    }
    return workspace.ingest(pa.table(columns).to_reader(), f"simulated {name}")


def _plain(value):
    if value is None or value is pd.NaT or value != value:
        return None
    return pd.Timestamp(value).to_pydatetime() if isinstance(value, pd.Timestamp) else value


def records(workspace, events, persons, **others):
    tables = {name: table(workspace, name, rows) for name, rows in others.items() if name in TYPES}
    plain = {name: value for name, value in others.items() if name not in TYPES}
    return Records(
        events=table(workspace, "events", events),
        persons=table(workspace, "persons", persons),
        **tables,
        **plain,
    )


def event(patient, time, code="401", visit=None, kind="diagnosis", vocabulary="X"):
    return {
        "patient": patient,
        "time": None if time is None else pd.Timestamp(time),
        "visit": visit,
        "code": code,
        "vocabulary": vocabulary,
        "kind": kind,
    }


def person(patient, birth=None, death=None, **others):
    def day(text):
        return None if text is None else pd.Timestamp(text).date()

    return {"patient": patient, "birth": day(birth), "death": day(death), **others}
