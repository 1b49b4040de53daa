"""Would it be found again? For each phenotype of the chosen model: over its starts, and over resampled patients."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from phenotaste.selection.files import Result
from phenotaste.selection.matching import FOUND, matched

if TYPE_CHECKING:
    import pandas as pd

STARTS, BOOTSTRAP = "starts", "bootstrap"
COLUMNS = ["phenotype", "kind", "factor", "similarity"]


def evidence(best: Result, others: Iterable[Result], resampled: Iterable[Result]) -> "pd.DataFrame":
    """One row for each phenotype, comparison and factor: the cosine with its one-to-one partner."""
    import pandas as pd

    rows: list[tuple[int, str, str, float]] = []
    for kind, results in ((STARTS, others), (BOOTSTRAP, resampled)):
        for result in results:
            found = matched(best, result)
            for factor, cosines in (("V", found.V), ("F", found.F)):
                if cosines is not None:
                    rows += [(r + 1, kind, factor, float(cosine)) for r, cosine in enumerate(cosines)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(COLUMNS[:3], ascending=[True, False, False], kind="stable", ignore_index=True)


def found_again(table: "pd.DataFrame") -> "pd.DataFrame":
    """The evidence in short: how often each phenotype was found again, and the spread of its similarities."""
    groups = table.groupby(COLUMNS[:3], sort=False)["similarity"]
    short = groups.agg(
        comparisons="size",
        found_again=lambda cosines: float(np.mean(cosines >= FOUND)),
        lowest="min",
        quarter=lambda cosines: float(np.quantile(cosines, 0.25)),
        median="median",
    )
    return short.reset_index()
