"""The result of a federated fit: the sites' figures added up, and a model folder for `score` and `report`."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from phenotaste import model_file
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array
from phenotaste.federated.responses import COUNTS, Response
from phenotaste.federated.state import CoordinatorState
from phenotaste.storage import tensors
from phenotaste.taste import TASTE

HISTORY = "federation.json"
SUMMED = (*COUNTS, "parts", "gaps", "score_totals", "feature_patients", "static_patients")


def total_figures(responses: list[Response]) -> dict[str, Any]:
    """Numbers of patients and visits and, after an evaluation, the sums of the sites' figures."""
    total: dict[str, Any] = {
        "patients": sum(response.patients for response in responses),
        "visits": sum(response.visits for response in responses),
    }
    figures = [response.figures for response in responses if response.figures is not None]
    if figures:
        total |= {name: sum(site[name] for site in figures) for name in SUMMED}
    return total


def save_model(path: Path, state: CoordinatorState) -> Path:
    """Write the model with the history of the fit, unless it exists."""
    if not (path / tensors.MANIFEST).exists():
        text = json.dumps(history(state), indent=1, allow_nan=False) + "\n"
        model_file.save(fitted_model(state), path, False, extra_files={HISTORY: text.encode()})
    return path


def fitted_model(state: CoordinatorState) -> TASTE:
    """A TASTE with all fitted attributes except those of patients."""
    settings, columns, figures = state.settings, state.columns, state.figures
    assert columns is not None
    assert figures is not None
    start = state.starts[state.best]
    model = TASTE(
        settings.rank,
        lam=settings.lam,
        mu=settings.mu,
        smooth=settings.smooth,
        balance=settings.influence_power,
        init="random",
        n_init=settings.n_starts,
        max_iter=settings.max_rounds,
        tol=settings.tol,
        random_state=settings.seed,
    )
    H, V, F = start.fit.model
    model.H_, model.V_, model.F_ = H, V, F if len(F) else None
    model.feature_names_in_ = np.array(columns.features)
    model.static_names_in_ = np.array(columns.static) if len(F) else None
    model.n_features_in_, model.lam_eff_ = len(V), state.lam
    model.outcome_ = str(start.outcome)
    model.converged_ = start.outcome == Outcome.CONVERGED
    model.n_patients_, model.n_visits_ = int(figures["patients"]), int(figures["visits"])
    losses = np.array(start.fit.losses)
    if start.mean is not None:  # with noise, only sums of squared scores are known
        model.mean_scores_ = np.sqrt(np.maximum(np.diagonal(start.mean.WW), 0.0) / max(model.n_patients_, 1))
    set_figures(model, figures, losses)
    model.loss_curve_, model.n_iter_ = losses, len(losses)
    return model


def set_figures(model: TASTE, figures: dict[str, Any], losses: Array) -> None:
    """Set what only the evaluation provides; with noise there is none, and RMSE and CPI are NaN."""
    model.rmse_ = model.cpi_ = model.cpi_present_ = float("nan")
    model.n_short_ = model.n_empty_ = 0
    model.static_patients_ = None
    if "parts" not in figures:
        return
    *terms, visit_error, static_error = figures["parts"].tolist()
    losses[-1] = sum(terms)
    entries = model.n_visits_ * len(model.V_) + model.n_patients_ * (0 if model.F_ is None else len(model.F_))
    model.rmse_ = float(np.sqrt((2 * visit_error + model.lam * static_error) / max(entries, 1)))
    HH, with_course = model.H_.T @ model.H_, float(figures["with_course"])
    gap, present_gap, present_size = figures["gaps"].tolist()
    if with_course:
        model.cpi_ = float(1 - gap / (with_course * np.sum(HH**2)))
    if present_size > 0:
        model.cpi_present_ = float(1 - present_gap / present_size)
    model.n_short_ = int(figures["short"])
    model.feature_patients_ = figures["feature_patients"].astype(np.int64)
    if model.F_ is not None:
        model.static_patients_ = figures["static_patients"].astype(np.int64)
    model.score_totals_ = figures["score_totals"]
    model.mean_scores_ = model.score_totals_ / model.n_patients_


def excluded_rounds(state: CoordinatorState) -> dict[str, list[int]]:
    """The rounds from which each site was excluded, for sites that were."""
    rounds = {
        site: [entry["round"] for entry in state.history if site in entry["excluded"]] for site in state.sites
    }
    return {site: numbers for site, numbers in rounds.items() if numbers}


def history(state: CoordinatorState) -> dict[str, Any]:
    """Participation by round and, with noise, each site's privacy budget."""
    noise: dict[str, Any] = {}
    for entry in state.history:
        for site, report in entry.get("noise", {}).items():
            noise[site] = {**report, "rounds": noise.get(site, {}).get("rounds", 0) + 1}
    return {
        "federation": state.federation,
        "settings": state.settings.as_dict(),
        "sites": list(state.sites),
        "excluded": excluded_rounds(state),
        "noise": noise,
        "rounds": list(state.history),
    }
