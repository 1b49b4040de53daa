"""Saved models: definitions in one file and, only if requested, the patients' factors in another.

The manifest says whether the folder may be shared: "shareable" is true only for a model that `shareable` has reduced.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from phenotaste.background import DEFINITIONS, Background
from phenotaste.background import PATIENTS as BACKGROUND_PATIENTS
from phenotaste.errors import InputError
from phenotaste.storage import tensors
from phenotaste.storage.encoding import json_value

KIND = "taste-model"
POOLED_KIND = "pooled-model"  # of a method without courses
DEFAULT_METHOD = "TASTE"  # of a file that names no method
FIGURES = (
    "lam_eff_",
    "n_features_in_",
    "n_iter_",
    "converged_",
    "outcome_",
    "rmse_",
    "cpi_",
    "cpi_present_",
    "n_patients_",
    "n_visits_",
    "n_short_",
    "n_empty_",
)
# Sums over the patients of the fit; files of earlier versions lack them.
RATES = ("static_rates_", "phenotype_rates_")
PATIENT_COUNTS = ("feature_patients_", "static_patients_")
TOTALS = (*PATIENT_COUNTS, "score_totals_", "mean_scores_", "static_numeric_", *RATES)
NAMES = ("feature_names_in_", "static_names_in_")
ARRAYS = ("H_", "V_", "F_", "loss_curve_", *NAMES, *TOTALS)
PATIENT_WEIGHTS = ("mu_k_", "scale_", "influence_")
PATIENTS = ("W_", "U_", "offsets_", "patient_ids_", "empty_history_", *PATIENT_WEIGHTS)
NOT_SHAREABLE = (
    "This folder may name features that very few patients of the fit have, with their exact numbers: keep it where the "
    "data is. phenotaste export MODEL --to model writes a copy without them."
)
RECORDS = ("refit", "guides")  # of a refitted or guided model, as JSON
NOT_SAVED = ("callback", "checkpoint", "engine", "n_jobs", "verbose")  # how a fit runs, not what it finds


def save(
    model: Any,
    path: str | os.PathLike[str],
    include_patients: bool,
    more_figures: tuple[str, ...] = (),
    more_files: tensors.Files | None = None,
    extra_files: tensors.ExtraFiles | None = None,
    sharing: Mapping[str, Any] | None = None,
) -> None:
    """Write a model to a folder.

    `more_figures` and `more_files` are attributes and arrays specific to its method, `extra_files` files for people
    to read. `sharing` is what the manifest says of a model that may be passed on.
    """
    arrays = {name: getattr(model, name) for name in ARRAYS if name not in TOTALS}
    arrays |= {name: getattr(model, name, None) for name in TOTALS}
    files = {
        "model": {name: array for name, array in arrays.items() if array is not None},
        **(more_files or {}),
    }
    background: Background | None = getattr(model, "background_", None)
    if background is not None:
        files["background"] = background.arrays(DEFINITIONS)
    if include_patients:
        hidden = {} if background is None else background.arrays(BACKGROUND_PATIENTS)
        files["patients"] = {name: getattr(model, name) for name in PATIENTS} | hidden
    settings = settings_of(model)
    figures = {name: json_value(getattr(model, name)) for name in (*FIGURES, *more_figures)}
    figures["warnings_"] = list(getattr(model, "warnings_", ()))
    figures["n_starts_"] = getattr(model, "n_starts_", None)
    figures["rounding_key_"] = getattr(model, "rounding_key_", None)
    meta: dict[str, Any] = {"method": type(model).__name__, "settings": settings, "figures": figures}
    meta |= {"shareable": False, "sharing": NOT_SHAREABLE} if sharing is None else sharing
    if getattr(model, "cohort_settings_", None) is not None:
        meta["cohort_settings"] = model.cohort_settings_
    meta |= {name: getattr(model, f"{name}_") for name in RECORDS if getattr(model, f"{name}_", None)}
    if getattr(model, "cohort_thresholds_", None):
        meta["cohort_thresholds"] = model.cohort_thresholds_
    tensors.write(path, KIND, files, meta, extra_files)


def settings_of(model: Any) -> dict[str, Any]:
    """Return the parameters that determine the result, as JSON values."""
    settings = {
        name: json_value(value) for name, value in model.get_params().items() if name not in NOT_SAVED
    }
    if not isinstance(settings.get("random_state", 0), int):
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
        figures.setdefault("cpi_present_", None)  # files of 0.1 lack it
        fitted: dict[str, Any] = {name: figures[name] for name in (*FIGURES, *more_figures)}
        fitted["n_starts_"] = figures.get("n_starts_")
        fitted["rounding_key_"] = None if (key := figures.get("rounding_key_")) is None else str(key)
        fitted["shareable_"] = meta.get("shareable") is True
        fitted["warnings_"] = [str(sentence) for sentence in figures.get("warnings_", ())]
        cohort_settings = meta.get("cohort_settings")
        fitted["cohort_settings_"] = None if cohort_settings is None else dict(cohort_settings)
        fitted["cohort_thresholds_"] = [dict(row) for row in meta.get("cohort_thresholds", ())]
        fitted["refit_"] = None if (record := meta.get("refit")) is None else read_refit(record)
        fitted["guides_"] = [dict(row) for row in meta.get("guides", ())]
        fitted |= {name: files["model"].get(name) for name in ARRAYS}
        fitted["background_"] = Background.of_arrays(files)
        if "patients" in files:
            fitted |= {name: files["patients"][name] for name in PATIENTS}
        check_consistent(settings, fitted)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is not a complete {method} model: save it again from the fitted estimator."
        ) from error
    for name in ("rmse_", "cpi_", "cpi_present_"):
        fitted[name] = float("nan") if fitted[name] is None else fitted[name]
    return settings, fitted


def read_refit(record: Any) -> dict[str, Any]:
    """The record of a refit, with a number, a name and a decision for each phenotype."""
    rows = [dict(row) for row in record["phenotypes"]]
    for row in rows:
        int(row["phenotype"]), str(row["name"]), str(row["decision"])
    order = [int(number) for number in record["order"]]
    return {
        **record,
        "order": order,
        "phenotypes": rows,
        "rejected": [dict(row) for row in record["rejected"]],
    }


def method_of(path: str | os.PathLike[str]) -> str:
    """Return the name of the class of a saved model, with courses or without."""
    return str(tensors.read(path, KIND, POOLED_KIND)[1].get("method", DEFAULT_METHOD))


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
        (fitted["mean_scores_"], (R,)),
        (fitted["static_rates_"], (0 if F is None else len(F),)),
        (fitted["phenotype_rates_"], (0 if F is None else len(F), R)),
        (fitted["static_numeric_"], (0 if F is None else len(F),)),
    ]
    if "W_" in fitted:
        K, visits = len(fitted["W_"]), len(fitted["U_"])
        offsets = fitted["offsets_"]
        expected += [(fitted["W_"], (K, R)), (fitted["U_"], (visits, R)), (offsets, (K + 1,))]
        expected += [(fitted[name], (K,)) for name in ("patient_ids_", "empty_history_", *PATIENT_WEIGHTS)]
        if offsets[0] != 0 or offsets[-1] != visits or np.any(np.diff(offsets) < 0):
            raise ValueError("offsets")
    if fitted["background_"] is not None:
        fitted["background_"].check(len(V), 0 if F is None else len(F), R)
    for array, shape in expected:
        if array is not None and array.shape != shape:
            raise ValueError("shapes")
    for factor in (H, V, F):
        if factor is not None and (factor.dtype != np.float64 or not np.isfinite(factor).all()):
            raise ValueError("values")
    for counts in (fitted["feature_patients_"], fitted["static_patients_"]):
        if counts is not None and (counts.dtype != np.int64 or (counts < 0).any()):
            raise ValueError("counts")
    for totals in (fitted["score_totals_"], fitted["mean_scores_"]):
        if totals is not None and (totals.dtype != np.float64 or not np.isfinite(totals).all()):
            raise ValueError("totals")
    for rates in (fitted[name] for name in RATES):
        if rates is not None and (rates.dtype != np.float64 or np.isinf(rates).any()):
            raise ValueError("rates")
    signed = settings.get("nonnegative") is False  # plain PARAFAC2 allows negative entries
    if (not signed and V.min() < 0) or (F is not None and F.min() < 0):
        raise ValueError("signs")
    if not 0 <= fitted["lam_eff_"] < np.inf:
        raise ValueError("weights")
