"""What is known of all patients, as arrays by patient number: index codes, observation, encounters, dates."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build import code_sets
from phenotaste.build.matching import Encounters
from phenotaste.build.normalise import Compact
from phenotaste.build.windows import Periods
from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table


class Occurrences(NamedTuple):
    """Days with an index code, sorted by patient and day; `first` is NaT for patients who never have one."""

    patient: np.ndarray
    day: np.ndarray
    first: np.ndarray

    def between(self, patient: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Whether each patient has an index code from the day `start` up to, not on, the day `end`."""
        step = np.int64(2**32)
        key = self.patient * step + self.day.astype(np.int64)
        low, high = (np.searchsorted(key, patient * step + day.astype(np.int64)) for day in (start, end))
        return high > low


class Known:
    """Asks the workspace for what fits in memory whatever the number of events: a few numbers for each patient."""

    def __init__(self, workspace: Workspace, compact: Compact) -> None:
        self.workspace, self.compact = workspace, compact
        self.n_people = int(compact.people.count().to_pyarrow().as_py())

    def occurrences(self, patterns: Sequence[str], notes: list[str]) -> Occurrences:
        events, first = self.compact.events, np.full(self.n_people, "NaT", "datetime64[D]")
        if not patterns:
            return Occurrences(np.array([], np.int64), np.array([], "datetime64[D]"), first)
        codes = np.flatnonzero(code_sets.matching(self.compact.codes, patterns, notes))
        hits = events.semi_join(self.table("code", codes), "code")
        patient, day = _days_of(hits.select("patient", day=hits.time.cast("date")).distinct().to_pyarrow())
        order = np.lexsort((day, patient))
        patient, day = patient[order].astype(np.int64), day[order]
        who, at = np.unique(patient, return_index=True)
        first[who] = day[at]
        return Occurrences(patient, day, first)

    def periods(self) -> Periods:
        """Observation periods; where the source has none, from the first event or encounter on."""
        table = self.compact.periods
        if table is not None:
            rows = table.select("patient", "start", "end").to_pyarrow()
            if len(rows):
                start, end = (rows[name].to_numpy().astype("datetime64[D]") for name in ("start", "end"))
                return Periods.merged(self.n_people, rows["patient"].to_numpy(), start, end)
        seen = self._seen()
        seen = seen.group_by("patient").aggregate(day=seen.day.min())
        patient, day = _days_of(seen.to_pyarrow())
        return Periods.merged(self.n_people, patient, day, np.full(len(day), "NaT", "datetime64[D]"))

    def encounters(self, candidate: np.ndarray, dates: np.ndarray, within: int) -> Encounters:
        candidates = self.table("patient", np.flatnonzero(candidate))
        days = self._seen()
        low, high = (dates.min() - within).item(), (dates.max() + within).item()
        near = days.filter(days.day.between(low, high)).semi_join(candidates, "patient").distinct()
        return Encounters(*_days_of(near.to_pyarrow()))

    def dates(self, column: str) -> np.ndarray:
        return self._person(column).to_numpy().astype("datetime64[D]")

    def strata(self, same: Sequence[str]) -> np.ndarray:
        """A number for each combination of the columns that must agree; what is missing agrees with missing."""
        stratum = np.zeros(self.n_people, np.int64)
        for column in same:
            if column not in self.compact.people.columns or column in ("patient", "id"):
                listed = ", ".join(
                    name for name in self.compact.people.columns if name not in ("patient", "id")
                )
                raise InputError(f"there is no column {column} to match on; choose of: {listed}.")
            levels = self._person(column).combine_chunks().dictionary_encode()
            level = levels.indices.fill_null(len(levels.dictionary)).to_numpy()
            stratum = np.unique(stratum * (len(levels.dictionary) + 1) + level, return_inverse=True)[1]
        return stratum

    def _seen(self) -> "Table":
        events, visits = self.compact.events, self.compact.visits
        days = events.select("patient", day=events.time.cast("date"))
        if visits is not None:
            days = days.union(visits.select("patient", day=visits.time.cast("date")))
        return days.filter(days.day.notnull())

    def _person(self, column: str) -> "pa.ChunkedArray":
        return self.compact.people.order_by("patient").select(column).to_pyarrow()[column]

    def table(self, column: str, numbers: np.ndarray) -> "Table":
        """Numbers as a table of one column, to join with; the one before it is replaced."""
        import pyarrow as pa

        return self.workspace.take(
            pa.table({column: pa.array(numbers, pa.int32())}).to_reader(), f"some_{column}"
        )


def _days_of(table: "pa.Table") -> tuple[np.ndarray, np.ndarray]:
    return table["patient"].to_numpy(), table["day"].to_numpy().astype("datetime64[D]")
