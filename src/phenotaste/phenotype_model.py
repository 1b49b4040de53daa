"""The base class of all methods that give phenotypes: definitions, and a score of each of them for every patient."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted

from phenotaste import metrics, phenotypes
from phenotaste.cohort import Cohort, check_cohort
from phenotaste.cohort.align import Aligned, Allocator, align, columns_of
from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.review import Review, Reviewed
from phenotaste.validation import check_choice, check_integer, check_number

if TYPE_CHECKING:
    import pandas as pd

SIZE_RANGE = 1e-50, 1e50  # of ‖X‖ and ‖A‖: beyond them their fourth powers overflow


class PhenotypeModel(TransformerMixin, BaseEstimator):
    """Scikit-learn interface of definitions V and F, and scores W; a method implements `fit` and `project`."""

    has_courses: ClassVar[bool]  # whether each patient has a course over the visits of every phenotype
    codes_occur_in: ClassVar[str] = "visits"  # or "records": what the codes of a phenotype have in common
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {}
    _counts: ClassVar[tuple[str, ...]] = ("rank", "n_init", "max_iter")
    _amounts: ClassVar[tuple[str, ...]] = ("tol",)

    _signed: ClassVar[bool] = False  # whether the method accepts negative values and has negative scores

    # Of a refitted model the record of its review, of a guided one its guides.
    refit_: dict[str, Any] | None = None
    guides_: Sequence[dict[str, Any]] = ()
    n_starts_: int | None = None  # where the number of starts was not that of the settings

    rank: int
    n_init: Any
    V_: Array
    F_: Array | None
    W_: Array

    def fit(self, cohort: Cohort, y: Any = None) -> Self:
        raise NotImplementedError

    def project(self, cohort: Cohort) -> Any:
        """Patients under the fitted definitions, each on their own: their scores and what else the method has."""
        raise NotImplementedError

    def transform(self, cohort: Cohort) -> Any:
        """Scores of patients under the fitted definitions, each patient on its own.

        Features are matched by name: those that the model does not know are left out, those it misses are zero.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort[:50])
        >>> scores = model.transform(cohort[50:])
        >>> scores.shape
        (10, 3)
        >>> bool((model.transform(cohort[50]) == scores[0]).all())  # alone or among others: the same bits
        True
        """
        return self._labelled(self.project(cohort).W, cohort)

    def fit_transform(self, cohort: Cohort, y: Any = None) -> Array:
        """Fit, and return the scores found on the way (`W_`).

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).set_output(transform="pandas")
        >>> model.fit_transform(cohort).columns.tolist()
        ['phenotype_1', 'phenotype_2', 'phenotype_3']
        """
        return self._labelled(self.fit(cohort).W_, cohort)

    def phenotypes(
        self, top: int | None = 10, min_weight: float = 0.1, scale: Literal["matrix", "column"] = "matrix"
    ) -> "pd.DataFrame":
        """The definitions as a table: phenotype, kind (temporal or static), feature, weight, rate, cohort_rate, lift.

        The last three are of static features: the rate among the patients of the fit who have the phenotype (a share
        of at least 0.1, or the largest), the rate in the whole cohort, and their ratio. Columns other than 0 and 1
        have means instead. They are computed from rounded counts, and NaN where a count is withheld (`disclosure`).
        Features are listed even if a single patient has them, unless the model was saved as shareable.

        Parameters
        ----------
        top : maximum number of features of each kind per phenotype; None for all.
        min_weight : features below it are left out.
        scale : weights as shares of the largest entry of the whole "matrix", as in the paper's tables, or of each
            phenotype's own "column".

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> cohort, truth = simulate.ehr(300, n_features=30, rank=3, random_state=1)
        >>> table = TASTE(rank=3, n_init=1, random_state=0).fit(cohort).phenotypes(top=1)
        >>> table[["phenotype", "kind"]].to_numpy().tolist()[:2]
        [[1, 'temporal'], [1, 'static']]
        >>> bool((table["lift"].dropna() > 1).all())  # the heaviest facts are more frequent in those who have it
        True
        """
        check_is_fitted(self, "V_")
        return phenotypes.definitions(
            self.V_,
            self.F_,
            self.feature_names_in_,
            self.static_names_in_,
            rates=(getattr(self, "static_rates_", None), getattr(self, "phenotype_rates_", None)),
            top=top,
            min_weight=min_weight,
            scale=scale,
        )

    def apply_review(self, review: str | os.PathLike[str] | Mapping[str, Any] | Review) -> Reviewed:
        """The model as a review names, merges and drops its phenotypes: a file, its content, or a Review.

        A review of another model is refused; this model stays as it is.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> Review.blank(model, names={2: "Gout"}).write("review.json")  # as the review page saves it
        >>> model.apply_review("review.json").names
        ['Phenotype 1', 'Gout', 'Phenotype 3']
        """
        check_is_fitted(self, "V_")
        return Reviewed(self, review)

    @property
    def names_(self) -> list[str]:
        """The name of each phenotype, from the review that a refit followed or from a guide; empty without one."""
        check_is_fitted(self, "V_")
        rows = [*self.guides_, *(self.refit_ or {}).get("phenotypes", [])]
        named = {row["phenotype"]: row["name"] for row in rows if row["name"]}
        return [named.get(r + 1, "") for r in range(self.V_.shape[1])]

    def reviewed(
        self, review: str | os.PathLike[str] | Mapping[str, Any] | Review | None = None
    ) -> Reviewed | None:
        """`apply_review`; without a review, the model with its own names, or None if it has none.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> model.reviewed() is None
        True
        """
        if review is None:
            return self.apply_review(Review.blank(self)) if any(self.names_) else None
        return self.apply_review(review)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the scores' columns, in scikit-learn's interface.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> TASTE(rank=2, n_init=1, random_state=0, max_iter=20).fit(cohort).get_feature_names_out().tolist()
        ['phenotype_1', 'phenotype_2']
        """
        check_is_fitted(self, "V_")
        return np.array([f"phenotype_{r + 1}" for r in range(self.V_.shape[1])], dtype=object)

    @property
    def has_negative_weights(self) -> bool:
        """Whether definitions and scores may be negative.

        Examples
        --------
        >>> from phenotaste import baselines
        >>> baselines.Spartan(nonnegative=False).has_negative_weights, baselines.PatientNMF().has_negative_weights
        (True, False)
        """
        return self._signed or self.get_params().get("nonnegative") is False

    def _check_settings(self) -> None:
        for name, allowed in self._choices.items():
            check_choice(name, getattr(self, name), allowed)
        for name in self._counts:
            check_integer(name, getattr(self, name), min=1)
        for name in self._amounts:
            check_number(name, getattr(self, name))

    def validate(self, cohort: Cohort) -> None:
        """Raise the InputError that `fit` would raise for these settings and this cohort, without fitting.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> TASTE(rank=0).validate(cohort)
        Traceback (most recent call last):
            ...
        phenotaste.errors.InputError: rank=0 must be an integer of at least 1.
        """
        self._read(cohort)

    def _read(self, cohort: Cohort) -> Aligned:
        """The cohort as a fit needs it, checked."""
        self._check_settings()
        check_cohort(cohort, type(self).__name__)
        n_features = cohort.shape[1]
        if n_features == 0:
            raise InputError(
                f"The cohort has no temporal features: {type(self).__name__} needs visits with at least one code."
            )
        if self.rank > n_features:
            warnings.warn(
                f"rank={self.rank} exceeds the {n_features} temporal features: "
                "some phenotypes will repeat each other.",
                stacklevel=4,
            )
        self._check_names(cohort)
        aligned = align(cohort, columns_of(cohort), self._allocator())
        self._check_sizes(aligned)
        return aligned

    def _n_starts(self) -> int:
        """Number of starts; a method may have a default that depends on other settings."""
        return self.n_init

    def _check_names(self, cohort: Cohort) -> None:
        """Refuse a cohort without the features that the settings name."""

    def _check_sizes(self, aligned: Aligned) -> None:
        """Refuse data whose sums of squares would overflow or vanish."""
        check_size("visits'", metrics.scaled_norm(aligned.sizes))
        check_static_size(aligned)

    def _allocator(self) -> Allocator:
        """Allocates arrays as long as the cohort."""
        return np.empty

    def _labelled(self, W: Array, cohort: Cohort) -> Any:
        """Scores in the format of set_output; patient ids become the index of a data frame."""
        if _get_output_config("transform", self)["dense"] != "pandas":
            return W
        import pandas as pd

        return pd.DataFrame(W, index=cohort.patient_ids, columns=self.get_feature_names_out())


def check_size(whose: str, size: float, limits: tuple[float, float] = SIZE_RANGE) -> None:
    """Refuse a size beyond the limits; 0 is the size of no data."""
    if size != 0 and not limits[0] < size < limits[1]:
        raise InputError(
            f"The root of the sum of squares of the {whose} values, {size:.0e}, is out of range: "
            "divide them by a constant."
        )


def check_static_size(aligned: Aligned) -> None:
    check_size("static features'", metrics.scaled_norm(np.abs(aligned.shard.static).max(axis=1, initial=0.0)))
