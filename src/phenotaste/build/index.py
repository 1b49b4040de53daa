"""Selection of patients: index dates, windows, new onset, and matched controls."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build import matching
from phenotaste.build.attrition import Attrition
from phenotaste.build.durations import before, known
from phenotaste.build.normalise import Normalised
from phenotaste.build.patient_facts import Labels, PatientFacts, read_label_table, stated_labels
from phenotaste.build.settings import HISTORY, Index, Match, Settings
from phenotaste.build.windows import window
from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table

CASE, CONTROL = 1.0, 0.0


class Selected(NamedTuple):
    """A row for each index time of the selected patients, sorted by patient and time."""

    patient: np.ndarray
    date: np.ndarray  # the index: datetime64[us], midnight where dates are sufficient
    label: np.ndarray  # 1 case, 0 control, NaN unknown
    set: np.ndarray  # matched set, -1 without matching

    def where(self, mask: np.ndarray) -> "Selected":
        return Selected(*(column[mask] for column in self))


def find_anchors(
    workspace: Workspace,
    tables: Normalised,
    settings: Settings,
    attrition: Attrition,
    labels: "Table | None" = None,
    index_codes: Sequence[str] = (),
    notes: list[str] | None = None,
) -> "Table":
    """Select the rows of the cohort: row, patient, index, start and end of the window, label, set.

    The index is each time of `labels` (patient, time, value) or of the label file of the settings; without either, the
    first index code. `index_codes` are the source's, in addition to those of the settings. With labels, index codes
    identify earlier disease. With `first` in the settings, the index is the end of the first part of each history, and
    labels need no time. Only patients of `attrition.tally` are considered. Remarks for the user are appended to
    `notes`.
    """
    index, notes = settings.index, [] if notes is None else notes
    if index is None:
        raise InputError("the settings have no index; set index codes or a label table.")
    timed = index.first is None
    if index.labels is not None:
        labels = read_label_table(workspace, index.labels, tables.people, notes, tables.time_unit, timed)
    patterns = (*index.codes, *index_codes)
    if not timed and patterns:
        raise InputError(
            "the first part of a history has no index codes; remove them, or use a window before them."
        )
    selection = _Selection(workspace, tables, index, attrition, notes, patterns)
    if not timed:
        return _anchor_table(workspace, *selection.from_start(labels, tables.outcomes), index)
    if labels is None and not patterns:
        raise InputError("an index needs codes or a label table; set one, or build without an index.")
    if labels is None:
        selected, candidate = selection.from_codes()
    else:
        # Controls are matched to patients, each of whom is used once.
        rows = "first" if settings.match is not None else index.label_rows
        stated = stated_labels(labels, notes, exact=index.exact, rows=rows)
        selected, candidate = selection.from_labels(stated, settings.match is not None)
    selected = selection.new_onset(selected, coded=labels is None)
    if settings.match is not None:
        selected = selection.matched(selected, candidate, settings.match)
    people = len(np.unique(selected.patient))
    if people < len(selected.patient):
        notes.append(
            f"{len(selected.patient):,} index times of {people:,} patients: each is a row of the cohort, and from the "
            "label table on, attrition counts rows."
        )
    return _anchor_table(workspace, selected, *window(selected.date, index), index)


class _Selection:
    """State shared by the steps; each step is a row of the attrition table."""

    def __init__(
        self,
        workspace: Workspace,
        tables: Normalised,
        index: Index,
        attrition: Attrition,
        notes: list[str],
        patterns: Sequence[str],
    ) -> None:
        self.index, self.attrition, self.notes = index, attrition, notes
        self.facts = PatientFacts(workspace, tables)
        self.periods_listed = tables.periods is not None
        self.occurrences = self.facts.occurrences(patterns, notes, index.exact)
        self.periods = self.facts.periods()
        # Periods are dates: where they begin with the first event, windows in hours begin with its time.
        to_the_hour = index.exact and tables.periods is None
        self.first_seen = self.facts.first_times() if to_the_hour or index.first is not None else None
        assert attrition.tally is not None, "patients are selected after code groups are applied"
        tally = attrition.tally.select("patient", "visits", "events").to_pyarrow()
        self.visits, self.events = np.zeros((2, self.facts.n_people), np.int64)
        for counts, name in ((self.visits, "visits"), (self.events, "events")):
            counts[tally["patient"].to_numpy()] = tally[name].to_numpy()
        self.usable = self.events > 0  # patients with an event that becomes a feature

    def observed(self, patient: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Whether each patient is under observation from `first` to `last`."""
        covered = self.periods.covers(patient, first.astype("datetime64[D]"), last.astype("datetime64[D]"))
        return covered if self.first_seen is None else covered & (self.first_seen[patient] <= first)

    def from_start(
        self, labels: "Table | None", outcomes: "Table | None"
    ) -> tuple[Selected, np.ndarray, np.ndarray]:
        """All patients with the first part of their history, its start and its end, which is the index."""
        assert self.index.first is not None
        assert self.first_seen is not None
        unit = "us" if self.index.exact else "D"
        starts = self.first_seen.astype(f"datetime64[{unit}]").astype("datetime64[us]")
        patient = np.flatnonzero(self.usable)
        end = before(starts[patient], known(self.index.first), sign=1)
        selected = Selected(patient, end, np.full(len(patient), np.nan), np.full(len(patient), -1))
        if self.index.covered and self.periods_listed:
            days = (time.astype("datetime64[D]") for time in (starts[patient], end - np.timedelta64(1, "us")))
            selected = self._step(
                "observed until the window ends",
                selected.where(self.periods.covers(patient, *days)),
                "no patient is observed until the window ends; shorten it, or allow less history (covered = false).",
            )
        table = outcomes if labels is None else labels
        if table is not None:
            selected = self._labelled_later(
                selected, stated_labels(table, self.notes, exact=True, timed=False)
            )
        return selected, starts[selected.patient], selected.date

    def _labelled_later(self, selected: Selected, labels: Labels) -> Selected:
        """The patients with a label; one with a time before the index is excluded, as its outcome is not to come."""
        value = np.full(self.facts.n_people, np.nan)
        time = np.full(self.facts.n_people, "NaT", "datetime64[us]")
        value[labels.patient], time[labels.patient] = labels.value, labels.date
        later = np.isin(selected.patient, labels.patient) & ~(time[selected.patient] < selected.date)
        return self._step(
            "labelled, not before the window ends",
            selected._replace(label=value[selected.patient]).where(later),
            "no patient has a label after the window; check the label table, or choose a shorter window.",
        )

    def from_codes(self) -> tuple[Selected, np.ndarray]:
        """Cases at their first index code; patients without an index code are candidate controls."""
        never = np.isnat(self.occurrences.first)
        patient = np.flatnonzero(~never & self.usable)
        selected = Selected(
            patient, self.occurrences.first[patient], np.full(len(patient), CASE), np.full(len(patient), -1)
        )
        self._step("with an index code", selected, "no patient has one of the index codes; check them.")
        return selected, never & self.usable

    def from_labels(self, labels: Labels, match: bool) -> tuple[Selected, np.ndarray]:
        """Patients of the label table; with matching its cases only, and its controls are the candidates.

        Without any stated control, all patients but the cases are candidates; without any stated value, all are cases.
        """
        value = labels.value
        if match and np.isnan(value).all():
            value = np.full(len(value), CASE)
        selected = Selected(labels.patient, labels.date, value, np.full(len(value), -1))
        candidate = np.isnat(self.occurrences.first) & self.usable
        if (value == CONTROL).any():
            candidate &= np.isin(
                np.arange(self.facts.n_people), labels.patient[(value == CONTROL) & ~labels.ever_case]
            )
        else:
            candidate[labels.patient] = False
        if match:
            selected = selected.where(value == CASE)
        selected = selected.where(self.usable[selected.patient])
        step = "cases of the label table" if match else "in the label table"
        self._step(
            step, selected, "the label table has no patient of the data; check its patients and values."
        )
        return selected, candidate

    def new_onset(self, selected: Selected, coded: bool) -> Selected:
        """Keep cases of new onset with an observed history, and controls without the disease."""
        index = self.index
        if not coded and len(self.occurrences.patient):
            selected = self._without_earlier_codes(selected)
        washout = index.lengths[2]
        if washout.number:
            start = before(selected.date, washout)
            observed = self.observed(selected.patient, start, selected.date)
            free = ~self.occurrences.between(selected.patient, start, selected.date)
            selected = self._step(
                f"{washout} of history without an index code before the index",
                selected.where(observed & free),
                "no patient's history meets the wash-out; shorten it.",
            )
        if index.covered:
            observed = self.observed(selected.patient, window(selected.date, index)[0], selected.date)
            selected = self._step(
                "history covers the window",
                selected.where(observed),
                "no patient's history covers the window; shorten it, or allow less history (covered = false).",
            )
        if (selected.label == CONTROL).any():
            selected = self._alive(selected)
        return selected

    def _without_earlier_codes(self, selected: Selected) -> Selected:
        first = self.occurrences.first[selected.patient]
        control = selected.label == CONTROL
        selected = self._step(
            "cases without an index code before the end of the window",
            selected.where(control | ~(first < window(selected.date, self.index)[1])),
            "every case has an index code before its window ends; check the index codes and dates.",
        )
        if not control.any():
            return selected
        first = self.occurrences.first[selected.patient]
        return self._step(
            "controls without an index code",
            selected.where((selected.label != CONTROL) | np.isnat(first)),
            "every patient of the label table is a control with an index code; check both.",
        )

    def _alive(self, selected: Selected) -> Selected:
        death = self.facts.dates("death")[selected.patient]
        day = selected.date.astype("datetime64[D]")
        observed = self.periods.covers(selected.patient, day, day)
        return self._step(
            "controls alive and under observation at the index",
            selected.where((selected.label != CONTROL) | (observed & ~(death < day))),
            "no control is alive and under observation at the index; check the label table.",
        )

    def matched(self, cases: Selected, candidate: np.ndarray, match: Match) -> Selected:
        """The cases with a control, and their controls, at the index date of their case or its time in the history."""
        birth = self.facts.dates("birth")
        if np.isnat(birth[cases.patient]).all():
            raise InputError(
                "no case has a date of birth, which matching on age needs; build without matching."
            )
        history_start = cases.date
        if self.index.covered:
            history_start = window(cases.date, self.index)[0]
        washout = self.index.lengths[2]
        if washout.number:
            history_start = np.minimum(history_start, before(cases.date, washout))
        people = matching.People(birth, self.facts.dates("death"), self.facts.strata(match.same), candidate)
        days, history_start = (time.astype("datetime64[D]") for time in (cases.date, history_start))
        first = self.facts.first_times().astype("datetime64[D]") if match.by == HISTORY else None
        encounters = self.facts.encounters(candidate, days if first is None else None, match.encounter_days)
        data = matching.Cases(cases.patient, days, history_start), people, encounters, self.periods
        pairs = matching.match(*(data if first is None else matching.since(first, *data)), match)
        with_control, counts = np.unique(pairs.case, return_counts=True)
        other = ", match by history where dates are shifted (--match-by)" if first is None else ""
        cases = cases._replace(set=np.arange(len(cases.patient)))
        kept = self._step(
            "cases with a matched control",
            cases.where(with_control),
            f"no case has a control; allow a larger difference in age or encounter date{other}, or match on fewer "
            "columns.",
        )
        date = cases.date[pairs.case]
        if first is not None:  # the same time in the control's own history
            date = date + (first[pairs.control] - first[cases.patient[pairs.case]])
        controls = Selected(pairs.control, date, np.full(len(pairs.case), CONTROL), cases.set[pairs.case])
        self._note_matching(int(candidate.sum()), counts, match.ratio)
        both = Selected(*(np.concatenate(columns) for columns in zip(kept, controls, strict=True)))
        both = both._replace(set=np.unique(both.set, return_inverse=True)[1])
        both = both.where(np.argsort(both.patient))
        return self._step("with the matched controls", both, "no case has a control.")

    def _note_matching(self, candidates: int, counts: np.ndarray, ratio: int) -> None:
        self.notes.append(f"{candidates:,} patients were candidate controls.")
        short = int((counts < ratio).sum())
        if short:
            self.notes.append(f"{short:,} of {len(counts):,} matched cases have fewer than {ratio} controls.")

    def _step(self, step: str, selected: Selected, if_empty: str) -> Selected:
        visits, events = self.visits[selected.patient].sum(), self.events[selected.patient].sum()
        self.attrition.record(step, len(selected.patient), visits, events, if_empty)
        return selected


def _anchor_table(
    workspace: Workspace, selected: Selected, start: np.ndarray, end: np.ndarray, index: Index
) -> "Table":
    import pyarrow as pa

    day = selected.date if index.exact else selected.date.astype("datetime64[D]")
    return workspace.ingest(
        pa.table(
            {
                "row": pa.array(np.arange(len(selected.patient)), pa.int32()),
                "patient": pa.array(selected.patient, pa.int32()),
                "index": pa.array(day, pa.timestamp("us") if index.exact else pa.date32()),
                "start": pa.array(start.astype("datetime64[us]"), pa.timestamp("us")),
                "end": pa.array(end.astype("datetime64[us]"), pa.timestamp("us")),
                "label": pa.array(selected.label, pa.float64()),
                "set": pa.array(selected.set, pa.int32(), mask=selected.set < 0),
            }
        ).to_reader(),
        "anchors",
    )
