"""How surely a phenotype is found again, from the evidence that selection leaves."""

from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.disclosure import rounded, rounded_all
from phenotaste.report.record import Found, Lines, Stability, StabilityText

if TYPE_CHECKING:
    import pandas as pd

FOUND = 0.8  # the cosine from which a phenotype counts as found again
MOST_VALUES = 100
KINDS = {"starts": "other starts", "bootstrap": "resamples of the patients"}


def evidence_of(selection: Any) -> "pd.DataFrame | None":
    """The table (phenotype, kind, factor, similarity), given as it is or as part of what selection returns."""
    table = getattr(selection, "evidence", selection)
    if table is None or not len(table):
        return None
    return table[(table["factor"] == "V") & np.isfinite(table["similarity"])]


def stability(evidence: "pd.DataFrame | None", number: int) -> Stability | None:
    if evidence is None:
        return None
    mine = evidence[evidence["phenotype"] == number]
    found = {kind: found_again(mine.loc[mine["kind"] == kind, "similarity"].to_numpy()) for kind in KINDS}
    return Stability(**found) if any(found.values()) else None


def found_again(cosines: np.ndarray) -> Found | None:
    if not len(cosines):
        return None
    median, low, high = (rounded(float(np.quantile(cosines, q))) or 0.0 for q in (0.5, 0.05, 0.95))
    kept = np.sort(cosines)[np.linspace(0, len(cosines) - 1, min(len(cosines), MOST_VALUES)).astype(int)]
    return Found(median, low, high, rounded(float(np.mean(cosines >= FOUND))) or 0.0, rounded_all(kept))


def overall(evidence: "pd.DataFrame | None", numbers: list[int]) -> StabilityText | None:
    """The whole model in a sentence and a line for each kind of evidence."""
    if evidence is None:
        return None
    lines: Lines = []
    for kind, words in KINDS.items():
        rows = evidence[(evidence["kind"] == kind) & evidence["phenotype"].isin(numbers)]
        if len(rows):
            medians = rows.groupby("phenotype")["similarity"].median()
            runs = int(rows.groupby("phenotype").size().max())
            text = f"median cosine {medians.median():.2f} over {runs:,} comparisons"
            lines.append((f"In {words}", f"{text}; lowest phenotype {medians.min():.2f}"))
    if not lines:
        return None
    return StabilityText(
        f"A phenotype counts as found again where its temporal definition has a cosine of at least {FOUND:g} with its "
        "counterpart.",
        lines,
    )
