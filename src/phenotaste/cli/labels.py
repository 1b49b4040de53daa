"""Labels from a file of the user's: a row for each patient, matched by id, never shown."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste.cohort import Cohort

COLUMNS = ("patient", "label")


def labels_from(path: Path, cohort: "Cohort") -> np.ndarray:
    """One number for each patient of the cohort, NaN where the file has none; other patients' rows are left out."""
    import pandas as pd

    try:
        table = (
            pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, dtype={"patient": str})
        )
    except (ValueError, UnicodeDecodeError, ImportError):
        raise InputError(
            f"{path} is neither a CSV nor a Parquet file that can be read: write it again."
        ) from None
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise InputError(f"{path} has no column {' and '.join(missing)}: name its columns patient and label.")
    ids = table["patient"].astype(str)
    if ids.duplicated().any():
        raise InputError(f"{path} has two rows for one patient: leave one label for each.")
    numbers = pd.to_numeric(table["label"], errors="coerce")
    if (numbers.isna() & table["label"].notna()).any():
        raise InputError(
            f"{path} has a label that is not a number: use 0 and 1, and nothing where it is unknown."
        )
    found = pd.Series(numbers.to_numpy(np.float64), index=ids).reindex(cohort.patient_ids.astype(str))
    if found.isna().all():
        raise InputError(f"{path} has a label for none of the cohort's patients: compare the ids.")
    return found.to_numpy(np.float64)
