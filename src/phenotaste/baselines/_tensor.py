"""Base class of the methods on a tensor of patients × A × B, such as patients × diagnoses × medications.

A method implements `_fit_counts`, one start on all patients, and `_score_counts`.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from phenotaste.baselines._pooled import Found, Pooled, Visits
from phenotaste.cohort import Cohort
from phenotaste.core.cp.counts import Counts, Factors, count_pairs
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array
from phenotaste.errors import InputError

DEFAULT_MODES = ("Dx_", "Rx_")
Mode = str | list[str] | tuple[str, ...]


class TensorFit(NamedTuple):
    """The result of one start on counts, in the scale of the fitted attributes."""

    factors: Factors
    losses: list[float]  # after each iteration
    outcome: Outcome
    more: Mapping[str, Any] = MappingProxyType({})  # fitted attributes of the method alone


class TensorModel(Pooled):
    """Scikit-learn interface of the methods on a tensor of co-occurrences.

    An entry of the tensor is the number of visits of a patient that contain a feature of A and one of B; values of
    the visits are read as present or absent. A patient without any such visit has scores of zero.

    A column of V_ is that of A_ and that of B_, each with the norm 1/√2, so that its own norm is 1. Features of
    neither mode have rows of zeros.
    """

    _arrays: ClassVar[tuple[str, ...]] = ("A_", "B_")

    modes: Any
    A_: Array
    B_: Array

    def _fit_counts(self, counts: Counts, rng: np.random.Generator) -> TensorFit:
        """One start; there is at least one non-zero."""
        raise NotImplementedError

    def _score_counts(self, counts: Counts) -> Array:
        """The scores of patients under the fitted A_ and B_; each must not depend on the others."""
        raise NotImplementedError

    def _fit_without_counts(self, shape: tuple[int, int, int]) -> TensorFit:
        """Equal definitions, of patients without any non-zero; a method with arrays of its own adds these."""
        K, n_a, n_b = shape
        factors = Factors(
            np.zeros((K, self.rank)),
            np.full((n_a, self.rank), 1.0 / n_a),
            np.full((n_b, self.rank), 1.0 / n_b),
        )
        return TensorFit(factors, [0.0], Outcome.CONVERGED)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; it scores exactly as it did before.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=60)
        >>> model = baselines.Limestone(rank=3, max_iter=10, random_state=0).fit(cohort)
        >>> model.save("model")
        >>> bool((baselines.Limestone.load("model").transform(cohort) == model.transform(cohort)).all())
        True
        """
        model = super().load(path)
        model.modes = tuple(mode if isinstance(mode, str) else tuple(mode) for mode in model.modes)
        return model

    def _check_settings(self) -> None:
        super()._check_settings()
        check_modes(self.modes)

    def _check_names(self, cohort: Cohort) -> None:
        mode_columns(cohort.feature_names, self.modes)

    def _mode_columns(self) -> tuple[Array, Array]:
        """The columns of A and of B among those of the fit."""
        return mode_columns(self._columns.feature_names, self.modes)

    def _counts_of(self, visits: Visits) -> Counts:
        return count_pairs(visits.X, visits.offsets, *self._mode_columns())

    def _prepared(self, visits: Visits) -> Counts:
        return self._counts_of(visits)

    def _find(self, data: Any, rng: np.random.Generator) -> Found:
        fit = self._fit_counts(data, rng) if len(data.values) else self._fit_without_counts(data.shape)
        return self._found(fit)

    def _scores(self, visits: Visits) -> Array:
        return self._score_counts(self._counts_of(visits))

    def _without_data(self, n_features: int) -> Found:
        n_a, n_b = map(len, self._mode_columns())
        return self._found(self._fit_without_counts((0, n_a, n_b)))

    def _found(self, fit: TensorFit) -> Found:
        W, A, B = fit.factors
        V = np.zeros((self._columns.n_features, self.rank))
        for columns, factor in zip(self._mode_columns(), (A, B), strict=True):
            norms = np.linalg.norm(factor, axis=0)
            V[columns] = factor / np.where(norms > 0, np.sqrt(2.0) * norms, 1.0)
        more = {"A_": np.ascontiguousarray(A), "B_": np.ascontiguousarray(B), **fit.more}
        return Found(V, W, fit.losses, fit.outcome, more)

    def _check_fitted(self) -> None:
        super()._check_fitted()
        for columns, factor in zip(self._mode_columns(), (self.A_, self.B_), strict=True):
            if factor.shape != (len(columns), self.rank) or not np.isfinite(factor).all():
                raise ValueError("A or B")


def check_modes(modes: Any) -> None:
    """Refuse anything but two prefixes or lists of names."""
    if not (isinstance(modes, list | tuple) and len(modes) == 2 and all(map(is_mode, modes))):
        raise InputError(
            'modes must be two of: a prefix of feature names, such as "Dx_", or a list of feature names.'
        )


def is_mode(mode: Any) -> bool:
    if isinstance(mode, str):
        return mode != ""
    return isinstance(mode, list | tuple) and all(isinstance(name, str) for name in mode)


def mode_columns(names: Array | None, modes: tuple[Mode, Mode]) -> tuple[Array, Array]:
    """The columns of each mode, in the order of the features."""
    if names is None:
        raise InputError(
            "The cohort has no feature names, by which modes assigns features to the two modes of the tensor: "
            "give them as feature_names."
        )
    a, b = (members(names, mode) for mode in modes)
    if np.intersect1d(a, b).size:
        raise InputError("The two modes share features: choose modes so that each feature is in one of them.")
    return a, b


def members(names: Array, mode: Mode) -> Array:
    """The columns with a prefix, or with the names of a list."""
    if isinstance(mode, str):
        chosen = np.flatnonzero(np.char.startswith(np.asarray(names).astype(str), mode))
        described = f"no feature name begins with {mode!r}"
    else:
        missing = set(mode) - set(np.asarray(names).tolist())
        if missing:
            raise InputError(
                f"The cohort has no feature {min(missing)!r}, which modes names ({len(missing):,} of {len(mode):,} "
                "are missing): leave it out of modes, or add it."
            )
        chosen = np.flatnonzero(np.isin(names, list(mode)))
        described = "its list is empty"
    if chosen.size == 0:
        raise InputError(
            f"A mode of the tensor has no features, as {described}: set modes to two prefixes or lists of names."
        )
    return chosen
