"""The result of a comparison: its tables, made from the finished fits alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.comparison.fits import ComparisonFolder, Patients, Result
from phenotaste.comparison.methods import METHODS
from phenotaste.comparison.tasks import GROUP, HALF, SPLIT, START, FitSettings, Plan, Task, half_pairs
from phenotaste.core.records import Array
from phenotaste.disclosure import Gate, Suppressed, printable, rounding_key
from phenotaste.prediction.evaluation_tables import over_splits
from phenotaste.report.names import has_date
from phenotaste.selection.matching import MIN_COSINE, Matched, match_factors
from phenotaste.storage.encoding import json_value

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TOP_FEATURES = 8
MIN_WEIGHT = 0.1  # relative to the heaviest feature of the phenotype
Finished = dict[Task, Result]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of a comparison.

    Attributes
    ----------
    table : a row for each method and number of phenotypes: replication between halves, starts and groups, AUC, error,
        CPI, time, memory.
    phenotypes : a row for each phenotype of the first fit of each method: top features, replication, share of cases
        among the tenth of the patients with the highest score.
    counterparts : for each phenotype its counterpart in every other method with as many phenotypes, and their cosine.
    groups : the groups that were fitted separately.
    audit : what is not shown, and why.

    Examples
    --------
    >>> from phenotaste import comparison, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=300)
    >>> result = comparison.compare(cohort, ["spartan", "nmf"], ranks=3, halves=1, starts=1, splits=0, jobs=1)
    >>> result.phenotypes.groupby("method").size().to_dict()
    {'nmf': 3, 'spartan': 3}
    """

    table: "pd.DataFrame"
    phenotypes: "pd.DataFrame"
    counterparts: "pd.DataFrame"
    groups: tuple[str, ...]
    n_patients: int | None  # rounded
    plan: Plan
    audit: list[Suppressed] = field(default_factory=list)
    trusted: bool = False

    @classmethod
    def of(
        cls, patients: Patients, plan: Plan, folder: ComparisonFolder, settings: FitSettings
    ) -> "Comparison":
        finished = folder.load_all(plan.tasks())
        gate = Gate(trusted=settings.trusted, key=key_of(patients))
        gate = gate.for_rows(patients.cohort.rows_per_patient)
        shown = shown_features(patients, gate)
        persons = int(patients.cohort.persons.max(initial=-1)) + 1
        return cls(
            summary_table(plan, finished),
            phenotypes_table(plan, finished, shown),
            counterparts_table(plan, finished),
            plan.groups,
            gate.count("patients", persons),
            plan,
            list(gate.audit),
            settings.trusted,
        )

    def plot(self, what: str = "methods") -> "Figure":
        """Return a figure: "methods", or "counterparts".

        Examples
        --------
        >>> from phenotaste import comparison, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> result = comparison.compare(cohort, ["spartan", "nmf"], ranks=3, halves=1, starts=1, splits=0, jobs=1)
        >>> result.plot("methods").axes[0].get_xlabel()
        'cosine'
        """
        from phenotaste.comparison import figures

        return figures.draw(self, what)

    def as_dict(self) -> dict[str, Any]:
        """Return the table as a list of records, for JSON, without times and memory.

        Examples
        --------
        >>> from phenotaste import comparison, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> result = comparison.compare(cohort, ["spartan", "nmf"], ranks=3, halves=1, starts=1, splits=0, jobs=1)
        >>> [(row["method"], row["rank"]) for row in result.as_dict()["table"]]
        [('spartan', 3), ('nmf', 3)]
        """
        table = self.table.drop(columns=[name for name in COSTS if name in self.table])
        return {"patients": self.n_patients, "table": json_value(table.to_dict("records"))}

    def save(self, folder: ComparisonFolder) -> None:
        """Write tables, figures and a page to the folder of the finished fits."""
        from phenotaste.comparison import figures, page

        write_tables(self, folder)
        figures.save_all(self, folder.path / "figures")
        folder.write("comparison.html", page.render(self), private=self.trusted)


def write_tables(result: Comparison, folder: ComparisonFolder) -> None:
    """Write the tables; times and memory, which differ from run to run, have a table of their own."""
    measured = [name for name in COSTS if name in result.table]
    folder.write("table.csv", csv(result.table.drop(columns=measured)), private=result.trusted)
    folder.write("times.csv", csv(result.table[["method", "rank", *measured]]), private=result.trusted)
    folder.write("phenotypes.csv", csv(result.phenotypes), private=result.trusted)
    folder.write("counterparts.csv", csv(result.counterparts), private=result.trusted)


def csv(table: "pd.DataFrame") -> str:
    return str(table.to_csv(index=False, float_format="%.6g"))


def key_of(patients: Patients) -> str:
    cohort = patients.cohort
    return rounding_key(cohort.offsets, cohort.static, patients.case)


# Summary -----------------------------------------------------------------------------------------------------------

COSTS = ("seconds", "processor_seconds", "memory_mb")


def summary_table(plan: Plan, finished: Finished) -> "pd.DataFrame":
    """A row for each method and number of phenotypes; NaN where nothing was measured."""
    import pandas as pd

    rows = []
    for method, rank in plan.cells():
        row: dict[str, Any] = {"method": method, "rank": np.nan if rank is None else rank}
        row |= replication("halves", half_matches(plan, finished, method, rank))
        row |= replication("starts", start_matches(plan, finished, method, rank))
        row |= replication("groups", group_matches(plan, finished, method, rank))
        row |= prediction(plan, finished, method, rank)
        row |= fit_figures(plan, finished, method, rank)
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.drop(columns=[name for name in table if table[name].isna().all() and name != "rank"])


def results(kind: str, count: int, finished: Finished, method: str, rank: int | None) -> list[Result | None]:
    return [finished.get(Task(kind, method, rank, number)) for number in range(count)]


def matched(one: Result | None, other: Result | None) -> Iterator[Matched]:
    """The matching of two finished fits, if both are."""
    if one is not None and other is not None and one.V is not None and other.V is not None:
        yield match_factors(one.V, one.F, other.V, other.F)


def half_matches(plan: Plan, finished: Finished, method: str, rank: int | None) -> list[Matched]:
    """The halves of each repetition with each other."""
    halves = results(HALF, 2 * plan.halves, finished, method, rank)
    return [found for a, b in half_pairs(plan.halves) for found in matched(halves[a], halves[b])]


def start_matches(plan: Plan, finished: Finished, method: str, rank: int | None) -> list[Matched]:
    """The first fit of all patients with the others."""
    first, *others = results(START, plan.starts, finished, method, rank)
    return [found for other in others for found in matched(first, other)]


def group_matches(plan: Plan, finished: Finished, method: str, rank: int | None) -> list[Matched]:
    """Every pair of groups."""
    groups = results(GROUP, len(plan.groups), finished, method, rank)
    pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
    return [found for a, b in pairs for found in matched(groups[b], groups[a])]


def replication(name: str, matches: Sequence[Matched]) -> dict[str, float]:
    """Mean cosine of V and of F, its range over the repetitions, and the share of phenotypes that are found again."""
    row: dict[str, float] = {}
    for factor in ("V", "F"):
        known = [getattr(found, factor) for found in matches if getattr(found, factor) is not None]
        means = [float(cosines.mean()) for cosines in known]
        row[f"{name}_{factor}"] = float(np.mean(means)) if means else np.nan
        row[f"{name}_{factor}_low"] = min(means, default=np.nan)
        row[f"{name}_{factor}_high"] = max(means, default=np.nan)
        row[f"{name}_{factor}_min"] = float(np.mean([c.min() for c in known])) if known else np.nan
        row[f"{name}_{factor}_found"] = (
            float(np.mean([(c >= MIN_COSINE).mean() for c in known])) if known else np.nan
        )
    return row


def prediction(plan: Plan, finished: Finished, method: str, rank: int | None) -> dict[str, float]:
    """Mean AUC over the splits, and the interval of the mean."""
    row: dict[str, float] = {}
    splits = [found for found in results(SPLIT, plan.splits, finished, method, rank) if found is not None]
    for name in ("auc", "auc_static", "auc_size"):
        values = [found.figures[name] for found in splits if found.figures[name] is not None]
        row[name] = float(np.mean(values)) if values else np.nan
        interval = over_splits(values, "auc") if len(values) > 1 else {}
        row[f"{name}_low"] = interval.get("auc_splits_low", np.nan)
        row[f"{name}_high"] = interval.get("auc_splits_high", np.nan)
    return row


def fit_figures(plan: Plan, finished: Finished, method: str, rank: int | None) -> dict[str, float]:
    """Medians over the fits of all patients; the error is also measured in the patients of the other half."""
    starts = [found for found in results(START, plan.starts, finished, method, rank) if found is not None]
    halves = [found for found in results(HALF, 2 * plan.halves, finished, method, rank) if found is not None]
    row = {name: middle(starts, name) for name in ("error", "rmse", "cpi", "cpi_present", "n_iter")}
    row["held_out_error"] = middle(halves, "held_out_error")
    row["converged"] = (
        float(np.mean([found.figures.get("outcome") == "converged" for found in starts]))
        if starts
        else np.nan
    )
    row |= {name: middle(starts, name) for name in ("seconds", "processor_seconds")}
    row["memory_mb"] = middle(starts, "memory") / 2**20
    return row


def middle(found: Sequence[Result], name: str) -> float:
    values = [result.figures[name] for result in found if result.figures.get(name) is not None]
    return float(np.median(values)) if values else np.nan


# Phenotypes --------------------------------------------------------------------------------------------------------


class Shown:
    """Names of the features that may be shown, by position; None for the others."""

    def __init__(self, temporal: list[str | None], static: list[str | None]) -> None:
        self.temporal, self.static = temporal, static


def shown_features(patients: Patients, gate: Gate) -> Shown:
    """Features of enough patients and without a date in their name."""
    cohort = patients.cohort
    persons = cohort.persons
    owner = np.repeat(persons, np.diff(cohort.offsets))
    entries = cohort.visits.tocoo()
    having = np.unique(np.stack([owner[entries.coords[0]], entries.coords[1]]), axis=1)
    temporal = np.bincount(having[1], minlength=cohort.n_features)
    names = range(cohort.n_features) if cohort.feature_names is None else cohort.feature_names
    static_names: list[Any] = []
    static_counts: list[int] = []
    if cohort.static is not None:
        given = cohort.static_names
        static_names = list(range(cohort.static.shape[1]) if given is None else given)
        static_counts = [len(np.unique(persons[column != 0])) for column in np.asarray(cohort.static).T]
    shown = [
        allowed(list(names), temporal.tolist(), "temporal", gate),
        allowed(static_names, static_counts, "static", gate),
    ]
    hidden = sum(name is None for part in shown for name in part)
    if hidden:
        gate.note("phenotypes", f"{hidden:,} feature{'' if hidden == 1 else 's'}")
    return Shown(*shown)


def allowed(names: list[Any], counts: list[int], kind: str, gate: Gate) -> list[str | None]:
    pairs = [(str(name), count) for name, count in zip(names, counts, strict=True)]
    return [
        printable(name)
        if gate.trusted or (gate.count(f"{kind} {name}", count) is not None and not has_date(name))
        else None
        for name, count in pairs
    ]


def phenotypes_table(plan: Plan, finished: Finished, shown: Shown) -> "pd.DataFrame":
    """The phenotypes of the first fit of each method, with their replication in halves of the patients."""
    import pandas as pd

    rows = []
    for method, rank in plan.cells():
        first = finished.get(Task(START, method, rank, 0)) if rank is not None else None
        if first is None or first.V is None:
            continue
        halves = [
            match_factors(first.V, first.F, half.V, half.F)
            for half in results(HALF, 2 * plan.halves, finished, method, rank)
            if half is not None and half.V is not None
        ]
        outcome = first.figures.get("outcome_top") or [None] * first.V.shape[1]
        for r in range(first.V.shape[1]):
            cosines = [found.V[r] for found in halves]
            rows.append(
                {
                    "method": method,
                    "rank": rank,
                    "phenotype": r + 1,
                    "features": "; ".join(top_features(first.V[:, r], shown.temporal)),
                    "static": "; ".join(top_features(first.F[:, r], shown.static, 3))
                    if first.F is not None
                    else "",
                    "halves": len(cosines),
                    "found": sum(cosine >= MIN_COSINE for cosine in cosines),
                    "cosine": float(np.mean(cosines)) if cosines else np.nan,
                    "outcome_top": np.nan if outcome[r] is None else outcome[r],
                }
            )
    table = pd.DataFrame(rows, columns=PHENOTYPE_COLUMNS)
    return table.drop(columns=[name for name in ("outcome_top",) if table[name].isna().all()])


PHENOTYPE_COLUMNS = [
    *("method", "rank", "phenotype", "features", "static", "halves", "found", "cosine", "outcome_top")
]


def top_features(column: Array, names: Sequence[str | None], n: int = TOP_FEATURES) -> list[str]:
    """The heaviest features that may be shown; signed weights by size, negative ones marked."""
    size = np.abs(column)
    heaviest = np.argsort(-size, kind="stable")[:n].tolist()
    least = MIN_WEIGHT * size.max(initial=0.0)
    kept = [j for j in heaviest if size[j] > 0 and size[j] >= least]
    return [f"{'−' if column[j] < 0 else ''}{names[j] or '(withheld)'}" for j in kept]


def counterparts_table(plan: Plan, finished: Finished) -> "pd.DataFrame":
    """Each phenotype with its counterpart in every other method, matched one to one."""
    import pandas as pd

    rows = []
    for rank in plan.ranks:
        firsts = {
            method: found
            for method in plan.methods
            if METHODS[method].ranked and (found := finished.get(Task(START, method, rank, 0))) is not None
        }
        for method, one in firsts.items():
            for other, another in firsts.items():
                if other == method:
                    continue
                for pairs in matched(one, another):
                    rows += [
                        (method, rank, r + 1, other, int(partner) + 1, float(cosine))
                        for r, (partner, cosine) in enumerate(zip(pairs.partner, pairs.V, strict=True))
                    ]
    columns = ["method", "rank", "phenotype", "other", "other_phenotype", "cosine"]
    return pd.DataFrame(rows, columns=columns)
