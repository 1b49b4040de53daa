"""Who is in the cohort and when: the index date of each patient, its window, new onset, and matched controls."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build import label_table, matching
from phenotaste.build.attrition import Attrition
from phenotaste.build.normalise import Compact
from phenotaste.build.patient_facts import Known
from phenotaste.build.settings import Index, Match, Settings
from phenotaste.build.windows import months_before, window
from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table

CASE, CONTROL = 1.0, 0.0


class Chosen(NamedTuple):
    """A row for each patient who is in the cohort so far, sorted by patient."""

    patient: np.ndarray
    date: np.ndarray  # the index date
    label: np.ndarray  # 1 case, 0 control, NaN not stated
    set: np.ndarray  # the number of the matched set, -1 without matching

    def where(self, mask: np.ndarray) -> "Chosen":
        return Chosen(*(column[mask] for column in self))


def anchor(
    workspace: Workspace,
    compact: Compact,
    settings: Settings,
    attrition: Attrition,
    labels: "Table | None" = None,
    index_codes: Sequence[str] = (),
    notes: list[str] | None = None,
) -> "Table":
    """The patients of the cohort: patient, index (date), start and end of the window, label, set.

    The index is the first day of `labels` (patient, time, value) or of the file that the settings name; without
    either the first day with an index code. `index_codes` are the source's, besides those of the settings.
    With labels, index codes tell who had the disease before. Only patients of `attrition.tally` are looked at.
    Sentences about what was found go to `notes`.
    """
    index, notes = settings.index, [] if notes is None else notes
    if index is None:
        raise InputError("the settings name no index; name index codes or a label table.")
    if index.labels is not None:
        labels = label_table.read(workspace, index.labels, compact.people, notes)
    patterns = (*index.codes, *index_codes)
    if labels is None and not patterns:
        raise InputError("an index needs codes or a label table; name one, or build without an index.")
    build = _Build(workspace, compact, index, attrition, notes, patterns)
    if labels is None:
        chosen, candidate = build.from_codes()
    else:
        chosen, candidate = build.from_labels(label_table.earliest(labels, notes), settings.match is not None)
    chosen = build.new_onset(chosen, coded=labels is None)
    if settings.match is not None:
        chosen = build.matched(chosen, candidate, settings.match)
    return _kept(workspace, chosen, index)


class _Build:
    """What all steps share; each step is a row of the attrition table."""

    def __init__(
        self,
        workspace: Workspace,
        compact: Compact,
        index: Index,
        attrition: Attrition,
        notes: list[str],
        patterns: Sequence[str],
    ) -> None:
        self.index, self.attrition, self.notes = index, attrition, notes
        self.known = Known(workspace, compact)
        self.occurrences = self.known.occurrences(patterns, notes)
        self.periods = self.known.periods()
        assert attrition.tally is not None, "patients are chosen after code groups are applied"
        tally = attrition.tally.select("patient", "visits", "events").to_pyarrow()
        self.visits, self.events = np.zeros((2, self.known.n_people), np.int64)
        for counts, name in ((self.visits, "visits"), (self.events, "events")):
            counts[tally["patient"].to_numpy()] = tally[name].to_numpy()
        self.usable = self.events > 0  # whoever has no event that becomes a feature is gone already

    def from_codes(self) -> tuple[Chosen, np.ndarray]:
        """Patients with an index code, at their first; whoever never has one may be a control."""
        never = np.isnat(self.occurrences.first)
        patient = np.flatnonzero(~never & self.usable)
        chosen = Chosen(
            patient, self.occurrences.first[patient], np.full(len(patient), CASE), np.full(len(patient), -1)
        )
        self._step("with an index code", chosen, "no patient has one of the index codes; check them.")
        return chosen, never & self.usable

    def from_labels(self, labels: label_table.Labels, match: bool) -> tuple[Chosen, np.ndarray]:
        """Patients as the label table has them; with matching its cases only, and its controls are the candidates.

        Without any stated control everybody but the cases is one; without any stated value all are cases.
        """
        value = labels.value
        if match and np.isnan(value).all():
            value = np.full(len(value), CASE)
        chosen = Chosen(labels.patient, labels.date, value, np.full(len(value), -1))
        candidate = np.isnat(self.occurrences.first) & self.usable
        if (value == CONTROL).any():
            candidate &= np.isin(
                np.arange(self.known.n_people), labels.patient[(value == CONTROL) & ~labels.ever_case]
            )
        else:
            candidate[labels.patient] = False
        if match:
            chosen = chosen.where(value == CASE)
        chosen = chosen.where(self.usable[chosen.patient])
        step = "cases of the label table" if match else "in the label table"
        self._step(
            step, chosen, "the label table names no patient of the data; check its patients and values."
        )
        return chosen, candidate

    def new_onset(self, chosen: Chosen, coded: bool) -> Chosen:
        """Cases whose disease is new and whose history is known, and controls who never had it."""
        index = self.index
        if not coded and len(self.occurrences.patient):
            chosen = self._never_before(chosen)
        if index.washout_months:
            start = months_before(chosen.date, index.washout_months)
            known = self.periods.covers(chosen.patient, start, chosen.date)
            free = ~self.occurrences.between(chosen.patient, start, chosen.date)
            chosen = self._step(
                f"{index.washout_months} months of history without an index code before the index",
                chosen.where(known & free),
                "nobody's history meets the wash-out; shorten it.",
            )
        if index.covered:
            known = self.periods.covers(chosen.patient, window(chosen.date, index)[0], chosen.date)
            chosen = self._step(
                "history covers the window",
                chosen.where(known),
                "nobody's history covers the window; shorten it, or allow less history (covered = false).",
            )
        if (chosen.label == CONTROL).any():
            chosen = self._alive(chosen)
        return chosen

    def _never_before(self, chosen: Chosen) -> Chosen:
        first = self.occurrences.first[chosen.patient]
        control = chosen.label == CONTROL
        chosen = self._step(
            "cases without an index code before the end of the window",
            chosen.where(control | ~(first < window(chosen.date, self.index)[1])),
            "every case has an index code before its window ends; check the index codes and dates.",
        )
        if not control.any():
            return chosen
        first = self.occurrences.first[chosen.patient]
        return self._step(
            "controls without an index code",
            chosen.where((chosen.label != CONTROL) | np.isnat(first)),
            "every patient of the label table is a control with an index code; check both.",
        )

    def _alive(self, chosen: Chosen) -> Chosen:
        death = self.known.dates("death")[chosen.patient]
        observed = self.periods.covers(chosen.patient, chosen.date, chosen.date)
        return self._step(
            "controls alive and under observation at the index",
            chosen.where((chosen.label != CONTROL) | (observed & ~(death < chosen.date))),
            "no control is alive and under observation at the index; check the label table.",
        )

    def matched(self, cases: Chosen, candidate: np.ndarray, match: Match) -> Chosen:
        """The cases that have a control, and their controls, who take the index date of their case."""
        birth = self.known.dates("birth")
        if np.isnat(birth[cases.patient]).all():
            raise InputError(
                "no case has a date of birth, which matching on age needs; build without matching."
            )
        reach = cases.date
        if self.index.covered:
            reach = window(cases.date, self.index)[0]
        if self.index.washout_months:
            reach = np.minimum(reach, months_before(cases.date, self.index.washout_months))
        people = matching.People(birth, self.known.dates("death"), self.known.strata(match.same), candidate)
        encounters = self.known.encounters(candidate, cases.date, match.encounter_days)
        pairs = matching.match(
            matching.Cases(cases.patient, cases.date, reach), people, encounters, self.periods, match
        )
        served, counts = np.unique(pairs.case, return_counts=True)
        cases = cases._replace(set=np.arange(len(cases.patient)))
        kept = self._step(
            "cases with a matched control",
            cases.where(served),
            "no case has a control; widen the age or the time of the encounter, or match on fewer columns.",
        )
        controls = Chosen(
            pairs.control, cases.date[pairs.case], np.full(len(pairs.case), CONTROL), cases.set[pairs.case]
        )
        self._tell(int(candidate.sum()), counts, match.ratio)
        both = Chosen(*(np.concatenate(columns) for columns in zip(kept, controls, strict=True)))
        both = both._replace(set=np.unique(both.set, return_inverse=True)[1])
        both = both.where(np.argsort(both.patient))
        return self._step("and their controls", both, "no case has a control.")

    def _tell(self, candidates: int, counts: np.ndarray, ratio: int) -> None:
        self.notes.append(f"{candidates:,} patients could have been controls.")
        short = int((counts < ratio).sum())
        if short:
            self.notes.append(f"{short:,} of {len(counts):,} matched cases have fewer than {ratio} controls.")

    def _step(self, step: str, chosen: Chosen, if_empty: str) -> Chosen:
        visits, events = self.visits[chosen.patient].sum(), self.events[chosen.patient].sum()
        self.attrition.record(step, len(chosen.patient), visits, events, if_empty)
        return chosen


def _kept(workspace: Workspace, chosen: Chosen, index: Index) -> "Table":
    import pyarrow as pa

    start, end = window(chosen.date, index)
    return workspace.take(
        pa.table(
            {
                "patient": pa.array(chosen.patient, pa.int32()),
                "index": pa.array(chosen.date, pa.date32()),
                "start": pa.array(start.astype("datetime64[us]"), pa.timestamp("us")),
                "end": pa.array(end.astype("datetime64[us]"), pa.timestamp("us")),
                "label": pa.array(chosen.label, pa.float64()),
                "set": pa.array(chosen.set, pa.int32(), mask=chosen.set < 0),
            }
        ).to_reader(),
        "anchors",
    )
