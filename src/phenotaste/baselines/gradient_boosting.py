"""Gradient boosted trees on the raw features: how often each code occurs in a patient's history.

J. H. Friedman: "Greedy function approximation: a gradient boosting machine", Annals of Statistics 2001; with histograms
of the features as in G. Ke et al.: "LightGBM", NIPS 2017. scikit-learn grows the trees; predictions are made here.
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import check_random_state
from threadpoolctl import threadpool_limits

from phenotaste.baselines._pooled import Visits
from phenotaste.baselines.classifier import Classifier, validation_mask
from phenotaste.cohort import Cohort
from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.validation import check_integer, check_number

CELLS_PER_BLOCK = 2**21  # patients × trees that are traversed at once


class Trees(NamedTuple):
    """All nodes of all trees: a row goes left if its feature is at most the threshold; a leaf leads to itself."""

    roots: Array  # node of each tree
    feature: Array
    threshold: Array
    left: Array
    right: Array
    value: Array  # added to the log odds, in leaves

    def first(self, n_trees: int) -> "Trees":
        """The trees that were grown first."""
        end = self.roots[n_trees] if n_trees < len(self.roots) else len(self.feature)
        return Trees(self.roots[:n_trees], *(array[:end] for array in self[1:]))

    def leaf_values(self, X: Array) -> Array:
        """What each tree adds for each row, rows × trees."""
        node = np.tile(self.roots, (len(X), 1))
        rows = np.arange(len(X))[:, None]
        while True:
            goes_left = X[rows, self.feature[node]] <= self.threshold[node]
            child = np.where(goes_left, self.left[node], self.right[node])
            if np.array_equal(child, node):
                return self.value[node]
            node = child


class RawGradientBoosting(Classifier):
    """Gradient boosted trees on visit-aggregated counts (Friedman 2001, Ke et al. 2017).

    A patient is represented by the sum of its visits, and with `static` by its static features too. Times and order of
    the visits are not used. The sums are kept as a dense matrix.

    Parameters
    ----------
    static : whether the static features are used.
    max_iter : maximum number of trees; the number with the best validation AUC is used.
    learning_rate, max_leaf_nodes, min_samples_leaf, l2 : as for scikit-learn's HistGradientBoostingClassifier.
    validation : share of the patients held out to choose the number of trees, stratified by class; by default the
        paper's 10 of the 85 % that are not test patients. The final fit uses all patients passed to `fit`. If a class
        is too small to be split, or the share is 0, all trees are used.

    Attributes
    ----------
    n_trees_, validation_auc_ : the selected number of trees, and its validation AUC (NaN without a choice).
    trees_ : the trees as arrays.
    intercept_ : the log odds before the first tree.
    classes_ : the two labels.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=300)
    >>> model = baselines.RawGradientBoosting(random_state=0).fit(cohort, truth.labels)
    >>> model.predict_proba(cohort[:3]).shape
    (3, 2)
    """

    _kind = "raw-gradient-boosting-model"
    _arrays: ClassVar[tuple[str, ...]] = ()
    _figures: ClassVar[tuple[str, ...]] = ("intercept_", "n_trees_", "validation_auc_")

    def __init__(
        self,
        static: bool = True,
        *,
        max_iter: int = 200,
        learning_rate: float = 0.1,
        max_leaf_nodes: int = 31,
        min_samples_leaf: int = 20,
        l2: float = 0.0,
        validation: float = 10 / 85,
        random_state: Any = None,
    ) -> None:
        self.static = static
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.max_leaf_nodes = max_leaf_nodes
        self.min_samples_leaf = min_samples_leaf
        self.l2 = l2
        self.validation = validation
        self.random_state = random_state

    def _check_settings(self) -> None:
        check_integer("max_iter", self.max_iter, min=1)
        check_integer("max_leaf_nodes", self.max_leaf_nodes, min=2)
        check_integer("min_samples_leaf", self.min_samples_leaf, min=1)
        check_number("learning_rate", self.learning_rate, closed="neither")
        check_number("l2", self.l2)
        check_number("validation", self.validation, max=1, closed="left")

    def _fit(self, cohort: Cohort, case: Array, validation: tuple[Cohort, Array] | None) -> None:
        seed = int(check_random_state(self.random_state).randint(2**31))
        X = self._features(cohort)
        self.validation_auc_ = float("nan")
        if validation is not None:
            if len(np.unique(validation[1])) < 2:
                raise InputError(
                    "The validation cohort holds one class only: the number of trees cannot be chosen by its AUC."
                )
            self._grow(X, case, self.max_iter, seed)
            self._choose(self._features(validation[0]), validation[1])
            return
        held_out = validation_mask(case, self.validation, np.random.default_rng(seed), cohort.persons)
        n_trees = self.max_iter
        if held_out is not None:
            self._grow(X[~held_out], case[~held_out], self.max_iter, seed)
            n_trees = self._choose(X[held_out], case[held_out])
        self._grow(X, case, n_trees, seed)

    def _grow(self, X: Array, case: Array, n_trees: int, seed: int) -> None:
        engine = HistGradientBoostingClassifier(
            max_iter=n_trees,
            learning_rate=self.learning_rate,
            max_leaf_nodes=self.max_leaf_nodes,
            min_samples_leaf=self.min_samples_leaf,
            l2_regularization=self.l2,
            early_stopping=False,
            random_state=seed,
        )
        # On a busy machine OpenMP's threads wait for each other: two took ten times as long as one.
        with threadpool_limits(1, user_api="openmp"):
            engine.fit(X, case)
        self.intercept_ = float(engine._baseline_prediction[0, 0])
        self.trees_ = as_trees([stage[0].nodes for stage in engine._predictors])
        self.n_trees_ = len(self.trees_.roots)

    def _choose(self, X: Array, case: Array) -> int:
        """Keep the number of trees with the best AUC; among ties the smallest."""
        risks = expit(self._log_odds(X, staged=True))
        aucs = [roc_auc_score(case, risk) for risk in risks.T]
        self.n_trees_ = int(np.argmax(aucs)) + 1
        self.validation_auc_ = float(aucs[self.n_trees_ - 1])
        self.trees_ = self.trees_.first(self.n_trees_)
        return self.n_trees_

    def _log_odds(self, X: Array, staged: bool = False) -> Array:
        """The log odds of each row; if staged, after each tree."""
        size = max(1, CELLS_PER_BLOCK // max(1, self.n_trees_))
        blocks = [X[first : first + size] for first in range(0, max(len(X), 1), size)]
        # Trees are added one after the other: NumPy's sum has an order of its own, and bits must not depend on it.
        sums = (self.intercept_ + np.cumsum(self.trees_.leaf_values(block), axis=1) for block in blocks)
        return np.concatenate([each if staged else each[:, -1] for each in sums])

    def _probability(self, cohort: Cohort) -> Array:
        return expit(self._log_odds(self._features(cohort)))

    def _features(self, cohort: Cohort) -> Array:
        visits, static = self._aligned(cohort)
        sums = Visits(visits, cohort.offsets).sums().toarray()
        return sums if static is None else np.column_stack([sums, static])

    def _extra_arrays(self) -> dict[str, Array]:
        return {f"tree_{name}": array for name, array in self.trees_._asdict().items()}

    def _restore(self, arrays: dict[str, Array]) -> None:
        self.trees_ = Trees(*(arrays[f"tree_{name}"] for name in Trees._fields))

    def _check_fitted(self) -> None:
        """Raise ValueError unless every path leads from a root down to a leaf."""
        roots, feature, threshold, left, right, value = self.trees_
        node = np.arange(len(feature))
        is_leaf = (left == node) & (right == node)
        valid = (
            len(roots) == self.n_trees_ > 0,
            len(self.classes_) == 2,
            all(len(array) == len(node) for array in self.trees_[1:]),
            np.all((roots >= 0) & (roots < len(node))),
            np.all((feature >= 0) & (feature < self._columns.n_features + self._columns.n_static)),
            np.all(is_leaf | ((left > node) & (right > node))),
            np.all((left < len(node)) & (right < len(node))),
            np.isfinite(value).all() and not np.isnan(threshold).any(),
        )
        if not all(valid):
            raise ValueError("trees")


def as_trees(nodes: list[Array]) -> Trees:
    """The nodes of scikit-learn's predictors, one array for each tree, as arrays of all trees."""
    counts = [len(each) for each in nodes]
    roots = np.concatenate([[0], np.cumsum(counts)[:-1]])
    joined = np.concatenate(nodes)
    shift = np.repeat(roots, counts)
    leaf, itself = joined["is_leaf"].astype(bool), np.arange(len(joined))
    return Trees(
        roots=roots.astype(np.int64),
        feature=np.where(leaf, 0, joined["feature_idx"]).astype(np.int64),
        threshold=np.where(leaf, 0.0, joined["num_threshold"]),
        left=np.where(leaf, itself, joined["left"] + shift).astype(np.int64),
        right=np.where(leaf, itself, joined["right"] + shift).astype(np.int64),
        value=joined["value"].astype(np.float64),
    )
