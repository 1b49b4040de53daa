"""Requests that no fit would send: a site refuses them, since such models could single out patients.

A site knows its own sums and not those of the others, so it cannot repeat the coordinator's model step. It checks what
holds in every fit instead, within limits that no measured fit came near (docs/federated.md). That stops crude attacks,
not a careful one: against an untrusted coordinator only noise protects.
"""

import numpy as np

from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.federated.columns import ColumnNames
from phenotaste.federated.requests import Request, Task, starting_models
from phenotaste.federated.settings import Settings

FEATURES_PER_PHENOTYPE = (
    2  # with as many phenotypes as features, the sums are a table of all pairs of features
)
FEW_FEATURES, MAX_SHARE = (
    2,
    0.999,
)  # a column is concentrated if this few features hold this share of its squares
SETTLED_ROUND = (
    6  # from which on all phenotypes are compared with the previous request, not only concentrated ones
)
MIN_COSINE = (
    0.1  # of a column with itself in the previous request; in fits at least 0.15 and 0.42 were measured
)
MAX_STATIC_WEIGHT = 10.0  # of the static features of a patient relative to the visits; `lam` is at most 1
START_TOL = 1e-9  # of the starting models, which are computed again

ADVICE = (
    "do not respond, and ask the coordinator how it came about; --rejoin accepts it if this site was left out of "
    "rounds or lost its state"
)


def check_columns(request: Request, own: ColumnNames) -> None:
    """The model's columns, at the first step: all that the site named, and enough of them for the rank."""
    assert request.columns is not None
    missing = len(set(own.features) - set(request.columns.features))
    missing += len(set(own.static) - set(request.columns.static))
    if missing:
        raise refused(f"The request leaves out {missing:,} of the columns that this site has named")


def check_rank(rank: int, n_features: int) -> None:
    """Refuse a rank at which phenotypes are single features, so that their sums count pairs of features."""
    if n_features < FEATURES_PER_PHENOTYPE * rank:
        raise InputError(
            f"The fit has {rank:,} phenotypes for {n_features:,} features, and sums over phenotypes that are single "
            f"features may disclose single patients: start one with at most {n_features // FEATURES_PER_PHENOTYPE:,}."
        )


def check_lam(lam: float, settings: Settings, totals: Array) -> None:
    """λ̃ depends on other sites' static features; but those of this site may not outweigh its visits by far."""
    influence, static_size = totals
    if lam * static_size > MAX_STATIC_WEIGHT * influence or settings.lam == 0 < lam:
        raise refused(
            "The request gives the static features a weight that does not follow from the agreed settings"
        )


def check_start(task: Task, settings: Settings, columns: ColumnNames) -> None:
    """The first model of a start is the one that the agreed seed and columns determine."""
    expected = starting_models(settings, columns)[task.start]
    if not all(
        np.allclose(factor, exact, rtol=0, atol=START_TOL)
        for factor, exact in zip(task.model, expected, strict=True)
    ):
        raise refused("The request does not start from the model that the agreed seed determines")


def check_change(V: Array, previous: Array, number: int) -> None:
    """Refuse a phenotype that has next to nothing in common with itself in the previous request.

    In the first rounds fits do that, too; but not so that one or two features are left.
    """
    squares = np.sort(V**2, axis=0)
    concentrated = squares[-FEW_FEATURES:].sum(axis=0) > MAX_SHARE
    jumped = np.any(V, axis=0) & (np.sum(V * previous, axis=0) < MIN_COSINE)
    if np.any(jumped & (concentrated | (number >= SETTLED_ROUND))):
        raise refused("The request has a phenotype that is suddenly another one, as no fit sends it")


def refused(problem: str) -> InputError:
    return InputError(f"{problem}: {ADVICE}.")
