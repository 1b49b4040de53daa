"""Index dates and outcomes that the user or the source states: one row for each patient, the earliest."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table

TITLE = "the label table"
KINDS = {"patient": "id", "time": "time", "value": "number"}


class Labels(NamedTuple):
    """A row for each patient, sorted by patient."""

    patient: np.ndarray
    date: np.ndarray
    value: np.ndarray  # 1 case, 0 control, NaN not stated
    ever_case: np.ndarray  # also by a later row


def read(workspace: Workspace, path: str, people: "Table", notes: list[str]) -> "Table":
    """The label table of a file, with its patients by number."""
    import ibis

    table = typed_tables.load(workspace, Path(path), TITLE, KINDS, ("patient", "time"))
    if "value" not in table.columns:
        table = table.mutate(value=ibis.null("float64"))
    numbers = people.select(number=people.patient, patient=people.id.cast("string"))
    joined = table.left_join(numbers, "patient")
    strangers = int(joined.number.isnull().sum().fill_null(0).to_pyarrow().as_py())
    if strangers:
        notes.append(
            f"{strangers:,} rows of {TITLE} are of patients who are not in the data; they do not count."
        )
    known = joined.filter(joined.number.notnull())
    return known.select(patient=known.number, time=known.time, value=known.value)


def earliest(table: "Table", notes: list[str]) -> Labels:
    """Each patient's first row; of two on one day the case's, so that the order of rows does not matter."""
    timed = table.filter(table.time.notnull(), table.patient.notnull())
    rows = timed.select(
        "patient", date=timed.time.cast("date"), value=timed.value.cast("float64")
    ).to_pyarrow()
    patient = rows["patient"].to_numpy().astype(np.int64)
    date = rows["date"].to_numpy().astype("datetime64[D]")
    value = rows["value"].to_numpy().astype(np.float64)
    stated = value[~np.isnan(value)]
    if not np.isin(stated, (0.0, 1.0)).all():
        raise InputError(
            f"column value of {TITLE} holds other numbers than 0 (control) and 1 (case); correct it."
        )
    untimed = int(table.count().to_pyarrow().as_py()) - len(patient)
    if untimed:
        notes.append(f"{untimed:,} rows of {TITLE} have no time; they do not count.")
    order = np.lexsort((-value, date, patient))  # NaN last
    patient, date, value = patient[order], date[order], value[order]
    first = np.unique(patient, return_index=True)[1]
    repeated = len(patient) - len(first)
    if repeated:
        notes.append(f"{repeated:,} rows of {TITLE} repeat a patient; the earliest of each was taken.")
    ever_case = np.isin(patient[first], patient[value == 1])
    return Labels(patient[first], date[first], value[first], ever_case)
