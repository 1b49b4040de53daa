"""Lasso logistic regression on the raw features: which codes occur in a patient's history (TASTE's paper, Q3)."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted, check_random_state

from phenotaste.baselines.classifier import (
    Classifier,
    validation_mask,
)
from phenotaste.baselines.lasso import Lasso, checked_grid, fit_lasso
from phenotaste.cohort import Cohort
from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.validation import check_choice, check_integer, check_number

if TYPE_CHECKING:
    import pandas as pd


class RawLogistic(Classifier):
    """Lasso logistic regression on visit-aggregated binary features (Afshar et al. 2020, Q3).

    A patient is represented by the set of codes in any of its visits, and with `static` by its static features too.
    Times, counts and order of the codes are not used. All matrices stay sparse.

    Parameters
    ----------
    static : whether the static features are used (the paper's "raw static+dynamic") or not ("raw dynamic").
    C : inverse strength of the lasso; a sequence to choose from by validation AUC; None for the paper's grid,
        0.01 to 10000 in powers of ten. The final fit uses all patients passed to `fit`.
    max_iter : maximum number of iterations of the coordinate descent (liblinear).
    validation : share of the patients held out to choose C, stratified by class; by default the paper's 10 of the 85 %
        that are not test patients. If a class is too small to be split, C = 1, or the first given.
    class_weight : None, or "balanced" to weigh the classes equally.

    Attributes
    ----------
    coef_, intercept_ : one weight per feature, temporal ones first; `coefficients()` lists them by name.
    C_, validation_auc_ : the selected C, and its validation AUC (NaN if there was nothing to select).
    classes_ : the two labels.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=300)
    >>> model = baselines.RawLogistic(C=1.0, random_state=0).fit(cohort, truth.labels)
    >>> model.predict_proba(cohort[:3]).shape
    (3, 2)
    """

    _kind = "raw-logistic-model"
    _arrays: ClassVar[tuple[str, ...]] = ("coef_",)
    _figures: ClassVar[tuple[str, ...]] = ("intercept_", "C_", "validation_auc_")

    def __init__(
        self,
        static: bool = True,
        *,
        C: Any = None,
        max_iter: int = 1000,
        validation: float = 10 / 85,
        class_weight: Literal["balanced"] | None = None,
        random_state: Any = None,
    ) -> None:
        self.static = static
        self.C = C
        self.max_iter = max_iter
        self.validation = validation
        self.class_weight = class_weight
        self.random_state = random_state

    def coefficients(self) -> "pd.DataFrame":
        """The non-zero coefficients, largest absolute weight first: feature, kind (temporal or static), weight.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> model = baselines.RawLogistic(C=1.0, random_state=0).fit(cohort[:250])
        >>> model.coefficients().head(1).round(2).to_numpy().tolist()
        [['Dx_Conduction disorders [105.]', 'temporal', 2.13]]
        """
        import pandas as pd

        check_is_fitted(self, "classes_")
        columns = self._columns
        kinds = [("temporal", columns.n_features, columns.feature_names)]
        kinds += [("static", columns.n_static, columns.static_names)]
        rows = [
            (str(j) if names is None else str(names[j]), kind)
            for kind, width, names in kinds
            for j in range(width)
        ]
        table = pd.DataFrame(rows, columns=["feature", "kind"]).assign(weight=self.coef_)
        table = table[table.weight != 0]
        return table.sort_values("weight", key=abs, ascending=False, kind="stable", ignore_index=True)

    def _check_settings(self) -> None:
        checked_grid(self.C)
        check_choice("class_weight", self.class_weight, (None, "balanced"))
        check_integer("max_iter", self.max_iter, min=1)
        check_number("validation", self.validation, max=1, closed="left")

    def _fit(self, cohort: Cohort, case: Array, validation: tuple[Cohort, Array] | None) -> None:
        seed = int(check_random_state(self.random_state).randint(2**31))
        grid: Any = checked_grid(self.C)
        held_out: Any
        if validation is None:
            held_out = validation_mask(case, self.validation, np.random.default_rng(seed), cohort.persons)
            if held_out is None and self.C is None:
                grid = (1.0,)
        else:
            held_out = (self._features(validation[0]), validation[1])
            if len(np.unique(validation[1])) < 2:
                raise InputError("The validation cohort holds one class only: C cannot be chosen by its AUC.")
        fitted = fit_lasso(
            self._features(cohort),
            case,
            grid,
            held_out,
            max_iter=self.max_iter,
            class_weight=self.class_weight,
            seed=seed,
        )
        self.coef_, self.intercept_, self.C_, self.validation_auc_ = fitted

    def _probability(self, cohort: Cohort) -> Array:
        fitted = Lasso(self.coef_, self.intercept_, self.C_, self.validation_auc_)
        return fitted.probability(self._features(cohort))

    def _features(self, cohort: Cohort) -> sparse.csr_array:
        visits, static = self._aligned(cohort)
        X = occurrences(visits, cohort.offsets)
        if static is not None:
            X = sparse.csr_array(sparse.hstack([X, sparse.csr_array(static)]))
        # liblinear takes no other index type.
        X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
        return X

    def _check_fitted(self) -> None:
        width = self._columns.n_features + self._columns.n_static
        if self.coef_.shape != (width,) or not np.isfinite(self.coef_).all() or len(self.classes_) != 2:
            raise ValueError("shapes")


def occurrences(visits: sparse.csr_array, offsets: Array) -> sparse.csr_array:
    """Patients × features, 1 where the feature is positive in any visit of the patient."""
    present = visits.data > 0
    patient = np.repeat(np.arange(len(offsets) - 1), np.diff(visits.indptr[offsets]))
    shape = (len(offsets) - 1, visits.shape[1])
    occurred = sparse.csr_array(
        (np.ones(int(present.sum())), (patient[present], visits.indices[present])), shape=shape
    )
    occurred.sum_duplicates()
    occurred.data[:] = 1.0
    return occurred
