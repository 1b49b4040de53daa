"""Arguments and options that commands share, and the readers of the files they name.

The accepted values are repeated here so that `--help` does not import the estimator.
"""

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from phenotaste.cohort import Cohort
    from phenotaste.factorization import Factorization
    from phenotaste.phenotype_model import PhenotypeModel

# The columns of a table of labels, and other names of them, as `phenotaste cohort --labels` accepts them.
LABEL_COLUMNS = {"patient": ("patient", "subject_id"), "label": ("label", "value", "boolean_value")}

CohortFolder = Annotated[
    Path, typer.Argument(help="Folder of a saved cohort.", metavar="COHORT", show_default=False)
]
ModelFolder = Annotated[
    Path, typer.Argument(help="Folder of a saved model.", metavar="MODEL", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ReviewFile = Annotated[
    Path | None,
    typer.Option(help="A review.json saved by a report page: names, merges, rejections.", show_default=False),
]
Seed = Annotated[int, typer.Option(help="Random seed.", min=0, max=2**32 - 1)]
ThreadCount = Annotated[
    int | None, typer.Option(help="Number of threads; all cores by default.", min=1, show_default=False)
]


class ObjectiveChoice(StrEnum):
    RELATIVE = "relative"
    PAPER = "paper"


Balance = Annotated[
    float,
    typer.Option(
        help="A record of n entries counts n ** balance: 0: every patient the same, 1: every entry."
    ),
]


class InitChoice(StrEnum):
    SHORT_FITS = "short_fits"
    NMF = "nmf"
    NMF_VISITS = "nmf_visits"
    RANDOM = "random"


class DeviceChoice(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"
    AUTO = "auto"


class DtypeChoice(StrEnum):
    FLOAT64 = "float64"
    FLOAT32 = "float32"


def load_model(path: Path, threads: int | None = None) -> "PhenotypeModel":
    """Load the model in a folder, of TASTE or of any baseline that has phenotypes."""
    from phenotaste import TASTE, baselines, model_file
    from phenotaste.phenotype_model import PhenotypeModel

    method = model_file.method_of(path)
    known = {"TASTE": TASTE} | {
        name: getattr(baselines, name) for name in baselines.__all__ if name == method
    }
    if method not in known or not issubclass(known[method], PhenotypeModel):
        raise InputError(
            f"{path} holds a model of {method}, which this version does not know: upgrade phenotaste."
        )
    model = known[method].load(path)
    if "n_jobs" in model.get_params():
        model.set_params(n_jobs=threads)
    return model


def load_factorization(path: Path) -> "Factorization":
    """Load the model in a folder, of TASTE or of a baseline with courses."""
    from phenotaste.factorization import Factorization

    model = load_model(path)
    if not isinstance(model, Factorization):
        raise InputError(
            f"{path} holds a model of {type(model).__name__}, which has no shareable copy: keep it where the data is."
        )
    return model


def labels_from(path: Path, cohort: "Cohort") -> "np.ndarray":
    """Read the label of each patient of the cohort, matched by id; NaN where the file has none."""
    import pandas as pd

    given = column_by_patient(path, "labels", {"label": LABEL_COLUMNS["label"]})
    values: Any = pd.to_numeric(given, errors="coerce")
    if (values.isna() & given.notna()).any():
        raise InputError(
            f"{path} has a label that is not a number: use 0 and 1, and leave unknown labels empty."
        )
    labels = values.reindex(cohort.patient_ids.astype(str)).to_numpy("float64")
    if (labels != labels).all():
        raise InputError(f"{path} has no label for any patient of the cohort: compare the ids.")
    return labels


def groups_from(path: Path, cohort: "Cohort") -> "np.ndarray":
    """Read the group of each patient of the cohort as text, matched by id; empty where the file has none."""
    given = column_by_patient(path, "groups", {"group": ("group",)}).dropna().astype(str)
    groups = given.reindex(cohort.patient_ids.astype(str)).fillna("").to_numpy(str)
    if not (groups != "").any():
        raise InputError(f"{path} has no group for any patient of the cohort: compare the ids.")
    return groups


def column_by_patient(path: Path, what: str, column: dict[str, tuple[str, ...]]) -> "pd.Series[Any]":
    """One column of a CSV or Parquet file, by patient as text; `column` has its name and other spellings of it."""
    import pandas as pd

    from phenotaste.storage.input_files import check_regular

    check_regular(path, f"the {what}")
    try:
        table = (
            pd.read_parquet(path)
            if path.suffix == ".parquet"
            else pd.read_csv(path, dtype={"patient": str, "subject_id": str})
        )
    except (ValueError, UnicodeDecodeError, ImportError):
        raise InputError(f"{path} is neither a valid CSV nor a valid Parquet file: write it again.") from None
    (name,) = column
    for wanted, spellings in ({"patient": LABEL_COLUMNS["patient"]} | column).items():
        found = next((spelling for spelling in spellings if spelling in table.columns), None)
        if found is None:
            raise InputError(
                f"{path} has no column {' or '.join(spellings)}: name its columns patient and {name}."
            )
        table[wanted] = table[found]
    ids = table["patient"].astype(str)
    if ids.duplicated().any():
        raise InputError(f"{path} has two rows for one patient: keep one {name} for each.")
    return pd.Series(table[name].to_numpy(), index=ids)


def check_replaceable(out: Path, overwrite: bool, load: Callable[[Path], object]) -> None:
    """Refuse a folder that could not be written at the end; only what `load` can read is overwritten."""
    if out.is_dir() and any(out.iterdir()):
        if not overwrite:
            raise InputError(f"{out} exists already: choose another --out, or add --overwrite to replace it.")
        load(out)
    elif out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: choose another --out.")
    parent = next(folder for folder in Path(os.path.realpath(out)).parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"{parent} is not writable: choose another --out.")
