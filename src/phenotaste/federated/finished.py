"""The end of a federated fit: the sites' figures added up, and a model folder that `score` and `report` take."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from phenotaste import model_file
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array
from phenotaste.federated.answers import COUNTS, Answer
from phenotaste.federated.coordinator_state import CoordinatorState
from phenotaste.storage import tensors
from phenotaste.taste import TASTE

HISTORY = "federation.json"
ADDED = ("parts", "gaps", "score_totals", "feature_patients", "static_patients")


def figures_of(state: CoordinatorState, answers: list[Answer]) -> dict[str, Any]:
    """Patients and visits, and without noise all that the closing look found."""
    found: dict[str, Any] = {
        "patients": sum(answer.patients for answer in answers),
        "visits": sum(answer.visits for answer in answers),
    }
    closing = [answer.figures for answer in answers if answer.figures is not None]
    if closing:
        found |= {name: sum(figures[name] for figures in closing) for name in (*COUNTS, *ADDED)}
    return found


def save_model(path: Path, state: CoordinatorState) -> Path:
    """Write the model, unless it is there; beside it the history of the fit: who took part when."""
    if not (path / tensors.MANIFEST).exists():
        text = json.dumps(history(state), indent=1, allow_nan=False) + "\n"
        model_file.save(fitted(state), path, False, extra_files={HISTORY: text.encode()})
    return path


def fitted(state: CoordinatorState) -> TASTE:
    """A TASTE with everything a fit leaves behind but the patients."""
    settings, names, figures = state.settings, state.dictionary, state.figures
    assert names is not None
    assert figures is not None
    start = state.starts[state.best]
    model = TASTE(
        settings.rank,
        lam=settings.lam,
        mu=settings.mu,
        weights=settings.weights,  # type: ignore[arg-type]
        solver=settings.solver,  # type: ignore[arg-type]
        init="random",
        n_init=settings.n_init,
        max_iter=settings.max_rounds,
        tol=settings.tol,
        random_state=settings.seed,
    )
    H, V, F = start.state.model
    model.H_, model.V_, model.F_ = H, V, F if len(F) else None
    model.feature_names_in_ = np.array(names.features)
    model.static_names_in_ = np.array(names.static) if len(F) else None
    model.n_features_in_, model.lam_eff_ = len(V), state.lam
    model.outcome_ = str(start.outcome)
    model.converged_ = start.outcome == Outcome.CONVERGED
    model.n_patients_, model.n_visits_ = int(figures["patients"]), int(figures["visits"])
    losses = np.array(start.state.losses)
    with_closing_look(model, figures, losses)
    model.loss_curve_, model.n_iter_ = losses, len(losses)
    return model


def with_closing_look(model: TASTE, figures: dict[str, Any], losses: Array) -> None:
    """What only the closing look tells; with noise there is none, and these stay open."""
    model.rmse_ = model.cpi_ = float("nan")
    model.n_short_ = model.n_empty_ = 0
    model.static_patients_ = None
    if "parts" not in figures:
        return
    visits, static, unique, plain = figures["parts"].tolist()
    losses[-1] = visits + static + unique
    entries = model.n_visits_ * len(model.V_) + model.n_patients_ * (0 if model.F_ is None else len(model.F_))
    model.rmse_ = float(np.sqrt((2 * visits + model.lam * plain) / max(entries, 1)))
    HH, counted = model.H_.T @ model.H_, float(figures["counted"])
    if counted:
        model.cpi_ = float(1 - figures["gaps"][0] / (counted * np.sum(HH**2)))
    model.n_short_, model.n_empty_ = int(figures["short"]), int(figures["empty"])
    model.feature_patients_ = figures["feature_patients"].astype(np.int64)
    if model.F_ is not None:
        model.static_patients_ = figures["static_patients"].astype(np.int64)
    model.score_totals_ = figures["score_totals"]


def history(state: CoordinatorState) -> dict[str, Any]:
    """Who took part in which round, what was left out, and with noise what each site promised."""
    absent: dict[str, list[int]] = {site: [] for site in state.sites}
    promises: dict[str, Any] = {}
    for entry in state.history:
        for site in entry["left_out"]:
            absent[site].append(entry["round"])
        for site, noise in entry.get("noise", {}).items():
            promises[site] = {**noise, "rounds": promises.get(site, {}).get("rounds", 0) + 1}
    return {
        "federation": state.federation,
        "settings": state.settings.as_dict(),
        "sites": list(state.sites),
        "left_out": {site: rounds for site, rounds in absent.items() if rounds},
        "noise": promises,
        "rounds": list(state.history),
    }
