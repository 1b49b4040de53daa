"""Base class of the classifiers: labels, columns matched by name, validation patients, and saved folders."""

import os
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from phenotaste.cohort import Cohort, check_cohort
from phenotaste.cohort.align import Columns, align_static, align_visits, columns_of
from phenotaste.cohort.persons import label_patterns, rows_of
from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.storage import tensors
from phenotaste.storage.encoding import json_value

RUNTIME_PARAMS = ("callback", "verbose", "device")  # not saved with a model
Settings = dict[str, Any]


class Labels(NamedTuple):
    classes: Array  # the two labels, in order
    case: Array  # for each patient, whether it has the second label


class Classifier(ClassifierMixin, BaseEstimator):
    """A subclass implements `_fit`, `_probability`, `_check_settings` and `_check_fitted`."""

    _kind: ClassVar[str]  # of the folder that `save` writes
    _arrays: ClassVar[
        tuple[str, ...]
    ]  # fitted attributes saved as arrays, in addition to columns and classes
    _figures: ClassVar[tuple[str, ...]]  # fitted attributes saved as numbers or text

    def fit(self, cohort: Cohort, y: Any = None, *, validation: Cohort | None = None) -> Self:
        """Fit to labelled patients; without `y`, to the cohort's own labels.

        `validation` is a labelled cohort to choose settings by; by default a part of `cohort` is held out.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> model = baselines.RawLogistic(C=(0.1, 1.0), random_state=0).fit(cohort[:200], validation=cohort[200:])
        >>> model.C_
        1.0
        """
        check_cohort(cohort, type(self).__name__)
        self._check_settings()
        classes, case = read_labels(cohort, y)
        held_out = None if validation is None else (validation, validation_cases(validation, classes))
        self._columns = used_columns(cohort, self._uses_static())
        self._fit(cohort, case, held_out)
        self.classes_ = classes
        return self

    def predict_proba(self, cohort: Cohort) -> Array:
        """The probability of each class for each patient, K × 2; the columns are `classes_`.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> model = baselines.RawLogistic(C=1.0, random_state=0).fit(cohort[:250])
        >>> model.predict_proba(cohort[250:])[0].round(2).tolist()
        [0.68, 0.32]
        """
        check_is_fitted(self, "classes_")
        check_cohort(cohort, type(self).__name__)
        case = self._probability(cohort)
        return np.column_stack([1.0 - case, case])

    def predict(self, cohort: Cohort) -> Array:
        """The more probable class of each patient.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> model = baselines.RawLogistic(C=1.0, random_state=0).fit(cohort[:250])
        >>> model.predict(cohort[280:284]).tolist()
        [0, 1, 0, 0]
        """
        return self.classes_[(self.predict_proba(cohort)[:, 1] > 0.5).astype(int)]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted classifier as a folder, without patients.

        It names every feature, even of one patient: keep it where the data is.

        Examples
        --------
        >>> import os
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> model = baselines.RawLogistic(C=1.0, random_state=0).fit(cohort[:250])
        >>> model.save("classifier")
        >>> sorted(os.listdir("classifier"))
        ['manifest.json', 'model.safetensors']
        """
        check_is_fitted(self, "classes_")
        arrays = {name: getattr(self, name) for name in self._arrays} | self._extra_arrays()
        arrays |= {"classes_": self.classes_, "feature_names": self._columns.feature_names}
        arrays |= {"static_names": self._columns.static_names}
        widths = {"n_features": self._columns.n_features, "n_static": self._columns.n_static}
        figures = {name: json_value(getattr(self, name)) for name in self._figures}
        files = {"model": {name: array for name, array in arrays.items() if array is not None}}
        tensors.write(
            path, self._kind, files, {"settings": saved_settings(self), "figures": figures | widths}
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a classifier that `save` wrote; its predictions are bit-identical.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> model = baselines.RawLogistic(C=1.0, random_state=0).fit(cohort[:250])
        >>> model.save("classifier")
        >>> again = baselines.RawLogistic.load("classifier")
        >>> bool((again.predict_proba(cohort) == model.predict_proba(cohort)).all())
        True
        """
        files, meta = tensors.read(path, cls._kind, mmap=False)
        try:
            arrays, figures = dict(files["model"]), dict(meta["figures"])
            model = cls(**meta["settings"])
            model._check_settings()
            model.classes_ = arrays.pop("classes_")
            names = arrays.pop("feature_names", None), arrays.pop("static_names", None)
            model._columns = Columns(figures.pop("n_features"), names[0], figures.pop("n_static"), names[1])
            for name in cls._arrays:
                setattr(model, name, arrays.pop(name))
            for name in cls._figures:
                value = figures[name]
                setattr(model, name, float("nan") if value is None else value)
            model._restore(arrays)
            model._check_fitted()
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{path} is not a complete {cls.__name__} of this version: save it again from where it was fitted."
            ) from error
        return model

    @property
    def n_features_in_(self) -> int:
        """Number of temporal features of the training cohort."""
        return self._columns.n_features

    @property
    def feature_names_in_(self) -> Array | None:
        """Their names, by which columns of other cohorts are matched; None without names."""
        return self._columns.feature_names

    @property
    def static_names_in_(self) -> Array | None:
        """Names of the static features; None without names, or if static features are not used."""
        return self._columns.static_names

    def _uses_static(self) -> bool:
        return bool(getattr(self, "static", False))

    def _aligned(self, cohort: Cohort) -> tuple[sparse.csr_array, Array | None]:
        """The visits and static features in the order of the fit."""
        return align_visits(cohort, self._columns).visits, align_static(
            cohort.static, cohort.static_names, self._columns
        )

    def _extra_arrays(self) -> dict[str, Array]:
        return {}

    def _restore(self, arrays: dict[str, Array]) -> None:
        """Restore what `_extra_arrays` returned."""

    def _check_settings(self) -> None:
        raise NotImplementedError

    def _check_fitted(self) -> None:
        """Raise ValueError if loaded arrays have inconsistent shapes."""
        raise NotImplementedError

    def _fit(self, cohort: Cohort, case: Array, validation: tuple[Cohort, Array] | None) -> None:
        raise NotImplementedError

    def _probability(self, cohort: Cohort) -> Array:
        raise NotImplementedError


def read_labels(cohort: Cohort, y: Any) -> Labels:
    """The labels of the patients, of exactly two classes; missing labels raise."""
    labels = checked_labels(cohort, y)
    classes = np.unique(labels)
    if len(classes) != 2:
        raise InputError(f"The labels hold {len(classes)} class(es) and two are needed: cases and controls.")
    return Labels(classes, labels == classes[1])


def validation_cases(validation: Cohort, classes: Array) -> Array:
    """Which validation patients have the second class."""
    labels = checked_labels(validation, None)
    if not np.isin(labels, classes).all():
        raise InputError("The validation cohort has labels that do not occur in the training cohort.")
    return labels == classes[1]


def checked_labels(cohort: Cohort, y: Any) -> Array:
    if y is None and cohort.labels is None:
        raise InputError("The cohort has no labels: give them as y, or build the cohort with labels.")
    labels = np.asarray(cohort.labels if y is None else y)
    if labels.shape != (len(cohort),):
        raise InputError(
            f"y has the shape {labels.shape} for {len(cohort):,} patients: give one label per patient."
        )
    if labels.dtype.kind == "O":
        labels = from_objects(labels)
    missing = int(np.isnan(labels).sum()) if labels.dtype.kind == "f" else 0
    if missing:
        raise InputError(
            f"{missing:,} of {len(labels):,} labels are missing: select the labelled patients with "
            "cohort[~np.isnan(cohort.labels)]."
        )
    return labels


def from_objects(labels: Array) -> Array:
    """Labels of dtype object as text or float64; None is missing."""
    if all(isinstance(label, str) for label in labels):
        return labels.astype(str)
    try:
        return np.array([np.nan if label is None else label for label in labels], dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("y must hold either numbers or text, not both.") from None


def validation_mask(case: Array, share: float, rng: np.random.Generator, persons: Array) -> Array | None:
    """A mask of the rows to hold out, stratified by class; None if a class is too small to be split.

    `persons` is the number of the patient of each row; all rows of a patient are held out, or none.
    """
    pattern = label_patterns(persons, case)
    held_out = np.zeros(len(case), dtype=bool)
    for stratum in np.unique(pattern):
        members = np.flatnonzero(pattern == stratum)
        n_held_out = max(1, round(share * len(members)))
        if share == 0 or n_held_out >= len(members):
            return None
        held_out[rows_of(persons, rng.permutation(members)[:n_held_out])] = True
    return held_out if len(np.unique(case[held_out])) == 2 else None


def used_columns(cohort: Cohort, static: bool) -> Columns:
    columns = columns_of(cohort)
    return columns if static else Columns(columns.n_features, columns.feature_names, 0, None)


def saved_settings(model: Any) -> Settings:
    """The settings as JSON values, without those of the run."""
    settings = {
        name: json_value(value) for name, value in model.get_params().items() if name not in RUNTIME_PARAMS
    }
    if "random_state" in settings and not isinstance(settings["random_state"], int):
        settings["random_state"] = None
    return settings
