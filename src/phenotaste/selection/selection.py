"""The result of `select`, its page, and the files that it is saved as."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste import __version__
from phenotaste.selection import matching
from phenotaste.selection.fits import SelectionFolder
from phenotaste.selection.grid import Cell
from phenotaste.selection.rules import MIN_CPI, RULES, by_rank, choose, edge_warning
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

HALVES = (
    "split_half_cosine",
    "split_half_cosine_min",
    "split_half_cosine_static",
    "split_half_cosine_static_min",
)


@dataclass(frozen=True, eq=False)
class Selection:
    """The result of a selection.

    Attributes
    ----------
    table : a row for each cell of the grid; `chosen` marks the one that the rule chose.
    best : the chosen cell's start with the lowest objective, fitted.
    evidence : the cosine of each phenotype of `best` with its partner in the fit of every half of the patients, in
        every other start and in every bootstrap sample.
    consensus : the matched average of the cell's starts as a model, if requested.
    rule, start : the rule that chose, and the number of the start that is `best`.
    definitions : V of every start of the chosen cell.

    Examples
    --------
    >>> from phenotaste import selection, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> result = selection.select(cohort, ranks=[2, 3], n_init=2, halves=0)
    >>> result.table.loc[result.table["chosen"], ["rank", "starts"]].to_numpy().tolist()
    [[3, 2]]
    >>> result.best.V_.shape, bool((result.reproducibility["minimum"] > 0.99).all())
    ((30, 3), True)
    """

    table: "pd.DataFrame"
    best: TASTE
    rule: str
    start: int
    evidence: "pd.DataFrame"
    consensus: TASTE | None
    definitions: list[np.ndarray]  # V of every start of the chosen cell

    @property
    def rank(self) -> int:
        """The number of phenotypes chosen."""
        return int(self.best.rank)

    @property
    def reproducibility(self) -> "pd.DataFrame":
        """The fraction of comparisons that reproduce each phenotype (a cosine of at least 0.8), and quantiles."""
        return matching.reproducibility(self.evidence)

    @property
    def warning(self) -> str | None:
        """A sentence if the choice is at the edge of the grid, otherwise None.

        Examples
        --------
        >>> from phenotaste import selection, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> selection.select(cohort, ranks=[2, 3], n_init=2, halves=0).warning
        'The choice is at the edge of the grid (rank=3 is the largest): extend the grid and resume.'
        """
        return edge_warning(self.table, self.table.index[self.table["chosen"]][0])

    def plot(self, what: str = "stability") -> "Figure":
        """Return a figure: "stability", "halves", "fit", "weights", "starts" or "evidence".

        Examples
        --------
        >>> from phenotaste import selection, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> result = selection.select(cohort, ranks=[2, 3], n_init=2, halves=0)
        >>> result.plot("fit").axes[0].get_xlabel()
        'number of phenotypes'
        """
        from phenotaste.selection import figures

        return figures.draw(self, what)

    def as_dict(self) -> dict[str, Any]:
        """Return the choice as a dictionary, for JSON.

        Examples
        --------
        >>> from phenotaste import selection, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> result = selection.select(cohort, ranks=[2, 3], n_init=2, halves=0)
        >>> {name: result.as_dict()[name] for name in ("rule", "rank", "lam", "mu")}
        {'rule': 'reproducibility', 'rank': 3, 'lam': 0.01, 'mu': 1.0}
        """
        row = self.table[self.table["chosen"]].iloc[0]
        return {
            "rule": self.rule,
            "rank": self.rank,
            "lam": float(self.best.lam),
            "mu": float(self.best.mu),
            "smooth": float(self.best.smooth),
            "start": self.start,
            "seed": int(self.best.random_state),
            "init": self.best.init,
            "dissimilarity": float(row["dissimilarity"]),
            "reproducibility": float(row["reproducibility"]),
            **{name: number_or_none(row.get(name)) for name in HALVES},
            "rmse": float(self.best.rmse_),
            "cpi": number_or_none(self.best.cpi_),
            "cpi_present": number_or_none(self.best.cpi_present_),
            "warning": self.warning,
        }

    def save(self, folder: SelectionFolder) -> None:
        """Write tables, model, figures and a short page to the folder of the finished fits."""
        from phenotaste.selection import figures, selection

        folder.write("evidence.csv", self.evidence.to_csv(index=False))
        folder.write("reproducibility.csv", self.reproducibility.to_csv(index=False))
        self.best.save(folder.path / "best")
        if self.consensus is not None:
            self.consensus.save(folder.path / "consensus")
        figures.save_all(self, folder.path / "figures")
        folder.write("selection.md", selection.render(self))


def render(result: "Selection") -> str:
    chosen = result.as_dict()
    lines = [
        "# Model selection",
        "",
        f"**{chosen['rank']} phenotypes** with lam = {chosen['lam']:g}, mu = {chosen['mu']:g} and "
        f"smooth = {chosen['smooth']:g}, by the rule "
        f"“{result.rule}”: {rule_summary(result.rule)} The model in `best` is start {chosen['start']}, "
        "the one of that cell with the lowest objective.",
        "",
        *([] if result.warning is None else [result.warning, ""]),
        "## By number of phenotypes",
        "",
        weights_sentence(result),
        *([] if "split_half_cosine" not in result.table else [HALVES_SENTENCE]),
        "",
        *markdown(rank_table(result)),
        "",
        "## The choice of other rules",
        "",
        *markdown(other_rules(result)),
        "",
        "## Reproducibility of each phenotype",
        "",
        "Cosine with the one-to-one partner in halves of the patients, fitted separately, in other starts and in "
        "bootstrap samples; a phenotype is reproduced if it is at least 0.8.",
        "",
        *markdown(result.reproducibility),
        "",
        "A phenotype that halves of the patients, other starts or bootstrap samples do not reproduce depends on "
        "chance: do not rely on it. "
        "`table.csv` and `evidence.csv` have all figures.",
        "",
        f"phenotaste {__version__}",
    ]
    return "\n".join(lines) + "\n"


def rule_summary(rule: str) -> str:
    text = (RULES[rule].choose.__doc__ or "").splitlines()[0]
    return text[:1].lower() + text[1:]


def weights_sentence(result: "Selection") -> str:
    if not RULES[result.rule].by_rank:
        return "At each number the weights with the lowest dissimilarity."
    best = (
        "that replicate best in halves of the patients"
        if RULES[result.rule].halves
        else "with the lowest dissimilarity"
    )
    return (
        f"At each number the weights {best} among those whose phenotypes are unique "
        f"(CPI of at least {MIN_CPI:g}), if there are any."
    )


HALVES_SENTENCE = (
    "The split-half cosine is that of the phenotypes of two random halves of the patients, fitted separately and "
    "matched one to one: of the temporal and of the static definitions, mean and lowest phenotype."
)


def rank_table(result: "Selection") -> "pd.DataFrame":
    columns = [
        *Cell._fields,
        "dissimilarity",
        "dissimilarity_se",
        "reproducibility",
        "rmse",
        "cpi",
        "cpi_present",
    ]
    columns += [name for name in (*HALVES, "held_out_error") if name in result.table]
    return by_rank(result.rule, result.table)[columns]


def other_rules(result: "Selection") -> "pd.DataFrame":
    """Return the cell that each rule chooses in this table."""
    import pandas as pd

    rows = []
    for name, rule in RULES.items():
        if rule.halves and "split_half_cosine_min" not in result.table:
            continue
        row = result.table.loc[choose(name, result.table)]
        rows.append((name, int(row["rank"]), row["lam"], row["mu"], row["smooth"]))
    return pd.DataFrame(rows, columns=["rule", *Cell._fields])


def markdown(table: "pd.DataFrame") -> list[str]:
    names = [str(name).replace("_", " ") for name in table.columns]
    rows = [[format_value(value) for value in row] for row in table.itertuples(index=False)]
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *rows)]


def number_or_none(value: Any) -> float | None:
    return None if value is None or np.isnan(value) else float(value)


def format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
