"""The patients a phenotype leads in against all others: static features with effect sizes, and the outcome."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.disclosure import OLDEST, Gate, is_age, rounded
from phenotaste.patients import Matrix
from phenotaste.report import names
from phenotaste.report.definitions import feature_names, merge_rows
from phenotaste.report.names import static_label
from phenotaste.report.patients import Groups
from phenotaste.report.schema import Contrast, OutcomeLink
from phenotaste.static_rates import fact_name, is_fact

MAX_CONTRASTS = 40
Z = 1.959964  # of a 95 % interval
OUTCOME = "case"
CLASSES = ("cases", "controls")
VISITS, FOLLOW_UP = "visits", "months of follow-up"


class Facts(NamedTuple):
    """What is known of each patient apart from the visits: static features, number of visits, follow-up."""

    names: list[str]
    values: Matrix  # (K, P)


def patient_facts(cohort: Cohort, months: Any, gate: Gate) -> Facts:
    """Collect static features, number of visits, and months of follow-up if visits are dated."""
    static_names = feature_names(cohort.static_names, cohort.n_static)
    values = np.zeros((len(cohort), 0)) if cohort.static is None else cohort.static
    if not gate.trusted:
        static_names, values = cap_ages(static_names, values)
    more = {VISITS: cohort.visit_counts.astype(np.float64)}
    if months is not None:
        more[FOLLOW_UP] = follow_up(cohort, months)
    return Facts([*static_names, *more], np.column_stack([values, *more.values()]))


def follow_up(cohort: Cohort, months: NDArray[np.float32]) -> Matrix:
    """Months from the first to the last visit of each patient."""
    result = np.zeros(len(cohort))
    seen = cohort.visit_counts > 0
    result[seen] = months[cohort.offsets[1:][seen] - 1]
    return result


def cap_ages(static_names: list[str], values: Matrix) -> tuple[list[str], Matrix]:
    """Merge levels that distinguish ages from 90 up, and cap numeric ages at 90."""
    merged_names, sources = merge_rows(static_names, names.old_ages(static_names))
    values = np.column_stack([values[:, rows].sum(axis=1) for rows in sources]) if sources else values
    for column, name in enumerate(merged_names):
        if is_age(name):
            values[:, column] = np.minimum(values[:, column], OLDEST)
    return merged_names, values


class Compared(NamedTuple):
    """One column of the facts, as far as it may be shown."""

    name: str
    share: float | None  # of patients that have it, over the whole cohort; None for a number
    contrasts: list[Contrast]  # for each phenotype


def compare_groups(facts: Facts, groups: Groups, unnamed: set[str], gate: Gate) -> list[Compared]:
    """Compare every fact that may be shown between groups; `unnamed` are names that must not appear."""
    result = []
    for name, column in zip(facts.names, facts.values.T, strict=True):
        if name in unnamed or (names.has_date(name) and not gate.trusted):
            continue
        measured = name in (VISITS, FOLLOW_UP) or not is_fact(name, column, gate)
        compared = compare_means if measured else compare_shares
        found = compared(name, column, groups, gate)
        result += [] if found is None else [found]
    return result


def compare_shares(name: str, column: Matrix, groups: Groups, gate: Gate) -> Compared | None:
    """Compare a fact by its rounded counts; a contrast is shown if all four counts of its table are."""
    total = gate.count(fact_name(name), int(np.count_nonzero(column)))
    share = gate.share(total, groups.n_shown)
    if share is None or total is None:
        return None
    having = groups.sums(column[:, None] != 0)[:, 0]
    contrasts = []
    for r in range(len(groups.numbers)):
        part = gate.count(fact_name(name, groups.name(r)), int(having[r]))
        cells = gate.four_cells(part, groups.shown[r], total, groups.n_shown)
        contrasts.append(contrast_shares(static_label(name), cells))
    return Compared(name, share, contrasts)


def contrast_shares(label: str, cells: tuple[int, int, int, int] | None) -> Contrast:
    if cells is None:
        return Contrast(label, "share", None, None, None)
    here, rest = (cells[i] / (cells[i] + cells[i + 1]) for i in (0, 2))
    scale = math.sqrt((here * (1 - here) + rest * (1 - rest)) / 2)
    effect = (here - rest) / scale if scale > 0 else None
    return Contrast(label, "share", rounded(here), rounded(rest), rounded(effect))


def compare_means(name: str, column: Matrix, groups: Groups, gate: Gate) -> Compared | None:
    """Compare winsorised means; effects are in standard deviations of all patients."""
    limits = gate.limits(column)
    if limits is None:  # of too few patients, or nearly all have the same value
        return None
    values = column if gate.trusted else limits.clip(column)
    sums, what = groups.sums(values[:, None])[:, 0], fact_name(name)
    scale = gate.mean(f"{what}/sd", float(values.std()), limits, groups.n_shown)
    contrasts = []
    for r in range(len(groups.numbers)):
        size, rest = int(groups.sizes[r]), groups.n_patients - int(groups.sizes[r])
        shown = groups.shown[r]
        if shown is None or groups.n_shown - shown < max(gate.min_difference, 1) or not size or not rest:
            contrasts.append(Contrast(static_label(name), "mean", None, None, None))
            continue
        group = fact_name(name, groups.name(r))
        here = gate.mean(group, float(sums[r]) / size, limits, shown)
        others = gate.mean(
            f"{group}/rest", float(sums.sum() - sums[r]) / rest, limits, groups.n_shown - shown
        )
        effect = (here - others) / scale if scale and here is not None and others is not None else None
        contrasts.append(Contrast(static_label(name), "mean", here, others, rounded(effect)))
    return Compared(name, None, contrasts)


def contrasts(compared: list[Compared], groups: Groups, phenotype: int, gate: Gate) -> list[Contrast]:
    """Compare the patients a phenotype leads in with the rest: largest effects first, hidden ones last."""
    size = groups.shown[phenotype]
    if size is None or not 0 < size < groups.n_shown or groups.n_shown - size < gate.min_shown:
        return []
    result = [fact.contrasts[phenotype] for fact in compared]
    hidden = sum(fact.leading is None for fact in result)
    if hidden:
        gate.note(
            f"phenotype {groups.numbers[phenotype]}, profile", f"{hidden:,} of {len(result):,} comparisons"
        )
    if gate.trusted:
        result = [fact for fact in result if fact.leading or fact.rest]
    return sorted(result, key=lambda fact: (fact.leading is None, -abs(fact.effect or 0.0)))[:MAX_CONTRASTS]


class LabelCounts(NamedTuple):
    """Rounded numbers of cases and controls, of all patients and by group."""

    total: tuple[int, int]
    groups: list[tuple[int | None, int | None]]

    @property
    def share(self) -> float:
        """The share of cases among the patients with a label."""
        return self.total[0] / sum(self.total)


def count_labels(labels: NDArray[np.float64] | None, groups: Groups, gate: Gate) -> LabelCounts | None:
    """Return None unless labels are 0 and 1, and of enough patients each."""
    if labels is None:
        return None
    labels = np.asarray(labels, np.float64)
    if not np.isin(labels[~np.isnan(labels)], (0, 1)).all():
        return None
    columns = np.column_stack([labels == 1, labels == 0])
    cases, controls = (gate.count(name, int(n)) for name, n in zip(CLASSES, columns.sum(axis=0), strict=True))
    if not cases or not controls:
        gate.note("outcome", "everything about it")
        return None
    counts = [
        tuple(gate.count(f"{groups.name(r)}/{name}", int(n)) for name, n in zip(CLASSES, row, strict=True))
        for r, row in enumerate(groups.sums(columns)[: len(groups.numbers)])
    ]
    return LabelCounts((cases, controls), counts)  # type: ignore[arg-type]


def outcome_link(
    labels: LabelCounts | None, groups: Groups, phenotype: int, gate: Gate
) -> OutcomeLink | None:
    """Odds of being a case if the phenotype leads, against all other patients, with a 95 % Wald interval."""
    if labels is None:
        return None
    cases, controls = labels.groups[phenotype]
    size = None if cases is None or controls is None else cases + controls
    found = gate.four_cells(cases, size, labels.total[0], sum(labels.total))
    if found is None:
        gate.note(f"phenotype {groups.numbers[phenotype]}", "outcome")
        return OutcomeLink(OUTCOME, None, None, None, None, None)
    cells = np.array(found, float)
    here, rest = cells[0] / (cells[0] + cells[1]), cells[2] / (cells[2] + cells[3])
    cells += 0.5 * (cells == 0).any()  # Haldane's correction, because an empty cell has no odds
    log_ratio = float(np.log(cells[0] * cells[3] / (cells[1] * cells[2])))
    error = Z * float(np.sqrt(np.sum(1 / cells)))
    return OutcomeLink(
        OUTCOME,
        rounded(np.exp(log_ratio)),
        rounded(np.exp(log_ratio - error)),
        rounded(np.exp(log_ratio + error)),
        rounded(here),
        rounded(rest),
    )
