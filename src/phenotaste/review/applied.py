"""A model as a review left it: phenotypes named, merged, sorted and dropped. The model itself stays as it is."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from phenotaste import phenotypes
from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.review.record import Review

if TYPE_CHECKING:
    import pandas as pd

Matrix = NDArray[Any]
# What a review changes nothing about: the columns of the data, and how the fit went.
CARRIED = (
    "feature_names_in_",
    "static_names_in_",
    "feature_patients_",
    "static_patients_",
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
    "patient_ids_",
)


class Reviewed:
    """What `model.apply_review("review.json")` gives.

    The score of merged phenotypes is the sum of their scores. Their definition is the mean of their definitions,
    weighted by the scores' totals over the patients of the fit; their course is the mean of their courses, weighted
    by the patient's own scores, so that score × course is the sum of what the parts had. Rejected phenotypes are
    left out, the others keep the reviewer's order. Fit figures (`rmse_`, `cpi_`, ...) and losses are the model's.

    Attributes
    ----------
    model, review : what it was made from.
    groups : for each phenotype its number, name, status, comment and the numbers merged into it.
    names : the reviewer's names, made unique; "Phenotype 3" where there is none.
    V_, F_ : definitions (J × G, P × G).
    W_, U_ : scores and courses, where the model has its patients.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.review import Decision, Review
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = TASTE(rank=3, random_state=0, max_iter=20).fit(cohort)
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
            raise InputError(
                "The review rejects every phenotype, so that nothing would be left: keep at least one of them."
            )
        self.names = unique([group.name or f"Phenotype {group.number}" for group in self.groups])
        self._members = [np.array(group.members) - 1 for group in self.groups]
        self._weights = [self._shares_of(members) for members in self._members]
        self.V_ = self._mean_columns(model.V_)
        self.F_ = None if model.F_ is None else self._mean_columns(model.F_)

    def __repr__(self) -> str:
        return f"Reviewed({len(self.groups)} phenotypes of {self.model.V_.shape[1]})"

    def __getattr__(self, name: str) -> Any:
        if name in CARRIED or name in ("W_", "U_"):  # the latter two get here only where the model lacks them
            return getattr(self.model, name)
        raise AttributeError(f"'Reviewed' object has no attribute {name!r}")

    @property
    def W_(self) -> Matrix:
        """Scores of the patients of the fit, where the model has them."""
        return self.add_up(self.model.W_)

    @property
    def U_(self) -> Matrix:
        """Courses of the patients of the fit, where the model has them."""
        return self.courses(self.model.W_, self.model.U_, self.model.offsets_)

    def labels(self) -> list[str]:
        """Names for columns: the reviewer's, made unique, or the phenotype's number.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> reviewed.labels()
        ['Gout', '2']
        """
        return unique([group.name or str(group.number) for group in self.groups])

    def get_feature_names_out(self, input_features: Any = None) -> Matrix:
        """The names, as scikit-learn asks for them.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
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
        """The definitions as a table: phenotype (its number in the model), name, kind, feature, weight.

        With scale="matrix" weights are shares of the largest entry of the model's own matrix, so that those of
        a phenotype which was not merged are what they were.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
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
            top=top,
            min_weight=min_weight,
            scale=scale,
            largest_entries=(largest_entry(self.model.V_), largest_entry(self.model.F_)),
        )
        place = table["phenotype"].to_numpy(dtype=np.int64) - 1
        table["phenotype"] = np.array([group.number for group in self.groups])[place]
        table.insert(1, "name", np.array(self.names, dtype=object)[place])
        return table

    def transform(self, cohort: Cohort) -> Matrix:
        """Scores of patients, a column for each phenotype that was kept.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> reviewed.transform(cohort[:4]).shape
        (4, 2)
        """
        return self.add_up(self.model.project(cohort).W)

    def frame(self, cohort: Cohort) -> "pd.DataFrame":
        """Scores of patients as a table: patient ids as index, the names as columns.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> print(reviewed.frame(cohort[:2]).round(1))
           Gout  Phenotype 2
        0  14.0          2.4
        1  10.9          9.4
        """
        import pandas as pd

        return pd.DataFrame(self.transform(cohort), index=cohort.patient_ids, columns=self.names)

    def project(self, cohort: Cohort) -> Any:
        """Scores and courses of patients, in a record as the model's `project` gives; losses are the model's.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> found = reviewed.project(cohort[:4])
        >>> found.W.shape, found.U.shape == (cohort[:4].n_visits, 2)
        ((4, 2), True)
        """
        found = self.model.project(cohort)
        return found._replace(W=self.add_up(found.W), U=self.courses(found.W, found.U, found.offsets))

    def add_up(self, W: Matrix) -> Matrix:
        """Columns for each of the model's phenotypes (scores, shares) as columns for each of these.

        Examples
        --------
        >>> import numpy as np
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> reviewed.add_up(np.array([[1.0, 2.0, 3.0]]))
        array([[4., 2.]])
        """
        return np.column_stack([W[:, members].sum(axis=1) for members in self._members])

    def courses(self, W: Matrix, U: Matrix, offsets: Matrix) -> Matrix:
        """The model's courses as courses of these phenotypes: for each, score × course adds up.

        Examples
        --------
        >>> import numpy as np
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
        >>> blank = Review.blank(model, names={1: "Gout"})
        >>> merged = Decision(3, status="merged", merge_with=1)
        >>> reviewed = model.apply_review(replace(blank, decisions=(*blank.decisions[:2], merged)))
        >>> one_patient, her_courses = np.array([[1.0, 2.0, 3.0]]), np.array([[8.0, 1.0, 0.0], [4.0, 1.0, 4.0]])
        >>> reviewed.courses(one_patient, her_courses, np.array([0, 2]))
        array([[2., 1.],
               [4., 1.]])
        """
        owner = np.repeat(np.arange(len(W)), np.diff(offsets))
        found = np.empty((len(U), len(self.groups)), U.dtype)
        for g, members in enumerate(self._members):
            if len(members) == 1:
                found[:, g] = U[:, members[0]]
                continue
            parts = W[:, members]
            total = parts.sum(axis=1, keepdims=True)
            # A patient without any of it has no score to show a course by: any mean will do.
            part = np.divide(parts, total, out=np.full(parts.shape, 1 / len(members)), where=total > 0)
            found[:, g] = sum(part[owner, i] * U[:, r] for i, r in enumerate(members))
        return found

    def _mean_columns(self, factor: Matrix) -> Matrix:
        pairs = zip(self._members, self._weights, strict=True)
        return np.column_stack([factor[:, members] @ weights for members, weights in pairs])

    def _shares_of(self, members: Matrix) -> Matrix:
        """How much each of some merged phenotypes counts, as parts of one."""
        if len(members) == 1:
            return np.ones(1)
        if self.model.get_params().get("nonnegative") is False:
            raise InputError(
                "The review merges phenotypes, and scores of this model may be negative: merge phenotypes of a model "
                "with non-negative scores."
            )
        totals = getattr(self.model, "score_totals_", None)
        if totals is None and getattr(self.model, "W_", None) is not None:
            totals = self.model.W_.sum(axis=0)
        if totals is None:
            raise InputError(
                "The review merges phenotypes, and this model was saved without the totals of its scores that "
                "weigh their definitions: fit it again with this version."
            )
        total = totals[members].sum()
        return totals[members] / total if total > 0 else np.full(len(members), 1 / len(members))


def largest_entry(factor: Matrix | None) -> float:
    return 0.0 if factor is None else float(factor.max(initial=0.0))


def unique(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that stood before."""
    taken, found = set(names), []
    for place, name in enumerate(names):
        again = 2
        if name in names[:place]:
            while f"{name} ({again})" in taken:
                again += 1
            name = f"{name} ({again})"
            taken.add(name)
        found.append(name)
    return found
