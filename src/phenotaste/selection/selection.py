"""The result of `select`, and the files that it is saved as."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.selection import matching
from phenotaste.selection.fits import SelectionFolder
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Selection:
    """The result of a selection.

    Attributes
    ----------
    table : a row for each cell of the grid; `chosen` marks the one that the rule chose.
    best : the chosen cell's start with the lowest RMSE, fitted.
    evidence : the cosine of each phenotype of `best` with its partner in every other start and bootstrap sample.
    consensus : the matched average of the cell's starts as a model, if requested.
    rule, start : the rule that chose, and the number of the start that is `best`.
    definitions : V of every start of the chosen cell.

    Examples
    --------
    >>> from phenotaste import selection, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> result = selection.select(cohort, ranks=[2, 3], n_init=2)
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

    def plot(self, what: str = "stability") -> "Figure":
        """Return a figure: "stability", "fit", "weights", "starts", "evidence" or, with a hold-out, "holdout".

        Examples
        --------
        >>> from phenotaste import selection, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> result = selection.select(cohort, ranks=[2, 3], n_init=2)
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
        >>> result = selection.select(cohort, ranks=[2, 3], n_init=2)
        >>> {name: result.as_dict()[name] for name in ("rule", "rank", "lam", "mu")}
        {'rule': 'reproducibility', 'rank': 3, 'lam': 0.1, 'mu': 1.0}
        """
        row = self.table[self.table["chosen"]].iloc[0]
        return {
            "rule": self.rule,
            "rank": self.rank,
            "lam": float(self.best.lam),
            "mu": float(self.best.mu),
            "start": self.start,
            "seed": int(self.best.random_state),
            "init": self.best.init,
            "dissimilarity": float(row["dissimilarity"]),
            "reproducibility": float(row["reproducibility"]),
            "rmse": float(self.best.rmse_),
            "cpi": None if np.isnan(self.best.cpi_) else float(self.best.cpi_),
        }

    def save(self, folder: SelectionFolder) -> None:
        """Write tables, model, figures and a short page to the folder of the finished fits."""
        from phenotaste.selection import figures, selection_page

        folder.write("evidence.csv", self.evidence.to_csv(index=False))
        folder.write("reproducibility.csv", self.reproducibility.to_csv(index=False))
        self.best.save(folder.path / "best")
        if self.consensus is not None:
            self.consensus.save(folder.path / "consensus")
        figures.save_all(self, folder.path / "figures")
        folder.write("selection.md", selection_page.render(self))
