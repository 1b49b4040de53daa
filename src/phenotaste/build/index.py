"""Selection of patients: index dates, windows, new onset, and matched controls."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build import matching
from phenotaste.build.attrition import Attrition
from phenotaste.build.normalise import Normalised
from phenotaste.build.patient_facts import Labels, PatientFacts, earliest_labels, read_label_table
from phenotaste.build.settings import Index, Match, Settings
from phenotaste.build.windows import months_before, window
from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table

CASE, CONTROL = 1.0, 0.0


class Selected(NamedTuple):
    """A row for each selected patient, sorted by patient."""

    patient: np.ndarray
    date: np.ndarray  # the index date
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
    """Select the patients of the cohort: patient, index (date), start and end of the window, label, set.

    The index is the first day of `labels` (patient, time, value) or of the label file of the settings; without
    either, the first day with an index code. `index_codes` are the source's, in addition to those of the settings.
    With labels, index codes identify earlier disease. Only patients of `attrition.tally` are considered.
    Remarks for the user are appended to `notes`.
    """
    index, notes = settings.index, [] if notes is None else notes
    if index is None:
        raise InputError("the settings have no index; set index codes or a label table.")
    if index.labels is not None:
        labels = read_label_table(workspace, index.labels, tables.people, notes)
    patterns = (*index.codes, *index_codes)
    if labels is None and not patterns:
        raise InputError("an index needs codes or a label table; set one, or build without an index.")
    selection = _Selection(workspace, tables, index, attrition, notes, patterns)
    if labels is None:
        selected, candidate = selection.from_codes()
    else:
        selected, candidate = selection.from_labels(
            earliest_labels(labels, notes), settings.match is not None
        )
    selected = selection.new_onset(selected, coded=labels is None)
    if settings.match is not None:
        selected = selection.matched(selected, candidate, settings.match)
    return _anchor_table(workspace, selected, index)


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
        self.occurrences = self.facts.occurrences(patterns, notes)
        self.periods = self.facts.periods()
        assert attrition.tally is not None, "patients are selected after code groups are applied"
        tally = attrition.tally.select("patient", "visits", "events").to_pyarrow()
        self.visits, self.events = np.zeros((2, self.facts.n_people), np.int64)
        for counts, name in ((self.visits, "visits"), (self.events, "events")):
            counts[tally["patient"].to_numpy()] = tally[name].to_numpy()
        self.usable = self.events > 0  # patients with an event that becomes a feature

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
        if index.washout_months:
            start = months_before(selected.date, index.washout_months)
            observed = self.periods.covers(selected.patient, start, selected.date)
            free = ~self.occurrences.between(selected.patient, start, selected.date)
            selected = self._step(
                f"{index.washout_months} months of history without an index code before the index",
                selected.where(observed & free),
                "no patient's history meets the wash-out; shorten it.",
            )
        if index.covered:
            observed = self.periods.covers(selected.patient, window(selected.date, index)[0], selected.date)
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
        observed = self.periods.covers(selected.patient, selected.date, selected.date)
        return self._step(
            "controls alive and under observation at the index",
            selected.where((selected.label != CONTROL) | (observed & ~(death < selected.date))),
            "no control is alive and under observation at the index; check the label table.",
        )

    def matched(self, cases: Selected, candidate: np.ndarray, match: Match) -> Selected:
        """The cases with a control, and their controls, which take the index date of their case."""
        birth = self.facts.dates("birth")
        if np.isnat(birth[cases.patient]).all():
            raise InputError(
                "no case has a date of birth, which matching on age needs; build without matching."
            )
        history_start = cases.date
        if self.index.covered:
            history_start = window(cases.date, self.index)[0]
        if self.index.washout_months:
            history_start = np.minimum(history_start, months_before(cases.date, self.index.washout_months))
        people = matching.People(birth, self.facts.dates("death"), self.facts.strata(match.same), candidate)
        encounters = self.facts.encounters(candidate, cases.date, match.encounter_days)
        pairs = matching.match(
            matching.Cases(cases.patient, cases.date, history_start), people, encounters, self.periods, match
        )
        with_control, counts = np.unique(pairs.case, return_counts=True)
        cases = cases._replace(set=np.arange(len(cases.patient)))
        kept = self._step(
            "cases with a matched control",
            cases.where(with_control),
            "no case has a control; allow a larger difference in age or encounter date, or match on fewer columns.",
        )
        controls = Selected(
            pairs.control, cases.date[pairs.case], np.full(len(pairs.case), CONTROL), cases.set[pairs.case]
        )
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


def _anchor_table(workspace: Workspace, selected: Selected, index: Index) -> "Table":
    import pyarrow as pa

    start, end = window(selected.date, index)
    return workspace.ingest(
        pa.table(
            {
                "patient": pa.array(selected.patient, pa.int32()),
                "index": pa.array(selected.date, pa.date32()),
                "start": pa.array(start.astype("datetime64[us]"), pa.timestamp("us")),
                "end": pa.array(end.astype("datetime64[us]"), pa.timestamp("us")),
                "label": pa.array(selected.label, pa.float64()),
                "set": pa.array(selected.set, pa.int32(), mask=selected.set < 0),
            }
        ).to_reader(),
        "anchors",
    )
