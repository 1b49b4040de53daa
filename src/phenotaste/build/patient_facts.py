"""Arrays indexed by patient number: index codes, observation periods, encounters, dates, and stated labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build import code_sets
from phenotaste.build.matching import Encounters
from phenotaste.build.normalise import Normalised
from phenotaste.build.windows import Periods
from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table

LABEL_TABLE = "the label table"
LABEL_TYPES = {"patient": "id", "time": "time", "value": "number"}


class Occurrences(NamedTuple):
    """Days with an index code, sorted by patient and day; `first` is NaT for patients without one."""

    patient: np.ndarray
    day: np.ndarray
    first: np.ndarray

    def between(self, patient: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Whether each patient has an index code from the day `start` up to, but excluding, the day `end`."""
        step = np.int64(2**32)
        key = self.patient * step + self.day.astype(np.int64)
        low, high = (np.searchsorted(key, patient * step + day.astype(np.int64)) for day in (start, end))
        return high > low


class PatientFacts:
    """Queries whose results take a few numbers per patient, independently of the number of events."""

    def __init__(self, workspace: Workspace, tables: Normalised) -> None:
        self.workspace, self.tables = workspace, tables
        self.n_people = int(tables.people.count().to_pyarrow().as_py())

    def occurrences(self, patterns: Sequence[str], notes: list[str]) -> Occurrences:
        events, first = self.tables.events, np.full(self.n_people, "NaT", "datetime64[D]")
        if not patterns:
            return Occurrences(np.array([], np.int64), np.array([], "datetime64[D]"), first)
        codes = np.flatnonzero(code_sets.matching(self.tables.codes, patterns, notes))
        hits = events.semi_join(self.table("code", codes), "code")
        patient, day = _patient_days(
            hits.select("patient", day=hits.time.cast("date")).distinct().to_pyarrow()
        )
        order = np.lexsort((day, patient))
        patient, day = patient[order].astype(np.int64), day[order]
        distinct, at = np.unique(patient, return_index=True)
        first[distinct] = day[at]
        return Occurrences(patient, day, first)

    def periods(self) -> Periods:
        """Observation periods; where the source has none, they start at the first event or encounter."""
        table = self.tables.periods
        if table is not None:
            rows = table.select("patient", "start", "end").to_pyarrow()
            if len(rows):
                start, end = (rows[name].to_numpy().astype("datetime64[D]") for name in ("start", "end"))
                return Periods.merged(self.n_people, rows["patient"].to_numpy(), start, end)
        seen = self._active_days()
        seen = seen.group_by("patient").aggregate(day=seen.day.min())
        patient, day = _patient_days(seen.to_pyarrow())
        return Periods.merged(self.n_people, patient, day, np.full(len(day), "NaT", "datetime64[D]"))

    def encounters(self, candidate: np.ndarray, dates: np.ndarray, within: int) -> Encounters:
        candidates = self.table("patient", np.flatnonzero(candidate))
        days = self._active_days()
        low, high = (dates.min() - within).item(), (dates.max() + within).item()
        near = days.filter(days.day.between(low, high)).semi_join(candidates, "patient").distinct()
        return Encounters(*_patient_days(near.to_pyarrow()))

    def dates(self, column: str) -> np.ndarray:
        return self._person(column).to_numpy().astype("datetime64[D]")

    def strata(self, same: Sequence[str]) -> np.ndarray:
        """A number for each combination of the columns that must agree; missing values agree with each other."""
        stratum = np.zeros(self.n_people, np.int64)
        for column in same:
            if column not in self.tables.people.columns or column in ("patient", "id"):
                listed = ", ".join(
                    name for name in self.tables.people.columns if name not in ("patient", "id")
                )
                raise InputError(f"there is no column {column} to match on; choose from: {listed}.")
            levels = self._person(column).combine_chunks().dictionary_encode()
            level = levels.indices.fill_null(len(levels.dictionary)).to_numpy()
            stratum = np.unique(stratum * (len(levels.dictionary) + 1) + level, return_inverse=True)[1]
        return stratum

    def _active_days(self) -> "Table":
        events, visits = self.tables.events, self.tables.visits
        days = events.select("patient", day=events.time.cast("date"))
        if visits is not None:
            days = days.union(visits.select("patient", day=visits.time.cast("date")))
        return days.filter(days.day.notnull())

    def _person(self, column: str) -> "pa.ChunkedArray":
        return self.tables.people.order_by("patient").select(column).to_pyarrow()[column]

    def table(self, column: str, numbers: np.ndarray) -> "Table":
        """A table of one column to join with; replaces the previous table of this column."""
        import pyarrow as pa

        return self.workspace.ingest(
            pa.table({column: pa.array(numbers, pa.int32())}).to_reader(), f"selected_{column}"
        )


def _patient_days(table: "pa.Table") -> tuple[np.ndarray, np.ndarray]:
    return table["patient"].to_numpy(), table["day"].to_numpy().astype("datetime64[D]")


class Labels(NamedTuple):
    """Stated index dates and outcomes: a row for each patient, sorted by patient."""

    patient: np.ndarray
    date: np.ndarray
    value: np.ndarray  # 1 case, 0 control, NaN unknown
    ever_case: np.ndarray  # in any row of the patient


def read_label_table(workspace: Workspace, path: str, people: "Table", notes: list[str]) -> "Table":
    """Read a label file, with the patient numbers in place of the ids."""
    import ibis

    table = typed_tables.load(workspace, Path(path), LABEL_TABLE, LABEL_TYPES, ("patient", "time"))
    if "value" not in table.columns:
        table = table.mutate(value=ibis.null("float64"))
    numbers = people.select(number=people.patient, patient=people.id.cast("string"))
    joined = table.left_join(numbers, "patient")
    unlisted = int(joined.number.isnull().sum().fill_null(0).to_pyarrow().as_py())
    if unlisted:
        notes.append(
            f"{unlisted:,} rows of {LABEL_TABLE} belong to patients who are not in the data and are ignored."
        )
    known = joined.filter(joined.number.notnull())
    return known.select(patient=known.number, time=known.time, value=known.value)


def earliest_labels(table: "Table", notes: list[str]) -> Labels:
    """Each patient's first row; a case takes precedence on the same day, so that the order of rows does not matter."""
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
            f"column value of {LABEL_TABLE} has values other than 0 (control) and 1 (case); correct it."
        )
    untimed = int(table.count().to_pyarrow().as_py()) - len(patient)
    if untimed:
        notes.append(f"{untimed:,} rows of {LABEL_TABLE} have no time and are ignored.")
    order = np.lexsort((-value, date, patient))  # NaN last
    patient, date, value = patient[order], date[order], value[order]
    first = np.unique(patient, return_index=True)[1]
    repeated = len(patient) - len(first)
    if repeated:
        notes.append(
            f"{repeated:,} rows of {LABEL_TABLE} repeat a patient; the earliest row of each patient is used."
        )
    ever_case = np.isin(patient[first], patient[value == 1])
    return Labels(patient[first], date[first], value[first], ever_case)
