"""A model with a review applied: phenotypes named, merged, sorted and dropped. The model itself is not changed."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from phenotaste import phenotypes
from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.review.decisions import Review

if TYPE_CHECKING:
    import pandas as pd

Matrix = NDArray[Any]
# Attributes of the model that a review does not change: the columns of the data, and the results of the fit.
UNCHANGED = (
    "feature_names_in_",
    "static_names_in_",
    "feature_patients_",
    "static_patients_",
    "static_rates_",
    "static_numeric_",
    "warnings_",
    "cohort_settings_",
    "cohort_thresholds_",
    "n_features_in_",
    "n_patients_",
    "n_visits_",
    "n_short_",
    "n_empty_",
    "n_iter_",
    "converged_",
    "outcome_",
    "loss_curve_",
    "rmse_",
    "cpi_",
    "offsets_",
    "scale_",
    "patient_ids_",
    "refit_",
    "guides_",
)


class Reviewed:
    """What `model.apply_review("review.json")` returns.

    The score of merged phenotypes is the sum of their scores. Their definition is the mean of their definitions,
    weighted by the scores' totals over the patients of the fit; their course is the mean of their courses, weighted
    by the patient's own scores, so that score × course is the sum over the merged phenotypes. Rejected phenotypes are
    left out, the others are in the reviewer's order. Fit figures (`rmse_`, `cpi_`, ...) and losses are the model's.

    Attributes
    ----------
    model, review : the model, and the review applied to it.
    groups : for each phenotype, its number, name, status and comment, and the numbers merged into it.
    names : the reviewer's names, made unique; "Phenotype 3" for one without a name.
    V_, F_ : definitions (J × G, P × G).
    W_, U_ : scores and courses, if the model has its patients.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.review import Decision, Review
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = TASTE(rank=3, n_init=1, random_state=0, max_iter=20).fit(cohort)
    >>> review = Review.blank(model, names={1: "Heart failure"})
    >>> merged = Decision(3, status="merged", merge_with=1)
    >>> reviewed = model.apply_review(replace(review, decisions=(*review.decisions[:2], merged)))
    >>> reviewed.names
    ['Heart failure', 'Phenotype 2']
    >>> reviewed.transform(cohort).shape
    (20, 2)
    """

    def __init__(self, model: Any, review: "str | os.PathLike[str] | Mapping[str, Any] | Review") -> None:
        self.model = model
        self.review = Review.read(review)
        self.review.check_model(model)
        self.groups = self.review.groups()
        if not self.groups:
            raise InputError("The review rejects every phenotype: keep at least one of them.")
        self.names = unique([group.name or f"Phenotype {group.number}" for group in self.groups])
        self._members = [np.array(group.members) - 1 for group in self.groups]
        self._weights = [self._merge_weights(members) for members in self._members]
        self.V_ = self._mean_columns(model.V_)
        self.F_ = None if model.F_ is None else self._mean_columns(model.F_)

    def __repr__(self) -> str:
        return f"Reviewed({len(self.groups)} phenotypes of {self.model.V_.shape[1]})"

    def __getattr__(self, name: str) -> Any:
        if name in UNCHANGED or name in ("W_", "U_"):  # the latter two only if the model lacks them
            return getattr(self.model, name)
        raise AttributeError(f"'Reviewed' object has no attribute {name!r}")

    @property
    def W_(self) -> Matrix:
        """Scores of the patients of the fit, if the model has them."""
        return self.sum_columns(self.model.W_)

    @property
    def U_(self) -> Matrix:
        """Courses of the patients of the fit, if the model has them."""
        return self.courses(self.model.W_, self.model.U_, self.model.offsets_)

    @property
    def phenotype_rates_(self) -> Matrix | None:
        """Rates of static facts by phenotype; NaN for merged ones: a model does not tell how their patients overlap."""
        rates = getattr(self.model, "phenotype_rates_", None)
        if rates is None:
            return None
        unknown = np.full(len(rates), np.nan)
        return np.column_stack([rates[:, m[0]] if len(m) == 1 else unknown for m in self._members])

    @property
    def has_courses(self) -> bool:
        """Whether each patient has a course over the visits of every phenotype.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> from phenotaste.review import Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = baselines.PatientNMF(rank=3, random_state=0).fit(cohort)
        >>> model.apply_review(Review.blank(model)).has_courses
        False
        """
        return bool(self.model.has_courses)

    def labels(self) -> list[str]:
        """Return labels for columns: the reviewer's names, made unique, or the number of the phenotype.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> reviewed.labels()
        ['Gout', '2']
        """
        return unique([group.name or str(group.number) for group in self.groups])

    def get_feature_names_out(self, input_features: Any = None) -> Matrix:
        """Return the names, as scikit-learn transformers do.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> reviewed.get_feature_names_out().tolist()
        ['Gout', 'Phenotype 2']
        """
        return np.array(self.names, dtype=object)

    def phenotypes(
        self, top: int | None = 10, min_weight: float = 0.1, scale: Literal["matrix", "column"] = "matrix"
    ) -> "pd.DataFrame":
        """Return the definitions as a table: phenotype (its number in the model), name, kind, feature, weight, rates.

        The rates are those of the model's own table; they are NaN for merged phenotypes.

        With scale="matrix" weights are relative to the largest entry of the model's own matrix, so that those of
        a phenotype that was not merged do not change.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> reviewed.phenotypes(top=1)[["phenotype", "name", "kind"]].to_numpy().tolist()
        [[1, 'Gout', 'temporal'], [1, 'Gout', 'static'], [2, 'Phenotype 2', 'temporal'], [2, 'Phenotype 2', 'static']]
        """
        table = phenotypes.definitions(
            self.V_,
            self.F_,
            self.feature_names_in_,
            self.static_names_in_,
            rates=(getattr(self.model, "static_rates_", None), self.phenotype_rates_),
            top=top,
            min_weight=min_weight,
            scale=scale,
            largest_entries=(largest_entry(self.model.V_), largest_entry(self.model.F_)),
        )
        index = table["phenotype"].to_numpy(dtype=np.int64) - 1
        table["phenotype"] = np.array([group.number for group in self.groups])[index]
        table.insert(1, "name", np.array(self.names, dtype=object)[index])
        return table

    def transform(self, cohort: Cohort) -> Matrix:
        """Return scores of patients, a column for each phenotype that was kept.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> reviewed.transform(cohort[:4]).shape
        (4, 2)
        """
        return self.sum_columns(self.model.project(cohort).W)

    def frame(self, cohort: Cohort) -> "pd.DataFrame":
        """Return scores of patients as a table, with patient ids as index and names as columns.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> print(reviewed.frame(cohort[:2]).round(1))
           Gout  Phenotype 2
        0   0.2          0.5
        1   0.4          0.4
        """
        import pandas as pd

        return pd.DataFrame(self.transform(cohort), index=cohort.patient_ids, columns=self.names)

    def project(self, cohort: Cohort) -> Any:
        """Return scores and courses of patients, in the same record as `project` of the model, whose losses are kept.

        A model without courses has sizes in their place.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> projection = reviewed.project(cohort[:4])
        >>> projection.W.shape, projection.U.shape == (cohort[:4].n_visits, 2)
        ((4, 2), True)
        """
        projection = self.model.project(cohort)
        if not self.has_courses:
            return projection._replace(
                W=self.sum_columns(projection.W), sizes=self.sum_columns(projection.sizes)
            )
        U = self.courses(projection.W, projection.U, projection.offsets)
        return projection._replace(W=self.sum_columns(projection.W), U=U)

    def sum_columns(self, W: Matrix) -> Matrix:
        """Sum columns of the model's phenotypes (scores, shares) to columns of these phenotypes.

        Examples
        --------
        >>> import numpy as np
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> reviewed.sum_columns(np.array([[1.0, 2.0, 3.0]]))
        array([[4., 2.]])
        """
        return np.column_stack([W[:, members].sum(axis=1) for members in self._members])

    def courses(self, W: Matrix, U: Matrix, offsets: Matrix) -> Matrix:
        """Combine the model's courses to courses of these phenotypes, such that score × course is additive.

        Examples
        --------
        >>> import numpy as np
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> W, U = np.array([[1.0, 2.0, 3.0]]), np.array([[8.0, 1.0, 0.0], [4.0, 1.0, 4.0]])  # one patient
        >>> reviewed.courses(W, U, np.array([0, 2]))
        array([[2., 1.],
               [4., 1.]])
        """
        owner = np.repeat(np.arange(len(W)), np.diff(offsets))
        result = np.empty((len(U), len(self.groups)), U.dtype)
        for g, members in enumerate(self._members):
            if len(members) == 1:
                result[:, g] = U[:, members[0]]
                continue
            scores = W[:, members]
            total = scores.sum(axis=1, keepdims=True)
            # Where all scores are 0, so is score × course, and any mean is valid.
            share = np.divide(scores, total, out=np.full(scores.shape, 1 / len(members)), where=total > 0)
            result[:, g] = sum(share[owner, i] * U[:, r] for i, r in enumerate(members))
        return result

    def _mean_columns(self, factor: Matrix) -> Matrix:
        pairs = zip(self._members, self._weights, strict=True)
        return np.column_stack([factor[:, members] @ weights for members, weights in pairs])

    def _merge_weights(self, members: Matrix) -> Matrix:
        """Weights of merged phenotypes in their common definition; they sum to one."""
        if len(members) == 1:
            return np.ones(1)
        if self.model.has_negative_weights:
            raise InputError(
                "The review merges phenotypes, but scores of this model may be negative: merge phenotypes of a model "
                "with non-negative scores."
            )
        totals = getattr(self.model, "score_totals_", None)
        if totals is None and getattr(self.model, "W_", None) is not None:
            totals = self.model.W_.sum(axis=0)
        if totals is None:
            raise InputError(
                "The review merges phenotypes, but this model was saved without the totals of its scores, which "
                "weight their definitions: fit it again with this version."
            )
        total = totals[members].sum()
        return totals[members] / total if total > 0 else np.full(len(members), 1 / len(members))


def largest_entry(factor: Matrix | None) -> float:
    return 0.0 if factor is None else float(factor.max(initial=0.0))


def unique(names: Sequence[str]) -> list[str]:
    """Append a number to names that occurred before."""
    taken, result = set(names), []
    for index, name in enumerate(names):
        if name in names[:index]:
            number = 2
            while f"{name} ({number})" in taken:
                number += 1
            name = f"{name} ({number})"
            taken.add(name)
        result.append(name)
    return result
