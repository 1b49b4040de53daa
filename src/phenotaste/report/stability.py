"""How reproducible each phenotype is, from the evidence that `phenotaste select` writes: halves, starts, resamples."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste import model_file
from phenotaste.disclosure import rounded, rounded_all
from phenotaste.errors import InputError
from phenotaste.report.schema import Lines, Reproducibility, Stability, StabilityText
from phenotaste.review import fingerprint

if TYPE_CHECKING:
    import pandas as pd

EVIDENCE, BEST = "evidence.csv", "best"
COLUMNS = ("phenotype", "kind", "factor", "similarity")
FACTORS = ("V", "F")
KINDS = {
    "halves": "halves of the patients",
    "starts": "other starts",
    "bootstrap": "resamples of the patients",
}
MAX_FILE_SIZE = 64 * 2**20
MIN_COSINE = 0.8  # from which a phenotype counts as reproduced
MAX_VALUES = 100


def read_evidence(folder: str | os.PathLike[str], model: Any) -> "pd.DataFrame":
    """Read the table (phenotype, kind, factor, similarity) of the selection that chose this model."""
    path = Path(folder)
    if not (path / EVIDENCE).is_file() or not (path / BEST).is_dir():
        raise InputError(
            f"{folder} is not the folder of a finished selection: give the --out of phenotaste select."
        )
    if not is_same_model(path / BEST, model):
        raise InputError(
            f"{folder} chose another model, so its evidence of stability does not apply to this one: "
            f"report on {path / BEST}, or leave --selection out."
        )
    return read_table(path / EVIDENCE, model.V_.shape[1])


def is_same_model(folder: Path, model: Any) -> bool:
    """Whether the model saved in a folder has the same definitions."""
    if model_file.method_of(folder) != type(model).__name__:
        return False
    return fingerprint(type(model).load(folder)) == fingerprint(model)


def read_table(path: Path, n_phenotypes: int) -> "pd.DataFrame":
    import pandas as pd

    try:
        if path.stat().st_size > MAX_FILE_SIZE:
            raise ValueError("too large")
        table = pd.read_csv(path, keep_default_na=False, encoding="utf-8")
        table = table[list(COLUMNS)].astype({"similarity": "float64"})
        if table["phenotype"].dtype != "int64":
            raise ValueError("phenotypes are not integers")
        valid = table["phenotype"].between(1, n_phenotypes) & table["similarity"].between(-1.001, 1.001)
        valid &= table["kind"].isin(KINDS) & table["factor"].isin(FACTORS)
        if not valid.all() or not math.isfinite(table["similarity"].sum()):
            raise ValueError("values out of range")
    except (ValueError, KeyError, TypeError, OverflowError):
        raise InputError(
            f"{path} cannot be read as the evidence of a selection: run the selection again."
        ) from None
    return table


def temporal_evidence(selection: Any) -> "pd.DataFrame | None":
    """The rows about temporal definitions, of an evidence table or of what `selection.select` returns."""
    table = getattr(selection, "evidence", selection)
    if table is None or not len(table):
        return None
    return table[(table["factor"] == "V") & np.isfinite(table["similarity"])]


def stability(evidence: "pd.DataFrame | None", number: int) -> Stability | None:
    if evidence is None:
        return None
    rows = evidence[evidence["phenotype"] == number]
    kinds = {kind: reproducibility(rows.loc[rows["kind"] == kind, "similarity"].to_numpy()) for kind in KINDS}
    return Stability(**kinds) if any(kinds.values()) else None


def reproducibility(cosines: np.ndarray) -> Reproducibility | None:
    if not len(cosines):
        return None
    median, low, high = (rounded(float(np.quantile(cosines, q))) or 0.0 for q in (0.5, 0.05, 0.95))
    kept = np.sort(cosines)[np.linspace(0, len(cosines) - 1, min(len(cosines), MAX_VALUES)).astype(int)]
    share = rounded(float(np.mean(cosines >= MIN_COSINE))) or 0.0
    reproduced = int(np.sum(cosines >= MIN_COSINE))
    return Reproducibility(median, low, high, share, rounded_all(kept), reproduced, len(cosines))


def overall_stability(evidence: "pd.DataFrame | None", numbers: list[int]) -> StabilityText | None:
    """The stability of the model: a sentence, and a line for each kind of evidence."""
    if evidence is None:
        return None
    lines: Lines = []
    for kind, label in KINDS.items():
        rows = evidence[(evidence["kind"] == kind) & evidence["phenotype"].isin(numbers)]
        if len(rows):
            medians = rows.groupby("phenotype")["similarity"].median()
            runs = int(rows.groupby("phenotype").size().max())
            text = f"median cosine {medians.median():.2f} over {runs:,} comparisons"
            lines.append((f"In {label}", f"{text}; lowest phenotype {medians.min():.2f}"))
    if not lines:
        return None
    return StabilityText(
        f"A phenotype counts as reproduced if its temporal definition has a cosine of at least {MIN_COSINE:g} with "
        "its counterpart.",
        lines,
    )
