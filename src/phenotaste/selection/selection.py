"""The record that `select` returns, and the files it is kept as."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.selection import evidence as evidence_of
from phenotaste.selection.folder import Folder
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Selection:
    """What a selection found.

    Attributes
    ----------
    table : a row for each cell of the grid; `chosen` marks the one that the rule named.
    best : the chosen cell's start with the lowest RMSE, fitted.
    evidence : for each phenotype of `best` the similarity with its partner in every other start and resample.
    consensus : the matched average of the cell's starts as a model, where asked for.
    rule, start : the rule that chose, and the number of the start that is `best`.
    definitions : V of every start of the chosen cell.

    Examples
    --------
    >>> from phenotaste import selection, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> found = selection.select(cohort, ranks=[2, 3], n_init=2)
    >>> found.table.loc[found.table["chosen"], ["rank", "starts"]].to_numpy().tolist()
    [[3, 2]]
    >>> found.best.V_.shape, bool((found.found_again["lowest"] > 0.99).all())
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
    def found_again(self) -> "pd.DataFrame":
        """How often each phenotype was found again (a cosine of at least 0.8), and the spread of its similarities."""
        return evidence_of.found_again(self.evidence)

    def plot(self, what: str = "stability") -> "Figure":
        """A figure: "stability", "fit", "weights", "starts", "evidence" or, with a hold-out, "unseen".

        Examples
        --------
        >>> from phenotaste import selection, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> found = selection.select(cohort, ranks=[2, 3], n_init=2)
        >>> found.plot("fit").axes[0].get_xlabel()
        'number of phenotypes'
        """
        from phenotaste.selection import figures

        return figures.draw(self, what)

    def as_dict(self) -> dict[str, Any]:
        """The choice in short, for JSON.

        Examples
        --------
        >>> from phenotaste import selection, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> found = selection.select(cohort, ranks=[2, 3], n_init=2)
        >>> {name: found.as_dict()[name] for name in ("rule", "rank", "lam", "mu")}
        {'rule': 'found-again', 'rank': 3, 'lam': 0.1, 'mu': 1.0}
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
            "found_again": float(row["found_again"]),
            "rmse": float(self.best.rmse_),
            "cpi": None if np.isnan(self.best.cpi_) else float(self.best.cpi_),
        }

    def save(self, folder: Folder) -> None:
        """Write tables, model, figures and a short page beside the finished fits."""
        from phenotaste.selection import figures, selection_page

        folder.put("evidence.csv", self.evidence.to_csv(index=False))
        folder.put("found_again.csv", self.found_again.to_csv(index=False))
        self.best.save(folder.path / "best")
        if self.consensus is not None:
            self.consensus.save(folder.path / "consensus")
        figures.save_all(self, folder)
        folder.put("selection.md", selection_page.render(self))
