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
from phenotaste.sources.records import ORIGIN
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table

LABEL_TABLE = "the label table"
LABEL_TYPES = {"patient": "id", "time": "time", "value": "number"}
LABEL_NAMES = {  # of the columns of a label table: ours, and those of MEDS and of `phenotaste predict --labels`
    "patient": ("patient", "subject_id"),
    "time": ("time", "prediction_time"),
    "value": ("value", "label", "boolean_value"),
}


class Occurrences(NamedTuple):
    """Times of index codes, sorted by patient and time; `first` is NaT for patients without one."""

    patient: np.ndarray
    time: np.ndarray  # datetime64[us], midnight where dates are sufficient
    first: np.ndarray

    def between(self, patient: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Whether each patient has an index code from `start` up to, but excluding, `end`."""
        moments = np.unique(np.concatenate([self.time, start, end]))  # ranks, so that one key orders both

        def key(patient: np.ndarray, time: np.ndarray) -> np.ndarray:
            return patient.astype(np.int64) * len(moments) + np.searchsorted(moments, time)

        own = key(self.patient, self.time)
        return np.searchsorted(own, key(patient, end)) > np.searchsorted(own, key(patient, start))


class PatientFacts:
    """Queries whose results take a few numbers per patient, independently of the number of events."""

    def __init__(self, workspace: Workspace, tables: Normalised) -> None:
        self.workspace, self.tables = workspace, tables
        self.n_people = int(tables.people.count().to_pyarrow().as_py())

    def occurrences(self, patterns: Sequence[str], notes: list[str], exact: bool) -> Occurrences:
        """Index codes at their times or, unless `exact`, on their dates."""
        events, first = self.tables.events, np.full(self.n_people, "NaT", "datetime64[us]")
        if not patterns:
            return Occurrences(np.array([], np.int64), np.array([], "datetime64[us]"), first)
        codes = np.flatnonzero(code_sets.matching(self.tables.codes, patterns, notes))
        hits = events.semi_join(self.table("code", codes), "code")
        moment = hits.time if exact else hits.time.cast("date")
        rows = hits.select("patient", time=moment.cast("timestamp(6)")).distinct().to_pyarrow()
        patient, time = rows["patient"].to_numpy(), rows["time"].to_numpy().astype("datetime64[us]")
        order = np.lexsort((time, patient))
        patient, time = patient[order].astype(np.int64), time[order]
        distinct, at = np.unique(patient, return_index=True)
        first[distinct] = time[at]
        return Occurrences(patient, time, first)

    def first_times(self) -> np.ndarray:
        """The time of each patient's first event or encounter; zero where times are relative, NaT without any."""
        first = np.full(self.n_people, "NaT", "datetime64[us]")
        times = self._active("timestamp(6)")
        rows = times.group_by("patient").aggregate(time=times.time.min()).to_pyarrow()
        relative = self.tables.time_unit is not None
        first[rows["patient"].to_numpy()] = np.datetime64(ORIGIN) if relative else rows["time"].to_numpy()
        return first

    def periods(self) -> Periods:
        """Observation periods; where the source has none, they start at the first event or encounter."""
        table = self.tables.periods
        if table is not None:
            rows = table.select("patient", "start", "end").to_pyarrow()
            if len(rows):
                start, end = (rows[name].to_numpy().astype("datetime64[D]") for name in ("start", "end"))
                return Periods.merged(self.n_people, rows["patient"].to_numpy(), start, end)
        seen = self._active("date")
        seen = seen.group_by("patient").aggregate(day=seen.time.min())
        patient, day = _patient_days(seen.to_pyarrow())
        return Periods.merged(self.n_people, patient, day, np.full(len(day), "NaT", "datetime64[D]"))

    def encounters(self, candidate: np.ndarray, dates: np.ndarray | None, within: int) -> Encounters:
        """The days on which candidates were seen; with `dates`, within `within` days of the first and the last."""
        candidates = self.table("patient", np.flatnonzero(candidate))
        days = self._active("date").rename(day="time")
        if dates is not None:
            low, high = (dates.min() - within).item(), (dates.max() + within).item()
            days = days.filter(days.day.between(low, high))
        near = days.semi_join(candidates, "patient").distinct()
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

    def _active(self, kind: str) -> "Table":
        """patient, time: the dates or times of all events, and of the starts of encounters."""
        events, visits = self.tables.events, self.tables.visits
        times = events.select("patient", time=events.time.cast(kind))
        if visits is not None:
            times = times.union(visits.select("patient", time=visits.time.cast(kind)))
        return times.filter(times.time.notnull())

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
    """Stated index times and outcomes, sorted by patient and time."""

    patient: np.ndarray
    date: np.ndarray  # datetime64[us], NaT where the table has no times
    value: np.ndarray  # 1 case, 0 control, NaN unknown
    ever_case: np.ndarray  # in any row of the patient


def read_label_table(
    workspace: Workspace,
    path: str,
    people: "Table",
    notes: list[str],
    time_unit: str | None = None,
    timed: bool = True,
) -> "Table":
    """Read a label file, with the patient numbers in place of the ids; its times are required where `timed`."""
    import ibis

    table = label_columns(workspace, Path(path), time_unit, timed)
    if "value" not in table.columns:
        listed = ", ".join(LABEL_NAMES["value"][1:])
        notes.append(
            f"{LABEL_TABLE.capitalize()} has no column value ({listed}): its patients have no label."
        )
    for name, kind in (("value", "float64"), ("time", "timestamp")):
        if name not in table.columns:
            table = table.mutate(**{name: ibis.null(kind)})
    numbers = people.select(number=people.patient, patient=people.id.cast("string"))
    joined = table.left_join(numbers, "patient")
    unlisted = int(joined.number.isnull().sum().fill_null(0).to_pyarrow().as_py())
    if unlisted:
        notes.append(
            f"{unlisted:,} rows of {LABEL_TABLE} belong to patients who are not in the data and are ignored."
        )
    known = joined.filter(joined.number.notnull())
    return known.select(patient=known.number, time=known.time, value=known.value)


def label_columns(workspace: Workspace, path: Path, time_unit: str | None, timed: bool) -> "Table":
    """The columns patient, time and, where present, value of a file or folder, under these or other names."""
    files = typed_tables.list_files(path, LABEL_TABLE)
    table = typed_tables.read_file(workspace, files, LABEL_TABLE)
    lower = {name.strip().lower(): name for name in table.columns}
    found = {
        name: lower[spelling]
        for name, spellings in LABEL_NAMES.items()
        for spelling in reversed(spellings)
        if spelling in lower
    }
    for name in ("patient", "time") if timed else ("patient",):
        if name not in found:
            raise InputError(
                f"{LABEL_TABLE} lacks the column {' or '.join(LABEL_NAMES[name])}; "
                f"its columns are: {', '.join(table.columns)}."
            )
    table = table.select(**{name: table[column] for name, column in found.items()})
    table = typed_tables.materialised(workspace, table, files, LABEL_TABLE)
    types = LABEL_TYPES | ({} if time_unit is None else {"time": time_unit})
    return typed_tables.cast_columns(table, LABEL_TABLE, types)


def stated_labels(
    table: "Table", notes: list[str], *, exact: bool = False, rows: str = "first", timed: bool = True
) -> Labels:
    """The label rows of each patient, or the first of them; their times or, unless `exact`, their dates.

    A case takes precedence at the same time, so that the order of rows does not matter. Rows without a time are
    ignored where `timed`.
    """
    known = table.filter(table.patient.notnull(), table.time.notnull() | (not timed))
    moment = known.time if exact else known.time.cast("date")
    columns = known.select(
        "patient", time=moment.cast("timestamp(6)"), value=known.value.cast("float64")
    ).to_pyarrow()
    patient = columns["patient"].to_numpy().astype(np.int64)
    date = columns["time"].to_numpy().astype("datetime64[us]")
    value = columns["value"].to_numpy().astype(np.float64)
    stated = value[~np.isnan(value)]
    if not np.isin(stated, (0.0, 1.0)).all():
        raise InputError(
            f"column value of {LABEL_TABLE} has values other than 0 (control) and 1 (case); correct it."
        )
    untimed = int(table.count().to_pyarrow().as_py()) - len(patient)
    if untimed:
        notes.append(f"{untimed:,} rows of {LABEL_TABLE} have no time and are ignored.")
    ever_case = np.isin(patient, patient[value == 1])
    order = np.lexsort((-value, date, patient))  # NaN last
    patient, date, value, ever_case = (column[order] for column in (patient, date, value, ever_case))
    new = np.ones(len(patient), bool)
    new[1:] = patient[1:] != patient[:-1]
    if rows == "all":
        new[1:] |= date[1:] != date[:-1]
    repeated = len(patient) - np.count_nonzero(new)
    if repeated:
        notes.append(
            f"{repeated:,} rows of {LABEL_TABLE} repeat a patient and time; a case takes precedence."
            if rows == "all"
            else f"{repeated:,} rows of {LABEL_TABLE} repeat a patient; the earliest row of each patient is used."
        )
    return Labels(patient[new], date[new], value[new], ever_case[new])
