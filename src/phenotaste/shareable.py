"""A fitted model without what too few patients have: what is left may leave the place where the data is kept.

Features and levels of too few patients are dropped, counts are rounded and small ones withheld, and figures of the fit
have few digits. The model scores new patients as a model does that never had the dropped features.
"""

import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.disclosure import Gate, rounded, rounded_all
from phenotaste.errors import InputError

LOSS_DIGITS = 4
ROUNDED = ("rmse_", "cpi_", "cpi_present_")
TOTALS = ("score_totals_", "mean_scores_")
STATIC_ROWS = ("F_", "static_names_in_", "static_rates_", "phenotype_rates_", "static_numeric_")


class Dropped(NamedTuple):
    """How many features of a model were dropped, because too few patients of the fit have them.

    Examples
    --------
    >>> from phenotaste.shareable import Dropped
    >>> Dropped(temporal=12, static=1, thresholds=0).text()
    '12 temporal features, 1 static feature and 0 thresholds of measurements dropped'
    """

    temporal: int
    static: int
    thresholds: int

    def text(self) -> str:
        """The numbers in words.

        Examples
        --------
        >>> from phenotaste.shareable import Dropped
        >>> Dropped(1, 0, 1).text()
        '1 temporal feature, 0 static features and 1 threshold of measurements dropped'
        """
        temporal, static, thresholds = (
            f"{n:,} {noun}{'' if n == 1 else 's'}"
            for n, noun in zip(self, ("temporal feature", "static feature", "threshold"), strict=True)
        )
        return f"{temporal}, {static} and {thresholds} of measurements dropped"


def shareable_copy(model: Any) -> tuple[Any, Dropped]:
    """A copy of a fitted model that may be shared, and what it lacks.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.shareable import shareable_copy
    >>> cohort, truth = simulate.heart_failure(300, random_state=0)
    >>> model = TASTE(rank=3, random_state=0, max_iter=5).fit(cohort)
    >>> shared, dropped = shareable_copy(model)
    >>> model.V_.shape[0] - shared.V_.shape[0] == dropped.temporal > 0
    True
    >>> int(shared.feature_patients_.min()) >= 15, shared.transform(cohort).shape
    (True, (300, 3))
    """
    if getattr(model, "feature_patients_", None) is None:
        raise InputError(
            "This model does not record how many patients have each feature, so it cannot be made shareable: fit it "
            "again with this version."
        )
    gate = Gate(key=getattr(model, "rounding_key_", None) or "")
    if gate.count("patients", model.n_patients_) is None:
        raise InputError("The model was fitted on too few patients to be shareable.")
    shared = copy.copy(model)
    temporal = drop_temporal(shared, gate)
    static = drop_static(shared, gate)
    thresholds = drop_thresholds(shared, gate)
    share_records(shared)
    round_figures(shared, gate)
    shared.shareable_ = True
    return shared, Dropped(temporal, static, thresholds)


def counts_shown(names: Any, counts: NDArray[Any], kind: str, gate: Gate) -> NDArray[np.int64]:
    """Rounded counts, 0 for those that are withheld; rounded as in reports, which count under the same names."""
    labels = range(len(counts)) if names is None else names
    return np.array(
        [gate.count(f"{kind} {name}", int(n)) or 0 for name, n in zip(labels, counts, strict=True)], np.int64
    )


def drop_temporal(model: Any, gate: Gate) -> int:
    """Drop the rows of V of too few patients; without names, which say nothing, they are set to zero."""
    shown = counts_shown(model.feature_names_in_, model.feature_patients_, "temporal", gate)
    keep = shown > 0
    if not keep.any():
        raise InputError("Too few patients have any feature of the model: it cannot be made shareable.")
    background = model.background_
    if background is not None:
        V = background.V * keep[:, None] if model.feature_names_in_ is None else background.V[keep]
        model.background_ = background._replace(V=np.ascontiguousarray(V), W=None, U=None)
    if model.feature_names_in_ is None:
        model.V_, model.feature_patients_ = model.V_ * keep[:, None], shown
    else:
        model.V_, model.feature_patients_ = np.ascontiguousarray(model.V_[keep]), shown[keep]
        model.feature_names_in_ = model.feature_names_in_[keep]
        model.n_features_in_ = len(model.V_)
    return int(np.sum(~keep))


def drop_static(model: Any, gate: Gate) -> int:
    if model.F_ is None:
        return 0
    counts = getattr(model, "static_patients_", None)
    counts = np.zeros(len(model.F_), np.int64) if counts is None else counts  # not known: all are dropped
    shown = counts_shown(model.static_names_in_, counts, "static", gate)
    keep = shown > 0
    model.static_patients_ = shown
    background = model.background_
    if background is not None:
        F = background.F * keep[:, None] if model.static_names_in_ is None else background.F[keep]
        model.background_ = background._replace(F=np.ascontiguousarray(F))
    if model.static_names_in_ is None:
        model.F_ = model.F_ * keep[:, None]
    elif keep.any():
        model.static_patients_ = shown[keep]
        for name in STATIC_ROWS:
            rows = getattr(model, name, None)
            setattr(model, name, None if rows is None else np.ascontiguousarray(rows[keep]))
    else:
        model.static_patients_ = None
        for name in STATIC_ROWS:
            setattr(model, name, None)
    return int(np.sum(~keep))


def drop_thresholds(model: Any, gate: Gate) -> int:
    """Drop the quantiles of measurements that few patients have, and round the others."""
    kept = []
    rows = getattr(model, "cohort_thresholds_", None) or []
    for row in rows:
        patients = gate.count(
            f"measurement {row.get('vocabulary')} {row.get('code')}", int(row.get("patients") or 0)
        )
        if patients is not None:
            limits = {name: rounded(row[name]) for name in ("low", "high") if row.get(name) is not None}
            kept.append({**row, **limits, "patients": patients, "values": rounded(row.get("values"), 2)})
    model.cohort_thresholds_ = kept
    return len(rows) - len(kept)


def share_records(model: Any) -> None:
    """Round the figures in the records of a review and of guides, and leave comments out."""
    if model.refit_ is not None:
        rows = [shared_row(row) for row in model.refit_["phenotypes"]]
        model.refit_ = {
            **model.refit_,
            "phenotypes": rows,
            "rejected": [shared_row(row) for row in model.refit_["rejected"]],
        }
    model.guides_ = [shared_row(row) for row in model.guides_]


def shared_row(row: dict[str, Any]) -> dict[str, Any]:
    figures = {
        name: rounded(row[name]) for name in ("cosine", "static_cosine", "weight_on_codes") if name in row
    }
    return {name: value for name, value in row.items() if name != "comment"} | figures


def round_figures(model: Any, gate: Gate) -> None:
    model.n_patients_ = gate.rounded("patients", model.n_patients_)
    model.n_visits_ = int(rounded(model.n_visits_, 2) or 0)
    model.n_short_ = None if model.n_short_ is None else gate.count("short histories", model.n_short_)
    model.n_empty_ = None if model.n_empty_ is None else gate.count("empty histories", model.n_empty_)
    model.loss_curve_ = np.array(rounded_all(model.loss_curve_, LOSS_DIGITS))
    for name in ROUNDED:
        setattr(model, name, rounded(getattr(model, name, None)))
    if model.background_ is not None:
        mean = np.array(rounded_all(model.background_.mean_scores))
        model.background_ = model.background_._replace(mean_scores=mean)
    for name in TOTALS:
        total = getattr(model, name, None)
        setattr(model, name, None if total is None else np.array(rounded_all(total)))
    model.rounding_key_ = None
