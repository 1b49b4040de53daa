"""The patients a phenotype leads in against all others: static features with effect sizes, and the outcome."""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate, rounded
from phenotaste.report import names
from phenotaste.report.definitions import feature_names, merge_rows
from phenotaste.report.patients import Groups, Integers, Matrix
from phenotaste.report.schema import Contrast, OutcomeLink

Mask = NDArray[np.bool_]

MAX_CONTRASTS = 40
Z = 1.959964  # of a 95 % interval
OUTCOME = "case"


class Facts(NamedTuple):
    """What is known of each patient apart from the visits: static features, number of visits, follow-up."""

    names: list[str]
    values: Matrix  # (K, P)
    families: list[
        list[int]
    ]  # mutually exclusive binary columns; a binary column without others is one of its own
    binary: list[bool]


def patient_facts(cohort: Cohort, months: Any, gate: Gate) -> Facts:
    """Collect static features, number of visits, and months of follow-up if visits are dated."""
    static_names = feature_names(cohort.static_names, cohort.n_static)
    values = np.zeros((len(cohort), 0)) if cohort.static is None else cohort.static
    if not gate.trusted:
        static_names, values = cap_ages(static_names, values)
    more = {"visits": cohort.visit_counts.astype(np.float64)}
    if months is not None:
        more["months of follow-up"] = follow_up(cohort, months)
    values = np.column_stack([values, *more.values()])
    binary = [bool(np.isin(column, (0.0, 1.0)).all()) for column in values.T]
    binary[len(static_names) :] = [False] * len(more)
    return Facts([*static_names, *more], values, families(static_names, values, binary), binary)


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
        if names.is_age(name):
            values[:, column] = np.minimum(values[:, column], names.OLDEST)
    return merged_names, values


def families(static_names: list[str], values: Matrix, binary: list[bool]) -> list[list[int]]:
    """Levels of one variable: named "column=level", or adjacent columns of which every patient has exactly one.

    They have to be known, because a hidden level would follow from the others.
    """
    by_prefix: dict[str, list[int]] = {}
    for column, name in enumerate(static_names):
        if binary[column] and "=" in name:
            by_prefix.setdefault(name.split("=")[0], []).append(column)
    result = [columns for columns in by_prefix.values() if values[:, columns].sum(axis=1).max(initial=0) <= 1]
    taken = {column for columns in result for column in columns}
    usable = [b and j not in taken for j, b in enumerate(binary[: len(static_names)])]
    first = 0
    while first < len(static_names):
        run = exactly_one(values, first, usable)
        if run:
            result.append(run)
        first += max(len(run), 1)
    taken = {column for columns in result for column in columns}
    return result + [[j] for j in range(len(static_names)) if binary[j] and j not in taken]


def exactly_one(values: Matrix, first: int, usable: list[bool]) -> list[int]:
    """The shortest run of columns from `first` of which every patient has exactly one; empty if there is none."""
    total = np.zeros(len(values))
    for column in range(first, len(usable)):
        if not usable[column]:
            return []
        total += values[:, column]
        if total.max(initial=0) > 1:
            return []
        if total.min(initial=1) == 1:
            return list(range(first, column + 1))
    return []


class Compared(NamedTuple):
    """One column of the facts, by group."""

    name: str
    numeric: bool
    sums: Matrix  # of the values in each group
    squares: Matrix
    hidden: Mask  # groups in which it must not be shown
    share: float | None  # of patients that have it, over the whole cohort


def compare_groups(facts: Facts, groups: Groups, unnamed: set[str], gate: Gate) -> list[Compared]:
    """Sum every fact that may be shown by group; `unnamed` are names that must not appear."""
    result: list[Compared] = []
    sums = groups.sums(facts.values)
    squares = groups.sums(facts.values**2)
    numeric_columns = {column for column, binary in enumerate(facts.binary) if not binary}
    for family in [*facts.families, *([column] for column in sorted(numeric_columns))]:
        numeric = family[0] in numeric_columns
        counts = count_unusual(facts, groups, family[0]) if numeric else count_levels(sums[:, family], groups)
        disclosed = disclosed_levels(counts, gate)
        hidden = gate.table(counts, groups.disclosed, disclosed)
        for level, column in enumerate(family):
            name = facts.names[column]
            if not disclosed[level] or name in unnamed or (names.has_date(name) and not gate.trusted):
                continue
            total = counts[:, level].sum() / max(groups.n_patients, 1)
            share = None if numeric else rounded(float(total))
            result.append(
                Compared(name, numeric, sums[:, column], squares[:, column], hidden[:, level], share)
            )
    return result


def count_levels(has: Matrix, groups: Groups) -> Integers:
    """Count patients by group and level; the last column is for those with none of the levels."""
    counts = np.rint(has).astype(np.int64)
    return np.column_stack([counts, groups.sizes - counts.sum(axis=1)])


def count_unusual(facts: Facts, groups: Groups, column: int) -> Integers:
    """Count, for a numeric column, patients who differ from the value that most have: the mean depends on them alone.

    If no value is that common, all patients count.
    """
    values, counts = np.unique(facts.values[:, column], return_counts=True)
    usual = values[counts.argmax()] if 2 * counts.max() > groups.n_patients else np.nan
    unusual = facts.values[:, column] != usual
    return count_levels(groups.sums(unusual[:, None]), groups)


def disclosed_levels(counts: Integers, gate: Gate) -> Mask:
    """Levels whose number of patients in the whole cohort may be shown."""
    silent = Gate(gate.min_cell_size, gate.trusted)  # the audit lists what is hidden by phenotype instead
    return np.array([n is not None for n in silent.parts("", "", counts.sum(axis=0))])


def contrasts(compared: list[Compared], groups: Groups, phenotype: int, gate: Gate) -> list[Contrast]:
    """Compare the patients a phenotype leads in with the rest: largest effects first, hidden ones last."""
    size = int(groups.sizes[phenotype])
    rest = groups.n_patients - size
    if groups.shown[phenotype] is None or min(size, rest) < gate.min_group_size:
        return []
    result = [contrast(fact, phenotype, size, rest) for fact in compared]
    hidden = sum(fact.leading is None for fact in result)
    if hidden:
        gate.note(
            f"phenotype {groups.numbers[phenotype]}, profile", f"{hidden:,} of {len(result):,} comparisons"
        )
    result = [fact for fact in result if fact.leading is None or fact.leading or fact.rest]
    return sorted(result, key=lambda fact: (fact.leading is None, -abs(fact.effect or 0.0)))[:MAX_CONTRASTS]


def contrast(fact: Compared, phenotype: int, size: int, rest: int) -> Contrast:
    kind: Literal["mean", "share"] = "mean" if fact.numeric else "share"
    label = names.static_label(fact.name)
    if fact.hidden[phenotype]:
        return Contrast(label, kind, None, None, None)
    mean, variance = moments(fact.sums[phenotype], fact.squares[phenotype], size)
    rest_mean, rest_variance = moments(
        fact.sums.sum() - fact.sums[phenotype], fact.squares.sum() - fact.squares[phenotype], rest
    )
    scale = np.sqrt((variance + rest_variance) / 2)
    effect = (mean - rest_mean) / scale if scale > 0 else float("nan")
    return Contrast(label, kind, rounded(mean), rounded(rest_mean), rounded(effect))


def moments(total: float, squares: float, count: int) -> tuple[float, float]:
    mean = total / count
    return mean, max(squares / count - mean**2, 0.0)


class LabelCounts(NamedTuple):
    """Numbers of cases, controls and patients without a label (columns) by group (rows)."""

    counts: Integers
    hidden: Mask


def count_labels(labels: NDArray[np.float64] | None, groups: Groups, gate: Gate) -> LabelCounts | None:
    """Return None unless labels are 0 and 1. If only a few patients have no label, they count as controls."""
    if labels is None:
        return None
    labels = np.asarray(labels, np.float64)
    missing = np.isnan(labels)
    if not np.isin(labels[~missing], (0, 1)).all() or not (labels == 1).any() or not (labels == 0).any():
        return None
    if gate.is_small(int(missing.sum())):
        gate.note("outcome", "patients without a label", "they are few, and counted as not being cases")
        labels, missing = np.where(missing, 0.0, labels), np.zeros(len(labels), bool)
    columns = np.column_stack([labels == 1, labels == 0, missing])
    counts = np.rint(groups.sums(columns)).astype(np.int64)
    if gate.is_small(counts.sum(axis=0)).any():
        gate.note("outcome", "everything about it")
        return None
    return LabelCounts(counts, gate.table(counts, groups.disclosed))


def outcome_link(
    labels: LabelCounts | None, groups: Groups, phenotype: int, gate: Gate
) -> OutcomeLink | None:
    """Odds of being a case if the phenotype leads, against all other patients, with a 95 % Wald interval."""
    if labels is None:
        return None
    cases, controls = (int(n) for n in labels.counts[phenotype, :2])
    rest_cases, rest_controls = (
        int(n) for n in labels.counts[:, :2].sum(axis=0) - labels.counts[phenotype, :2]
    )
    if labels.hidden[phenotype].any() or not (cases + controls and rest_cases + rest_controls):
        if labels.hidden[phenotype].any():
            gate.note(f"phenotype {groups.numbers[phenotype]}", "outcome")
        return OutcomeLink(OUTCOME, None, None, None, None, None)
    cells = np.array([cases, controls, rest_cases, rest_controls], float)
    cells += 0.5 * (cells == 0).any()  # Haldane's correction, because an empty cell has no odds
    log_ratio = float(np.log(cells[0] * cells[3] / (cells[1] * cells[2])))
    error = Z * float(np.sqrt(np.sum(1 / cells)))
    return OutcomeLink(
        OUTCOME,
        rounded(np.exp(log_ratio)),
        rounded(np.exp(log_ratio - error)),
        rounded(np.exp(log_ratio + error)),
        rounded(cases / (cases + controls)),
        rounded(rest_cases / (rest_cases + rest_controls)),
    )
