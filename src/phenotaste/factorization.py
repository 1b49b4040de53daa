"""The base class of TASTE and of the factorisations it is compared with.

A method implements `fit` and `project`; scores, tables, files and reviews follow from its fitted attributes.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted, check_random_state

from phenotaste import metrics, model_file
from phenotaste.background import Background, select_columns, shown_H
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import Aligned, columns_of, patients_having
from phenotaste.cohort.origin import build_settings, thresholds
from phenotaste.core import loop
from phenotaste.core.no_history import mean_of_scores, scores_from_static
from phenotaste.core.records import Array, Scored, Weights
from phenotaste.disclosure import Gate, rounding_key
from phenotaste.engines.checkpoint import CheckpointWriter
from phenotaste.errors import InputError
from phenotaste.patients import Patients, SharesByBlock, score_warnings
from phenotaste.phenotype_model import PhenotypeModel
from phenotaste.shareable import Dropped, shareable_copy
from phenotaste.static_rates import static_rates

PATIENT_SIZE_RANGE = 1e-250, 1e250  # of ‖X_k‖, where every patient is divided by it


class Projection(NamedTuple):
    """Patients under a fitted model: U[offsets[k]:offsets[k+1]] are patient k's courses.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> found = TASTE(rank=3, n_init=1, random_state=0).fit(cohort[:50]).project(cohort[50:])
    >>> found.W.shape, found.U.shape == (cohort[50:].n_visits, 3)
    ((10, 3), True)
    >>> found.unknown_features, found.absent_features
    (0, 0)
    """

    W: Array
    U: Array
    offsets: Array
    loss: float  # the whole objective of these patients
    patient_loss: Array
    scale: Array  # s_k, by which the visits were divided: W * scale[:, None] is in the data's units
    weights: Weights
    unknown_features: int  # temporal features that the model lacks, ignored
    absent_features: int  # temporal features that the cohort lacks, taken as zero


class Factorization(PhenotypeModel):
    """Scikit-learn interface of X_k ≈ U_k diag(w_k) Vᵀ, with or without static features A ≈ W Fᵀ."""

    has_courses = True
    # Of a refitted model: what it does not show.
    background_: Background | None = None

    _more_figures: ClassVar[tuple[str, ...]] = ()  # fitted numbers of this method alone, kept in its files

    # Settings that the methods below read; each method's own __init__ says which of them a user may choose.
    n_init: Any
    max_iter: int
    random_state: Any
    callback: Callable[[loop.Progress], object] | None
    verbose: int
    lam: float = 0.0  # the weight of static features; methods without them keep this

    def project(self, cohort: Cohort) -> Projection:
        raise NotImplementedError

    def save(
        self, path: str | os.PathLike[str], include_patients: bool = False, *, shareable: bool = False
    ) -> Dropped | None:
        """Write the model as a folder; with `include_patients`, also the patients' scores and courses.

        The folder names every feature of the fit and says how many patients have it, even if it is one: keep it where
        the data is. With `shareable`, features and levels of too few patients are dropped, counts are rounded, and
        the numbers of what was dropped are returned; such a model still scores new patients.

        Examples
        --------
        >>> import os
        >>> from phenotaste import TASTE, simulate
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> TASTE(rank=4, n_init=1, random_state=0, max_iter=20).fit(cohort).save("model")
        >>> sorted(os.listdir("model"))
        ['manifest.json', 'model.safetensors']
        >>> cohort, truth = simulate.heart_failure(300, random_state=0)
        >>> TASTE(rank=3, n_init=1, random_state=0, max_iter=5).fit(cohort).save("shared", shareable=True).static
        2
        """
        check_is_fitted(self, "V_")
        if not shareable:
            again = getattr(self, "shareable_", False) and not include_patients
            kept = {"shareable": True} if again else None
            model_file.save(self, path, include_patients, self._more_figures, sharing=kept)
            return None
        if include_patients:
            raise InputError("A shareable model holds no patients: leave out include_patients.")
        model, dropped = shareable_copy(self)
        sharing = {"shareable": True, "dropped": dropped._asdict()}
        model_file.save(model, path, False, self._more_figures, sharing=sharing)
        return dropped

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; it scores exactly as it did before.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> model = TASTE(rank=4, n_init=1, random_state=0, max_iter=20).fit(cohort)
        >>> model.save("model")
        >>> bool((TASTE.load("model").transform(cohort) == model.transform(cohort)).all())
        True
        """
        settings, fitted = model_file.load(path, cls.__name__, cls._more_figures)
        try:
            model = cls(**settings)
        except TypeError as error:
            raise InputError(
                f"{path} was saved by another version of phenotaste, with settings that this one does not have: use "
                "that version, or fit the model again."
            ) from error
        model._check_settings()
        for name, value in fitted.items():
            setattr(model, name, value)
        return model

    def __getattr__(self, name: str) -> Any:
        if name in model_file.PATIENTS and "V_" in self.__dict__:
            raise AttributeError(
                f"{name}: this model was saved without its patients; use project(cohort), "
                "or save it with include_patients=True."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _best_start(
        self,
        attempt: Callable[[int, np.random.Generator], loop.Fit],
        writer: CheckpointWriter | None = None,
        n_starts: int | None = None,
    ) -> loop.Fit:
        """The lowest of `n_init` fits, each with a seed of its own; a callback that stops one stops them all."""
        self.n_starts_ = n_starts = n_starts or self._n_starts()
        seeds = check_random_state(self.random_state).randint(2**31, size=n_starts)
        first, best = 0, None
        if writer is not None:
            seeds, first, best = writer.begin(seeds)
        for start in range(first, n_starts):
            found = attempt(start, np.random.default_rng(seeds[start]))
            if self.verbose:
                print(f"start {start + 1} of {n_starts}: {found.outcome} at {found.losses[-1]:.6g}")
            if best is None or found.losses[-1] < best.losses[-1] or not np.isfinite(best.losses[-1]):
                best = found
                if writer is not None and start + 1 < n_starts:
                    writer.record_best(found)
            if found.outcome is loop.Outcome.STOPPED:
                break
        assert best is not None
        if not np.isfinite(best.losses[-1]):
            raise InputError(
                "The objective is not finite: check the data for extreme values, and the weights of the terms."
            )
        return best

    def _progress_callback(
        self, start: int, n_starts: int | None = None
    ) -> Callable[[int, float], object] | None:
        if self.callback is None:
            return None
        callback, n_starts = self.callback, n_starts or self._n_starts()
        return lambda iteration, loss: callback(
            loop.Progress(start, n_starts, iteration, self.max_iter, loss)
        )

    def _set_fitted(
        self,
        best: loop.Fit,
        cohort: Cohort,
        aligned: Aligned,
        weights: Weights,
        hidden: Sequence[int] = (),
        mean_scores: Array | None = None,
    ) -> None:
        """Set the fitted attributes; the columns that are `hidden` are the background."""
        columns = columns_of(cohort)
        (H, V, F), U, W = best.model, best.patients.U, best.patients.W
        mean_scores = mean_of_scores(W, weights.influence) if mean_scores is None else mean_scores
        self.background_, self.refit_, self.guides_ = None, None, []
        whole_H = H
        if hidden:
            b, allocate = np.array(hidden, np.int64), self._allocator()
            patients = (select_columns(array, b, allocate) for array in (W, U))
            self.background_ = Background(H, b, V[:, b], F[:, b], mean_scores[b], *patients)
            shown = self.background_.shown
            H, V, F, mean_scores = shown_H(H, shown), V[:, shown], F[:, shown], mean_scores[shown]
            W, U = (select_columns(array, shown, allocate) for array in (W, U))
        self.H_, self.V_, self.F_ = H, V, F if columns.n_static and len(F) else None
        self.W_, self.U_ = W, U
        self.offsets_, self.patient_ids_ = cohort.offsets, cohort.patient_ids
        self.shareable_ = False
        self.n_features_in_ = columns.n_features
        self.feature_names_in_ = columns.feature_names
        self.static_names_in_ = columns.static_names if self.F_ is not None else None
        persons = None if cohort.groups is None else cohort.persons
        self.feature_patients_, having = patients_having(aligned.shard, columns.n_features, persons)
        self.static_patients_ = having if self.F_ is not None else None
        self.rounding_key_ = rounding_key(
            aligned.shard.offsets, aligned.shard.static, self.feature_patients_, cohort.labels
        )
        self.score_totals_ = self.W_.sum(axis=0)
        self.lam_eff_, self.mu_k_ = weights.lam, weights.mu
        self.scale_, self.influence_ = 1 / weights.scale, weights.influence
        self.mean_scores_ = mean_scores
        self.empty_history_ = aligned.sizes == 0
        self.n_patients_, self.n_visits_ = len(cohort), int(cohort.offsets[-1])
        self.n_empty_ = int(self.empty_history_.sum())
        self.n_short_ = int(np.sum((np.diff(cohort.offsets) < self.rank) & ~self.empty_history_))
        self.loss_curve_ = np.array(best.losses)
        self.n_iter_ = len(best.losses)
        self.outcome_ = str(best.outcome)
        self.converged_ = best.outcome is loop.Outcome.CONVERGED
        scored = self._scored(best, cohort)
        self.rmse_ = metrics.rmse_of(self, scored, weights, self.lam / 2)
        self.cpi_ = metrics.cpi_of(scored.cp_gap, metrics.has_course(self), whole_H)
        self.cpi_present_ = metrics.present_cpi_of(scored)
        self.cohort_settings_ = build_settings(cohort.origin)
        self.cohort_thresholds_ = thresholds(cohort.origin)
        self._describe_scores(aligned, weights)

    def _describe_scores(self, aligned: Aligned, weights: Weights) -> None:
        """Set the rates of static facts by phenotype, and say what is unusual about the scores."""
        known = ~self.empty_history_
        self.warnings_ = score_warnings(self.W_, self.F_, np.diff(self.offsets_), known)
        for sentence in self.warnings_:
            warnings.warn(sentence, stacklevel=5)
        self.static_rates_ = self.phenotype_rates_ = self.static_numeric_ = None
        if self.F_ is not None:
            patients = Patients(self.W_, self.U_, self.offsets_, 1 / weights.scale)
            shares = SharesByBlock(patients, known, weights.unit)
            names = range(len(self.F_)) if self.static_names_in_ is None else self.static_names_in_
            gate = Gate(key=self.rounding_key_)
            found = static_rates(aligned.shard.static, [str(name) for name in names], shares, gate)
            self.static_rates_, self.phenotype_rates_ = found.cohort, found.having
            self.static_numeric_ = found.numeric.astype(np.int64)

    def _scored(self, best: loop.Fit, cohort: Cohort) -> Scored:
        """The patients' losses and cross-product gaps; a method whose fit has them returns those."""
        return metrics.losses(self, cohort)[0]

    def _fitted_weights(self) -> Weights:
        """The weights of the patients of the fit."""
        return Weights.absolute(self.lam_eff_, self.mu_k_, self.influence_)


def as_projection(scored: Scored, cohort: Cohort, aligned: Aligned, weights: Weights) -> Projection:
    """Scored patients of a cohort as the record that `project` returns."""
    loss = scored.loss.sum(axis=1)
    total = float(scored.loss.sum())
    missing = aligned.unknown_features, aligned.absent_features
    return Projection(scored.W, scored.U, cohort.offsets, total, loss, 1 / weights.scale, weights, *missing)


def score_without_history(W: Array, aligned: Aligned, F: Array, lam: float, mean_scores: Array) -> None:
    """Set the rows of W of patients without a history."""
    empty = aligned.sizes == 0
    if empty.any():
        W[empty] = scores_from_static(aligned.shard.static[empty], F, lam, mean_scores)


def relative_weights(
    aligned: Aligned, rank: int, lam: float, mu: float, smooth: float, influence: Array
) -> Weights:
    """Every patient scaled to unit size, so that all weights are relative to it; λ is the weight per patient.

    The uniqueness and smoothness terms are spread over the phenotypes. A single visit has no course to compare.
    """
    several = (aligned.sizes > 0) & (np.diff(aligned.shard.offsets) > 1)
    scale = np.divide(1.0, aligned.sizes, out=np.ones(len(several)), where=aligned.sizes > 0)
    return Weights(lam, smooth / rank, True, several * (mu / rank), scale, influence)


def influence_of(balance: float, aligned: Aligned) -> Array:
    """p_k, how much each patient counts: a power of the number of entries of the record; 0 without a history.

    Numbers of entries, because one large value must not give a patient influence over all others.
    """
    entries = np.diff(aligned.shard.indptr[aligned.shard.offsets]).astype(np.float64)
    return np.asarray(np.where(aligned.sizes > 0, entries**balance, 0.0))


def relative_static_weight(lam: float, static: Array, influence: Array) -> float:
    """λ̃ = λ Σp / Σp‖a‖², so that the static features of a patient have λ times the size of the visits."""
    counted = influence > 0  # adding zeros would change the order of the others, and so the bits
    size = float(influence[counted] @ np.einsum("kp,kp->k", static, static)[counted])
    return lam * float(influence[counted].sum()) / size if size > 0 else 0.0


def static_weight(lam: float, weights: str, aligned: Aligned) -> float:
    """λ_eff: a relative weight is a share of the visits' size against that of the static features."""
    if weights == "absolute":
        return float(lam)
    static = aligned.shard.static
    size = float(np.einsum("kp,kp->", static, static))
    return lam * float(aligned.norms.sum()) / size if size > 0 else 0.0


def patient_weights(mu: float, weights: str, norms: Array, rank: int) -> Array:
    """μ_k: a relative weight is a share of the patient's own size, spread over the phenotypes."""
    if weights == "relative":
        return mu * norms / rank
    return np.where(norms > 0, float(mu), 0.0)
