"""Phenotype definitions as tables."""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from phenotaste.validation import check_choice

if TYPE_CHECKING:
    import pandas as pd


Rates = tuple[NDArray[Any] | None, NDArray[Any] | None]


def definitions(
    V: NDArray[Any],
    F: NDArray[Any] | None,
    feature_names: NDArray[Any] | None,
    static_names: NDArray[Any] | None,
    *,
    rates: Rates = (None, None),
    top: int | None = 10,
    min_weight: float = 0.1,
    scale: Literal["matrix", "column"] = "matrix",
    largest_entries: tuple[float, float] | None = None,
) -> "pd.DataFrame":
    """Return one row for each feature of weight at least `min_weight`, `top` of each kind, in descending order.

    Weights are relative to the largest entry of the matrix, as in the paper's tables, or of each column; negative ones
    count by their absolute value.
    `rates` are those of static features in the cohort (P) and by phenotype (P × R), NaN where they are not told.
    `largest_entries` are those of the complete matrices if V and F are only parts of them.
    """
    import pandas as pd

    check_choice("scale", scale, ("matrix", "column"))
    rows: list[tuple[int, str, str, float, float, float]] = []
    kinds = [("temporal", V, feature_names), ("static", F, static_names)]
    matrix_largest = dict(zip(("temporal", "static"), largest_entries or (None, None), strict=True))
    for r in range(V.shape[1]):
        for kind, factor, names in kinds:
            if factor is None or factor.size == 0:
                continue
            largest = matrix_largest[kind] if scale == "matrix" else np.abs(factor[:, r]).max()
            largest = np.abs(factor).max() if largest is None else largest
            weight = scaled(factor[:, r], largest)
            size = np.abs(weight)
            heaviest = np.argsort(-size, kind="stable")[:top]
            known = rates if kind == "static" else (None, None)
            rows += [
                (
                    r + 1,
                    kind,
                    str(j) if names is None else str(names[j]),
                    float(weight[j]),
                    *rates_of(known, j, r),
                )
                for j in heaviest.tolist()
                if size[j] >= min_weight and size[j] > 0
            ]
    table = pd.DataFrame(rows, columns=["phenotype", "kind", "feature", "weight", "rate", "cohort_rate"])
    table["lift"] = table["rate"] / table["cohort_rate"].where(table["cohort_rate"] > 0)
    return table


def rates_of(rates: Rates, feature: int, phenotype: int) -> tuple[float, float]:
    """The rate of a static feature among those who have a phenotype, and in the cohort; NaN where not known."""
    cohort, having = rates
    if cohort is None or having is None:
        return float("nan"), float("nan")
    return float(having[feature, phenotype]), float(cohort[feature])


def scaled(factor: NDArray[Any], largest: float) -> NDArray[Any]:
    """Return weights relative to the largest entry, as in all tables, figures and pages."""
    return factor / largest if largest > 0 else factor
