"""What `phenotaste select` found about a model's stability, for the page: similarities over starts and resamples."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phenotaste import model_file
from phenotaste.errors import InputError
from phenotaste.review import fingerprint

if TYPE_CHECKING:
    import pandas as pd

EVIDENCE, BEST = "evidence.csv", "best"
COLUMNS = ("phenotype", "kind", "factor", "similarity")
KINDS, FACTORS = ("starts", "bootstrap"), ("V", "F")
LARGEST_FILE = 64 * 2**20


def read(folder: str | os.PathLike[str], model: Any) -> "pd.DataFrame":
    """The evidence that a selection left about this very model: phenotype, kind, factor, similarity."""
    place = Path(folder)
    path = place / EVIDENCE
    if not path.is_file() or not (place / BEST).is_dir():
        raise InputError(
            f"{folder} is not the folder of a finished selection: give the --out of phenotaste select."
        )
    if not is_best(place / BEST, model):
        raise InputError(
            f"{folder} chose another model than this one, so that what it says about stability does not hold here: "
            f"report on {place / BEST}, or leave --selection out."
        )
    return table_of(path, model.V_.shape[1])


def is_best(best: Path, model: Any) -> bool:
    """Whether the model saved there has the definitions of this one."""
    method = type(model).__name__
    if model_file.method_of(best) != method:
        return False
    return fingerprint(type(model).load(best)) == fingerprint(model)


def table_of(path: Path, n_phenotypes: int) -> "pd.DataFrame":
    import pandas as pd

    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError("too large")
        table = pd.read_csv(path, keep_default_na=False, encoding="utf-8")
        table = table[list(COLUMNS)].astype({"similarity": "float64"})
        if table["phenotype"].dtype != "int64":
            raise ValueError("numbers")
        sound = table["phenotype"].between(1, n_phenotypes) & table["similarity"].between(-1.001, 1.001)
        sound &= table["kind"].isin(KINDS) & table["factor"].isin(FACTORS)
        if not sound.all() or not math.isfinite(table["similarity"].sum()):
            raise ValueError("values")
    except (ValueError, KeyError, TypeError, OverflowError):
        raise InputError(
            f"{path} cannot be read as the evidence of a selection: run the selection again."
        ) from None
    return table
