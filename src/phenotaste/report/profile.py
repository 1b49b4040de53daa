"""The patients a phenotype leads in beside all others: static facts with effect sizes, and the outcome."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.disclosure import Gate, rounded
from phenotaste.report import names
from phenotaste.report.facts import Facts
from phenotaste.report.groups import Groups
from phenotaste.report.record import Contrast, OutcomeLink

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]

MOST_CONTRASTS = 40
Z = 1.959964  # of a 95 % interval
OUTCOME = "case"


class Compared(NamedTuple):
    """One column of the facts by group."""

    name: str
    numeric: bool
    sums: Matrix  # of the values in each group
    squares: Matrix
    hidden: Mask  # groups in which it may not be shown
    share: float | None  # of patients that have it, over the whole cohort


def compare(facts: Facts, groups: Groups, unnamed: set[str], gate: Gate) -> list[Compared]:
    """Every fact that may be named, by group; `unnamed` are names that must not be seen."""
    found: list[Compared] = []
    sums = groups.sums(facts.values)
    squares = groups.sums(facts.values**2)
    alone = {column for column, binary in enumerate(facts.binary) if not binary}
    for family in [*facts.families, *([column] for column in sorted(alone))]:
        numeric = family[0] in alone
        counts = usual_or_not(facts, groups, family[0]) if numeric else levels(sums[:, family], groups)
        totals = open_levels(counts, gate)
        hidden = gate.table(counts, groups.open, totals)
        for place, column in enumerate(family):
            name = facts.names[column]
            if not totals[place] or name in unnamed or (names.has_date(name) and not gate.trusted):
                continue
            total = counts[:, place].sum() / max(groups.n_patients, 1)
            share = None if numeric else rounded(float(total))
            found.append(
                Compared(name, numeric, sums[:, column], squares[:, column], hidden[:, place], share)
            )
    return found


def levels(has: Matrix, groups: Groups) -> NDArray[np.int64]:
    """Groups by levels, and a last column for those who have none of the levels."""
    counts = np.rint(has).astype(np.int64)
    return np.column_stack([counts, groups.sizes - counts.sum(axis=1)])


def usual_or_not(facts: Facts, groups: Groups, column: int) -> NDArray[np.int64]:
    """For a number: how many differ from the value most patients have, who alone make the mean what it is.

    Where no value is that common, everybody does.
    """
    values, counts = np.unique(facts.values[:, column], return_counts=True)
    usual = values[counts.argmax()] if 2 * counts.max() > groups.n_patients else np.nan
    other = facts.values[:, column] != usual
    return levels(groups.sums(other[:, None]), groups)


def open_levels(counts: NDArray[np.int64], gate: Gate) -> Mask:
    """Levels whose number of patients in the whole cohort may be known."""
    quiet = Gate(gate.fewest, gate.trusted)  # what is hidden is noted for each phenotype
    return np.array([n is not None for n in quiet.parts("", "", counts.sum(axis=0))])


def contrasts(compared: list[Compared], groups: Groups, phenotype: int, gate: Gate) -> list[Contrast]:
    """What differs most comes first, what is hidden last."""
    here = int(groups.sizes[phenotype])
    rest = groups.n_patients - here
    if groups.shown[phenotype] is None or min(here, rest) < gate.smallest_group:
        return []
    found = [contrast(fact, phenotype, here, rest) for fact in compared]
    hidden = sum(fact.here is None for fact in found)
    if hidden:
        gate.note(
            f"phenotype {groups.numbers[phenotype]}, profile", f"{hidden:,} of {len(found):,} comparisons"
        )
    found = [fact for fact in found if fact.here is None or fact.here or fact.rest]
    return sorted(found, key=lambda fact: (fact.here is None, -abs(fact.effect or 0.0)))[:MOST_CONTRASTS]


def contrast(fact: Compared, phenotype: int, here: int, rest: int) -> Contrast:
    kind: Literal["mean", "share"] = "mean" if fact.numeric else "share"
    label = names.static_label(fact.name)
    if fact.hidden[phenotype]:
        return Contrast(label, kind, None, None, None)
    mean, variance = moments(fact.sums[phenotype], fact.squares[phenotype], here)
    others, spread = moments(
        fact.sums.sum() - fact.sums[phenotype], fact.squares.sum() - fact.squares[phenotype], rest
    )
    scale = np.sqrt((variance + spread) / 2)
    effect = (mean - others) / scale if scale > 0 else float("nan")
    return Contrast(label, kind, rounded(mean), rounded(others), rounded(effect))


def moments(total: float, squares: float, count: int) -> tuple[float, float]:
    mean = total / count
    return mean, max(squares / count - mean**2, 0.0)


class Outcome(NamedTuple):
    """Cases, others and patients without a label by group."""

    counts: NDArray[np.int64]
    hidden: Mask


def outcome(labels: NDArray[np.float64] | None, groups: Groups, gate: Gate) -> Outcome | None:
    """None unless the labels are 0 and 1. Where only a few lack a label, they count as no cases."""
    if labels is None:
        return None
    labels = np.asarray(labels, np.float64)
    missing = np.isnan(labels)
    if not np.isin(labels[~missing], (0, 1)).all() or not (labels == 1).any() or not (labels == 0).any():
        return None
    if gate.few(int(missing.sum())):
        gate.note("outcome", "who has no label", "they are few, and counted as no cases")
        labels, missing = np.where(missing, 0.0, labels), np.zeros(len(labels), bool)
    columns = np.column_stack([labels == 1, labels == 0, missing])
    counts = np.rint(groups.sums(columns)).astype(np.int64)
    if gate.few(counts.sum(axis=0)).any():
        gate.note("outcome", "everything about it")
        return None
    return Outcome(counts, gate.table(counts, groups.open))


def outcome_link(found: Outcome | None, groups: Groups, phenotype: int, gate: Gate) -> OutcomeLink | None:
    """Odds of being a case where the phenotype leads against everybody else, with a 95 % interval (Wald)."""
    if found is None:
        return None
    cases, others = (int(n) for n in found.counts[phenotype, :2])
    rest_cases, rest_others = (int(n) for n in found.counts[:, :2].sum(axis=0) - found.counts[phenotype, :2])
    if found.hidden[phenotype].any() or not (cases + others and rest_cases + rest_others):
        if found.hidden[phenotype].any():
            gate.note(f"phenotype {groups.numbers[phenotype]}", "outcome")
        return OutcomeLink(OUTCOME, None, None, None, None, None)
    cells = np.array([cases, others, rest_cases, rest_others], float)
    cells += 0.5 * (cells == 0).any()  # Haldane's correction: no odds without both kinds
    log_ratio = float(np.log(cells[0] * cells[3] / (cells[1] * cells[2])))
    error = Z * float(np.sqrt(np.sum(1 / cells)))
    return OutcomeLink(
        OUTCOME,
        rounded(np.exp(log_ratio)),
        rounded(np.exp(log_ratio - error)),
        rounded(np.exp(log_ratio + error)),
        rounded(cases / (cases + others)),
        rounded(rest_cases / (rest_cases + rest_others)),
    )
