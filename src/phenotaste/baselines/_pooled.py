"""Base class of the methods that pool a patient's visits: definitions and scores, without courses.

A method implements `_find`, for the patients who have a history, and `_scores`.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted, check_random_state

from phenotaste import model_file
from phenotaste.cohort import Cohort, check_cohort
from phenotaste.cohort.align import Aligned, Columns, align_visits, columns_of, patients_having
from phenotaste.cohort.origin import build_settings
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array
from phenotaste.disclosure import rounding_key
from phenotaste.engines.threads import one_blas_thread
from phenotaste.errors import InputError
from phenotaste.metrics import scaled_norm
from phenotaste.patients import PooledProjection
from phenotaste.phenotype_model import PhenotypeModel, check_size
from phenotaste.storage import tensors
from phenotaste.storage.encoding import json_value

FIGURES = ("n_iter_", "converged_", "outcome_", "n_patients_", "n_visits_", "n_empty_", "n_features_in_")
ARRAYS = ("V_", "loss_curve_", "feature_names_in_", "feature_patients_", "score_totals_")
PATIENTS = ("W_", "patient_ids_", "empty_history_")


NO_MORE: Mapping[str, Any] = MappingProxyType({})


class Visits(NamedTuple):
    """The visits of patients in the columns of a fit; patient k has the rows offsets[k]:offsets[k + 1]."""

    X: sparse.csr_array
    offsets: Array

    def sums(self) -> sparse.csr_array:
        """The sum of each patient's visits, patients × features."""
        return sparse.csr_array(self.add_up(self.X))

    def add_up(self, rows: Any) -> Any:
        """The sum over each patient's visits of one row per visit."""
        n = int(self.offsets[-1])
        owner = sparse.csr_array((np.ones(n), np.arange(n), self.offsets), shape=(len(self.offsets) - 1, n))
        return owner @ rows


class Found(NamedTuple):
    """The result of one start."""

    V: Array
    W: Array
    losses: list[float]  # after each iteration, or the last alone
    outcome: Outcome
    more: Mapping[str, Any] = NO_MORE  # fitted attributes named in `_arrays` and `_figures`
    n_iter: int | None = None  # number of iterations, if `losses` has the last alone


class Pooled(PhenotypeModel):
    """Scikit-learn interface of methods with one vector or one slice of a tensor for each patient.

    Patients without a history take no part in the fit and have scores of zero. Static features are not used.
    """

    has_courses = False
    shareable_ = False  # a saved model names features of single patients
    _arrays: ClassVar[tuple[str, ...]] = ()  # fitted arrays of the method alone, kept in its files
    _figures: ClassVar[tuple[str, ...]] = ()  # fitted numbers, likewise

    n_init: int
    random_state: Any

    def fit(self, cohort: Cohort, y: Any = None) -> Self:
        """Find the phenotypes of a cohort; y is ignored.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> baselines.PatientNMF(rank=3, random_state=0).fit(cohort).V_.shape
        (30, 3)
        """
        aligned = self._read(cohort)
        self._columns = columns_of(cohort)._replace(n_static=0, static_names=None)
        known = aligned.sizes > 0
        found = self._best(Visits(*self._selected(cohort, known)))
        self.V_, self.F_ = np.ascontiguousarray(found.V), None  # as it will be when loaded
        self.W_ = np.zeros((len(cohort), self.rank))
        self.W_[known] = found.W
        self.loss_curve_ = np.array(found.losses)
        self.n_iter_ = len(found.losses) if found.n_iter is None else found.n_iter
        self.outcome_, self.converged_ = str(found.outcome), found.outcome is Outcome.CONVERGED
        self.empty_history_, self.n_empty_ = ~known, int((~known).sum())
        self.n_patients_, self.n_visits_ = len(cohort), cohort.n_visits
        self.n_features_in_, self.feature_names_in_ = self._columns.n_features, self._columns.feature_names
        self.static_names_in_ = None
        self.patient_ids_ = cohort.patient_ids
        persons = None if cohort.groups is None else cohort.persons
        self.feature_patients_ = patients_having(aligned.shard, self.n_features_in_, persons)[0]
        self.rounding_key_ = rounding_key(
            aligned.shard.offsets, aligned.shard.static, self.feature_patients_, cohort.labels
        )
        self.cohort_settings_ = build_settings(cohort.origin)
        for name in (*self._arrays, *self._figures):
            setattr(self, name, found.more[name])
        self.score_totals_ = self._sizes(self.W_).sum(axis=0)
        return self

    def project(self, cohort: Cohort) -> PooledProjection:
        """Scores of patients under the fitted definitions, each patient on their own.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> found = baselines.PatientNMF(rank=3, random_state=0).fit(cohort[:50]).project(cohort[50:])
        >>> found.W.shape, found.unknown_features
        ((10, 3), 0)
        """
        check_is_fitted(self, "V_")
        check_cohort(cohort, type(self).__name__)
        self._check_values(cohort)
        aligned = align_visits(cohort, self._columns)
        with one_blas_thread():
            W = self._scores(Visits(aligned.visits, cohort.offsets))
        missing = aligned.unknown_features, aligned.absent_features
        return PooledProjection(W, self._sizes(W), cohort.offsets, *missing)

    def save(self, path: str | os.PathLike[str], include_patients: bool = False) -> None:
        """Write the model as a folder; with `include_patients`, also the patients' scores.

        It names every feature, even of one patient: keep it where the data is.

        Examples
        --------
        >>> import os
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> baselines.PatientNMF(rank=3, random_state=0).fit(cohort).save("model")
        >>> sorted(os.listdir("model"))
        ['manifest.json', 'model.safetensors']
        """
        check_is_fitted(self, "V_")
        arrays = {name: getattr(self, name) for name in (*ARRAYS, *self._arrays)}
        files = {"model": {name: array for name, array in arrays.items() if array is not None}}
        if include_patients:
            files["patients"] = {name: getattr(self, name) for name in PATIENTS}
        figures = {name: json_value(getattr(self, name)) for name in (*FIGURES, *self._figures)}
        figures["rounding_key_"] = self.rounding_key_
        meta = {
            "method": type(self).__name__,
            "settings": model_file.settings_of(self),
            "figures": figures,
            "cohort_settings": self.cohort_settings_,
        }
        tensors.write(path, model_file.POOLED_KIND, files, meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; it scores exactly as it did before.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = baselines.PatientNMF(rank=3, random_state=0).fit(cohort)
        >>> model.save("model")
        >>> bool((baselines.PatientNMF.load("model").transform(cohort) == model.transform(cohort)).all())
        True
        """
        files, meta = tensors.read(path, model_file.POOLED_KIND, mmap=False)
        if meta.get("method") != cls.__name__:
            raise InputError(
                f"{path} holds a model of {meta.get('method')}, not of {cls.__name__}: load it with the class that "
                "saved it."
            )
        try:
            model = cls(**meta["settings"])
            model._check_settings()
            arrays, figures = files["model"], meta["figures"]
            for name in (*ARRAYS, *cls._arrays):
                setattr(model, name, arrays.get(name))
            for name in (*FIGURES, *cls._figures, "rounding_key_"):
                setattr(model, name, figures[name])
            for name in PATIENTS if "patients" in files else ():
                setattr(model, name, files["patients"][name])
            model.cohort_settings_ = meta.get("cohort_settings")
            model.F_ = model.static_names_in_ = None
            model._columns = Columns(model.n_features_in_, model.feature_names_in_, 0, None)
            model._check_fitted()
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{path} is not a complete {cls.__name__} of this version: save it again from where it was fitted."
            ) from error
        return model

    def _read(self, cohort: Cohort) -> Aligned:
        aligned = super()._read(cohort)
        self._check_values(cohort)
        return aligned

    def _check_values(self, cohort: Cohort) -> None:
        """Refuse negative values, unless the method accepts them."""
        if self._signed or not cohort.allow_negative or cohort.visits.data.min(initial=0.0) >= 0:
            return
        raise InputError(
            f"The visits hold negative values, and {type(self).__name__} needs values of zero or more: "
            "set them to zero, or use PatientSVD."
        )

    def _check_sizes(self, aligned: Aligned) -> None:
        check_size("visits'", scaled_norm(aligned.sizes))

    def _best(self, visits: Visits) -> Found:
        """The start with the lowest loss."""
        if len(visits.offsets) == 1:  # no patient has a history
            return self._without_data(visits.X.shape[1])
        seeds = check_random_state(self.random_state).randint(2**31, size=self.n_init)
        with one_blas_thread():
            data = self._prepared(visits)
            starts = [self._find(data, np.random.default_rng(seed)) for seed in seeds]
        return min(starts, key=lambda found: found.losses[-1])

    def _selected(self, cohort: Cohort, known: Array) -> tuple[sparse.csr_array, Array]:
        """The visits of some patients."""
        counts = np.diff(cohort.offsets)
        rows = np.repeat(known, counts)
        return sparse.csr_array(cohort.visits[rows]), np.concatenate([[0], np.cumsum(counts[known])])

    def _prepared(self, visits: Visits) -> Any:
        """What `_find` receives: the visits, or what all starts compute of them."""
        return visits

    def _find(self, data: Any, rng: np.random.Generator) -> Found:
        """One start on what `_prepared` returns; every patient has a history."""
        raise NotImplementedError

    def _scores(self, visits: Visits) -> Array:
        """The scores of all patients, of which some may have no history; each must not depend on the others."""
        raise NotImplementedError

    def _sizes(self, W: Array) -> Array:
        """Scores in a scale that all phenotypes share."""
        return W

    def _without_data(self, n_features: int) -> Found:
        """Equal definitions; a method with arrays of its own adds these."""
        V = np.full((n_features, self.rank), 1.0 / np.sqrt(n_features))
        return Found(V, np.zeros((0, self.rank)), [0.0], Outcome.CONVERGED)

    def _check_fitted(self) -> None:
        """Raise ValueError if loaded arrays have inconsistent shapes."""
        if self.V_.shape != (self.n_features_in_, self.rank) or not np.isfinite(self.V_).all():
            raise ValueError("V")
        lengths = {"feature_names_in_": self.n_features_in_, "feature_patients_": self.n_features_in_}
        for name, length in (lengths | {"score_totals_": self.rank}).items():
            array = getattr(self, name)
            if array is not None and array.shape != (length,):
                raise ValueError(name)
