"""Saved models: definitions in one file and, only if requested, the patients' factors in another."""

import os
from typing import Any

import numpy as np

from phenotaste.errors import InputError
from phenotaste.storage import tensors
from phenotaste.storage.encoding import json_value

KIND = "taste-model"
DEFAULT_METHOD = "TASTE"  # of a file that names no method
FIGURES = (
    "lam_eff_",
    "n_features_in_",
    "n_iter_",
    "converged_",
    "outcome_",
    "rmse_",
    "cpi_",
    "n_patients_",
    "n_visits_",
    "n_short_",
    "n_empty_",
)
# Sums over the patients of the fit; files of earlier versions lack them.
TOTALS = ("feature_patients_", "static_patients_", "score_totals_")
NAMES = ("feature_names_in_", "static_names_in_")
ARRAYS = ("H_", "V_", "F_", "loss_curve_", *NAMES, *TOTALS)
PATIENTS = ("W_", "U_", "offsets_", "patient_ids_", "mu_k_", "empty_history_")
NOT_SAVED = ("callback", "checkpoint", "engine", "n_jobs", "verbose")  # how a fit runs, not what it finds


def save(
    model: Any,
    path: str | os.PathLike[str],
    include_patients: bool,
    more_figures: tuple[str, ...] = (),
    more_files: tensors.Files | None = None,
    extra_files: tensors.ExtraFiles | None = None,
) -> None:
    """Write a model to a folder.

    `more_figures` and `more_files` are attributes and arrays specific to its method, `extra_files` files for people
    to read.
    """
    arrays = {name: getattr(model, name) for name in ARRAYS if name not in TOTALS}
    arrays |= {name: getattr(model, name, None) for name in TOTALS}
    files = {
        "model": {name: array for name, array in arrays.items() if array is not None},
        **(more_files or {}),
    }
    if include_patients:
        files["patients"] = {name: getattr(model, name) for name in PATIENTS}
    settings = settings_of(model)
    figures = {name: json_value(getattr(model, name)) for name in (*FIGURES, *more_figures)}
    meta = {"method": type(model).__name__, "settings": settings, "figures": figures}
    tensors.write(path, KIND, files, meta, extra_files)


def settings_of(model: Any) -> dict[str, Any]:
    """Return the parameters that determine the result, as JSON values."""
    settings = {
        name: json_value(value) for name, value in model.get_params().items() if name not in NOT_SAVED
    }
    if not isinstance(settings["random_state"], int):
        settings["random_state"] = None
    return settings


def load(
    path: str | os.PathLike[str], method: str = DEFAULT_METHOD, more_figures: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings and fitted attributes of a saved model after checking that they are consistent."""
    files, meta = tensors.read(path, KIND, mmap=False)
    saved_method = meta.get("method", DEFAULT_METHOD)
    if saved_method != method:
        raise InputError(
            f"{path} holds a model of {saved_method}, not of {method}: load it with the class that saved it."
        )
    try:
        settings, figures = dict(meta["settings"]), dict(meta["figures"])
        fitted: dict[str, Any] = {name: figures[name] for name in (*FIGURES, *more_figures)}
        fitted |= {name: files["model"].get(name) for name in ARRAYS}
        if "patients" in files:
            fitted |= {name: files["patients"][name] for name in PATIENTS}
        check_consistent(settings, fitted)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is not a complete {method} model: save it again from the fitted estimator."
        ) from error
    for name in ("rmse_", "cpi_"):
        fitted[name] = float("nan") if fitted[name] is None else fitted[name]
    return settings, fitted


def method_of(path: str | os.PathLike[str]) -> str:
    """Return the name of the class of a saved model."""
    return str(tensors.read(path, KIND)[1].get("method", DEFAULT_METHOD))


def check_consistent(settings: dict[str, Any], fitted: dict[str, Any]) -> None:
    """Raise ValueError for shapes or values that no fit produces; kernels index by them without checks."""
    H, V, F = fitted["H_"], fitted["V_"], fitted["F_"]
    R = settings["rank"]
    expected = [
        (H, (R, R)),
        (V, (fitted["n_features_in_"], R)),
        (F, (None if F is None else len(F), R)),
        (fitted["feature_names_in_"], (len(V),)),
        (fitted["static_names_in_"], (0 if F is None else len(F),)),
        (fitted["loss_curve_"], (fitted["n_iter_"],)),
        (fitted["feature_patients_"], (len(V),)),
        (fitted["static_patients_"], (0 if F is None else len(F),)),
        (fitted["score_totals_"], (R,)),
    ]
    if "W_" in fitted:
        K, visits = len(fitted["W_"]), len(fitted["U_"])
        offsets = fitted["offsets_"]
        expected += [(fitted["W_"], (K, R)), (fitted["U_"], (visits, R)), (offsets, (K + 1,))]
        expected += [(fitted[name], (K,)) for name in ("patient_ids_", "mu_k_", "empty_history_")]
        if offsets[0] != 0 or offsets[-1] != visits or np.any(np.diff(offsets) < 0):
            raise ValueError("offsets")
    for array, shape in expected:
        if array is not None and array.shape != shape:
            raise ValueError("shapes")
    for factor in (H, V, F):
        if factor is not None and (factor.dtype != np.float64 or not np.isfinite(factor).all()):
            raise ValueError("values")
    for counts in (fitted["feature_patients_"], fitted["static_patients_"]):
        if counts is not None and (counts.dtype != np.int64 or (counts < 0).any()):
            raise ValueError("counts")
    totals = fitted["score_totals_"]
    if totals is not None and (totals.dtype != np.float64 or not np.isfinite(totals).all()):
        raise ValueError("totals")
    signed = settings.get("nonnegative") is False  # plain PARAFAC2 allows negative entries
    if (not signed and V.min() < 0) or (F is not None and F.min() < 0):
        raise ValueError("signs")
    if not 0 <= fitted["lam_eff_"] < np.inf:
        raise ValueError("weights")
