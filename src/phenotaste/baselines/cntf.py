"""CNTF: collective non-negative factorisation regularised by a recurrent network (Yin et al. 2019)."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted, check_random_state

from phenotaste import model_file
from phenotaste.baselines import _cntf_loop
from phenotaste.baselines.classifier import (
    read_labels,
    validation_cases,
    validation_mask,
)
from phenotaste.baselines.lasso import Lasso, checked_grid, fit_lasso
from phenotaste.cohort import Cohort, check_cohort
from phenotaste.cohort.align import Aligned, align, columns_of_fitted
from phenotaste.core import loop, poisson
from phenotaste.core.init import init_model
from phenotaste.core.records import Array, Model, Scored, Weights
from phenotaste.errors import InputError
from phenotaste.factorization import Factorization, Projection
from phenotaste.metrics import is_fitted_on
from phenotaste.storage import tensors
from phenotaste.validation import check_choice, check_number

PROJECTION_TOL = 1e-8
PROJECTION_ITERATIONS = 10_000
UNIFORM_SHARE = 0.1  # of a uniform distribution in each starting definition: zeros would stay zero


class CNTF(ClassifierMixin, Factorization):
    """Collective non-negative tensor factorisation with an LSTM over the courses (Yin et al. 2019, "Learning phenotypes
    and dynamic patient representations via RNN regularized collective non-negative tensor factorization", AAAI).

    Each visit is a sum of phenotypes, x_ij ~ Poisson(Σ_r s_ir V_jr), with definitions V shared by all patients, and an
    LSTM predicts every visit from the previous ones; the objective is

        Σ x log(x/m) − x + m  +  β/σ Σ ‖s_i − expected(s_1 … s_{i−1})‖²,      m = S Vᵀ, σ the mean visit total.

    The likelihood is Poisson, as in the authors' code, because entries are counts of events. The fitted factors are
    w_k = Σ_i s_i, the number of events of each phenotype (the columns of V sum to one), and U_k = S_k diag(w_k)⁻¹, so
    that X_k ≈ U_k diag(w_k) Vᵀ. Static features are not used: the method does not model them (nor does it in TASTE's
    paper).

    With labels it is a classifier too, as in TASTE's paper (Q3): an LSTM on the courses, or a lasso on the scores.
    The predictor is trained on projected training patients, as new patients are projected too.

    Parameters
    ----------
    rank : number of phenotypes.
    beta : weight of the regulariser; at 1 it weighs about as much as the likelihood. 0 is plain Poisson factorisation.
    predictor : "lstm" on the courses, "lasso" on the scores W, or None to ignore labels.
    hidden_size, n_layers : size of both LSTMs.
    dropout : dropout probability of the predictor's last hidden state.
    learning_rate, batch_size : parameters of Adam for both LSTMs; batches are of patients.
    pretrain : iterations in which the network is trained but does not regularise yet (at most half of `max_iter`).
    init, n_init, max_iter, tol : as in TASTE; an iteration is one pass over all patients.
    C, class_weight, validation, max_epochs, patience : of the predictor, as in RawLogistic and GRUClassifier.
    device : "cpu" or "cuda", where the networks run. On the CPU the same seed gives the same bits.
    callback : called after each iteration of the factorisation, as in TASTE.

    Attributes
    ----------
    V_, W_, U_, offsets_ and the others of TASTE. F_ is None, H_ is the symmetric root of the mean U_kᵀU_k and only
    serves to compute cpi_, which this method does not optimise. loss_curve_ may rise when the network changes.
    count_scale_ : σ.
    network_, predictor_ : the fitted networks, or None.
    classes_, validation_auc_ : with labels only.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=60)
    >>> model = baselines.CNTF(rank=3, max_iter=5, max_epochs=2, random_state=0).fit(cohort, truth.labels)
    >>> model.W_.shape, model.predict_proba(cohort[:2]).shape
    ((60, 3), (2, 2))
    """

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {"init": ("nmf", "random")}
    _counts: ClassVar[tuple[str, ...]] = (
        "rank",
        "n_init",
        "max_iter",
        "hidden_size",
        "n_layers",
        "batch_size",
        "max_epochs",
        "patience",
    )
    _amounts: ClassVar[tuple[str, ...]] = ("tol", "beta", "learning_rate")
    _more_figures: ClassVar[tuple[str, ...]] = ("count_scale_",)

    network_: Any
    predictor_: Any

    def __init__(
        self,
        rank: int = 5,
        *,
        beta: float = 1.0,
        predictor: Literal["lstm", "lasso"] | None = "lstm",
        hidden_size: int = 64,
        n_layers: int = 1,
        dropout: float = 0.5,
        learning_rate: float = 3e-3,
        batch_size: int = 64,
        pretrain: int = 10,
        init: Literal["nmf", "random"] = "nmf",
        n_init: int = 1,
        max_iter: int = 100,
        tol: float = 1e-5,
        C: Any = None,
        class_weight: Literal["balanced"] | None = None,
        validation: float = 10 / 85,
        max_epochs: int = 50,
        patience: int = 10,
        device: str = "cpu",
        random_state: Any = None,
        callback: Callable[[loop.Progress], object] | None = None,
        verbose: int = 0,
    ) -> None:
        self.rank = rank
        self.beta = beta
        self.predictor = predictor
        self.hidden_size = hidden_size
        self.n_layers = n_layers
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.pretrain = pretrain
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.C = C
        self.class_weight = class_weight
        self.validation = validation
        self.max_epochs = max_epochs
        self.patience = patience
        self.device = device
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    def fit(self, cohort: Cohort, y: Any = None, *, validation: Cohort | None = None) -> Self:
        """Fit the phenotypes to a cohort and, with labels (y, or the cohort's own), the predictor.

        `validation` is a labelled cohort to stop the LSTM or choose C by; by default a part of `cohort` is held out.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=100)
        >>> settings = {"rank": 3, "beta": 0, "predictor": "lasso", "C": 1.0, "max_iter": 5}  # without networks
        >>> model = baselines.CNTF(**settings, random_state=0).fit(cohort)
        >>> model.classes_.tolist(), bool((model.loss_curve_[1:] < model.loss_curve_[:-1]).all())
        ([0, 1], True)
        """
        aligned = self._read(cohort)
        check_counts(aligned)
        labels = held_out = None
        if self.predictor is not None and not (y is None and cohort.labels is None):
            labels = read_labels(cohort, y)
            if validation is not None:
                held_out = validation, validation_cases(validation, labels.classes)
        self._factorise(cohort, aligned)
        self.predictor_, self.validation_auc_ = None, float("nan")
        self.__dict__.pop("classes_", None)
        if labels is not None:
            self.classes_ = labels.classes
            self._fit_predictor(cohort, labels.case, held_out)
        return self

    def project(self, cohort: Cohort) -> Projection:
        """The maximum-likelihood courses under the fitted definitions, visit by visit.

        As in the authors' code, the network that regularised the fit is not used, so the result of a patient does not
        depend on the other patients, bit for bit.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=100)
        >>> settings = {"rank": 3, "beta": 0, "predictor": "lasso", "C": 1.0, "max_iter": 5}
        >>> model = baselines.CNTF(**settings, random_state=0).fit(cohort)
        >>> projection = model.project(cohort[:2])
        >>> projection.W.sum(axis=1).round(3).tolist()  # scores count events: their sum is the patient's total
        [62.0, 78.0]
        """
        aligned, counts, S = self._project_counts(cohort)
        loss = self._losses(counts, S).sum(axis=1)
        W, U = scores_and_courses(counts.scale * S, cohort.offsets)
        return Projection(
            W,
            U,
            cohort.offsets,
            float(loss.sum()),
            loss,
            np.ones(len(cohort)),
            Weights.absolute(0.0, np.zeros(len(cohort))),
            aligned.unknown_features,
            aligned.absent_features,
        )

    def own_objective(self, cohort: Cohort) -> float:
        """The total objective, of the fitted courses if this is the training cohort, else of projected ones.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=100)
        >>> settings = {"rank": 3, "beta": 0, "predictor": "lasso", "C": 1.0, "max_iter": 5}
        >>> model = baselines.CNTF(**settings, random_state=0).fit(cohort)
        >>> round(model.own_objective(cohort) / float(model.loss_curve_[-1]), 8)
        1.0
        """
        if not is_fitted_on(self, cohort):
            return self.project(cohort).loss
        counts = _cntf_loop.scaled_counts(align(cohort, columns_of_fitted(self)).shard, self.count_scale_)
        patient = np.repeat(np.arange(len(cohort)), np.diff(cohort.offsets))
        return float(self._losses(counts, self.U_ * self.W_[patient] / self.count_scale_).sum())

    def predict_proba(self, cohort: Cohort) -> Array:
        """The probability of each class for each patient, K × 2; the columns are `classes_`.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=100)
        >>> settings = {"rank": 3, "beta": 0, "predictor": "lasso", "C": 1.0, "max_iter": 5}
        >>> model = baselines.CNTF(**settings, random_state=0).fit(cohort)
        >>> model.predict_proba(cohort[:3]).sum(axis=1).round(6).tolist()
        [1.0, 1.0, 1.0]
        """
        check_is_fitted(self, "V_")
        if self.predictor_ is None:
            raise InputError("This CNTF was fitted without labels and cannot predict: fit it with y.")
        _, counts, S = self._project_counts(cohort)
        if isinstance(self.predictor_, Lasso):
            case = self.predictor_.probability(scores_and_courses(counts.scale * S, cohort.offsets)[0])
        else:
            from phenotaste.baselines._cntf_networks import CourseSequences
            from phenotaste.baselines._recurrent import device_of, probabilities

            device = device_of(self.device)
            case = probabilities(self.predictor_.to(device), CourseSequences(S, cohort.offsets, device))
            self.predictor_.cpu()
        return np.column_stack([1.0 - case, case])

    def predict(self, cohort: Cohort) -> Array:
        """The more probable class of each patient.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=100)
        >>> settings = {"rank": 3, "beta": 0, "predictor": "lasso", "C": 1.0, "max_iter": 5}
        >>> model = baselines.CNTF(**settings, random_state=0).fit(cohort)
        >>> model.predict(cohort[:3]).tolist()
        [0, 0, 0]
        """
        return self.classes_[(self.predict_proba(cohort)[:, 1] > 0.5).astype(int)]

    def save(
        self, path: str | os.PathLike[str], include_patients: bool = False, *, shareable: bool = False
    ) -> None:
        """Write the model as a folder; with `include_patients`, also the patients' scores and courses.

        It names every feature, even of one patient: keep it where the data is. It cannot be made `shareable`.

        Examples
        --------
        >>> import os
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=100)
        >>> settings = {"rank": 3, "beta": 0, "predictor": "lasso", "C": 1.0, "max_iter": 5}
        >>> model = baselines.CNTF(**settings, random_state=0).fit(cohort)
        >>> model.save("model")
        >>> sorted(os.listdir("model"))
        ['manifest.json', 'model.safetensors', 'networks.safetensors']
        """
        check_is_fitted(self, "V_")
        if shareable:
            raise InputError(
                "A model of CNTF cannot be made shareable: its networks are fitted to every feature."
            )
        model_file.save(
            self, path, include_patients, self._more_figures, {"networks": self._network_arrays()}
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; its scores and predictions are bit-identical.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=100)
        >>> settings = {"rank": 3, "beta": 0, "predictor": "lasso", "C": 1.0, "max_iter": 5}
        >>> model = baselines.CNTF(**settings, random_state=0).fit(cohort)
        >>> model.save("model")
        >>> again = baselines.CNTF.load("model")
        >>> bool((again.predict_proba(cohort) == model.predict_proba(cohort)).all())
        True
        """
        model = super().load(path)
        model.device = "cpu"  # the saved device may not exist here
        try:
            model._restore(tensors.read(path, model_file.KIND, mmap=False)[0]["networks"])
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{path} is not a complete CNTF model: save it again from where it was fitted."
            ) from error
        return model

    def _check_settings(self) -> None:
        super()._check_settings()
        check_choice("predictor", self.predictor, ("lstm", "lasso", None))
        check_choice("class_weight", self.class_weight, (None, "balanced"))
        check_number("dropout", self.dropout, max=1, closed="left")
        check_number("validation", self.validation, max=1, closed="left")
        check_number("pretrain", self.pretrain)
        checked_grid(self.C)

    def _factorise(self, cohort: Cohort, aligned: Aligned) -> None:
        counts = _cntf_loop.scaled_counts(aligned.shard)
        attempts: list[tuple[loop.Fit, Any]] = []

        def attempt(start: int, rng: np.random.Generator) -> loop.Fit:
            attempts.append(self._attempt(start, rng, counts, aligned, cohort.shape[1]))
            return attempts[-1][0]

        best = self._best_start(attempt)
        self.network_ = next(network for fit, network in attempts if fit is best)
        self.count_scale_ = counts.scale
        self._set_fitted(best, cohort, aligned, Weights.absolute(0.0, np.zeros(len(cohort))))

    def _attempt(
        self, start: int, rng: np.random.Generator, counts: _cntf_loop.Counts, aligned: Aligned, J: int
    ) -> tuple[loop.Fit, Any]:
        """The fit from one start, and the network that regularised it."""
        kind = "random" if self.init == "nmf" and start % 2 else self.init
        V = init_model(kind, aligned.shard, J, self.rank, True, rng).V
        V = (1 - UNIFORM_SHARE) * V / V.sum(axis=0) + UNIFORM_SHARE / J
        pretrain = int(min(self.pretrain, self.max_iter // 2))
        settings = _cntf_loop.FitSettings(self.beta, self.batch_size, pretrain, self.max_iter, self.tol)
        with self._regulariser(rng) as regulariser:
            result = _cntf_loop.fit(counts, V, regulariser, settings, rng, self._progress_callback(start))
        W, U = scores_and_courses(result.S, counts.offsets)
        model = Model(cross_product_root(U, aligned.norms), result.V, np.zeros((0, self.rank)))
        network = None if regulariser is None else regulariser.network.cpu()
        return loop.Fit(model, Scored.allocate(U, W), result.losses, result.outcome), network

    @contextmanager
    def _regulariser(self, rng: np.random.Generator) -> Iterator[Any]:
        if self.beta == 0:  # torch is not needed then
            yield None
            return
        from phenotaste.baselines._cntf_networks import NextVisitLSTM, Regulariser
        from phenotaste.baselines._recurrent import device_of, seeded

        device = device_of(self.device)
        with seeded(int(rng.integers(2**31)), device):
            network = NextVisitLSTM(self.rank, self.hidden_size, self.n_layers)
            yield Regulariser(network, self.learning_rate, device)

    def _fit_predictor(self, cohort: Cohort, case: Array, held_out: tuple[Cohort, Array] | None) -> None:
        """Fit the predictor to the projected training patients."""
        seed = int(check_random_state(self.random_state).randint(2**31))
        rng = np.random.default_rng(seed)
        mask = None if held_out is not None else validation_mask(case, self.validation, rng, cohort.persons)
        if held_out is not None and len(np.unique(held_out[1])) < 2:
            raise InputError("The validation cohort holds one class only: its AUC is not defined.")
        if self.predictor == "lasso":
            grid = (1.0,) if self.C is None and mask is None and held_out is None else checked_grid(self.C)
            chosen_by = mask if held_out is None else (self.project(held_out[0]).W, held_out[1])
            W = self.project(cohort).W
            self.predictor_ = fit_lasso(W, case, grid, chosen_by, class_weight=self.class_weight, seed=seed)
            self.validation_auc_ = self.predictor_.validation_auc
        else:
            self._fit_lstm(cohort, case, held_out, mask, seed, rng)

    def _fit_lstm(
        self,
        cohort: Cohort,
        case: Array,
        held_out: tuple[Cohort, Array] | None,
        mask: Array | None,
        seed: int,
        rng: np.random.Generator,
    ) -> None:
        from phenotaste.baselines._cntf_networks import CourseSequences
        from phenotaste.baselines._recurrent import Labelled, TrainingSettings, device_of, seeded, train

        device = device_of(self.device)
        data = CourseSequences(self._project_counts(cohort)[2], cohort.offsets, device)
        training, validation = Labelled(data, case, np.arange(len(cohort))), None
        if held_out is not None:
            others = CourseSequences(self._project_counts(held_out[0])[2], held_out[0].offsets, device)
            validation = Labelled(others, held_out[1], np.arange(len(held_out[0])))
        elif mask is not None:
            training = Labelled(data, case, np.flatnonzero(~mask))
            validation = Labelled(data, case, np.flatnonzero(mask))
        settings = TrainingSettings(
            self.learning_rate,
            0.0,
            self.batch_size,
            self.max_epochs,
            self.patience,
            self.class_weight == "balanced",
        )
        with seeded(seed, device):
            network = self._new_predictor().to(device)
            result = train(network, training, validation, settings, rng)
        self.predictor_ = network.cpu()
        self.validation_auc_ = result.aucs[result.best_epoch - 1]

    def _new_predictor(self) -> Any:
        from phenotaste.baselines._cntf_networks import CourseLSTM

        return CourseLSTM(self.rank, self.hidden_size, self.n_layers, self.dropout)

    def _project_counts(self, cohort: Cohort) -> tuple[Aligned, _cntf_loop.Counts, Array]:
        """The cohort aligned to the fitted columns, its scaled counts, and the maximum-likelihood S in their units."""
        check_is_fitted(self, "V_")
        check_cohort(cohort, type(self).__name__)
        aligned = align(cohort, columns_of_fitted(self))
        check_counts(aligned)
        counts = _cntf_loop.scaled_counts(aligned.shard, self.count_scale_)
        S = np.zeros((int(counts.offsets[-1]), self.V_.shape[1]))
        csr = poisson.CsrCounts(*counts[:3])
        poisson.project_rows(csr, self.V_, S, PROJECTION_TOL, PROJECTION_ITERATIONS)
        return aligned, counts, S

    def _losses(self, counts: _cntf_loop.Counts, S: Array) -> Array:
        errors: Any = None
        if self.network_ is not None:
            from phenotaste.baselines._cntf_networks import prediction_errors

            errors = partial(prediction_errors, self.network_)
        return _cntf_loop.patient_losses(counts, self.V_, S, errors, self.beta)

    def _network_arrays(self) -> dict[str, Array]:
        """The arrays saved in addition to the factors: both networks, or the lasso, and the classes."""
        arrays: dict[str, Array] = {"validation_auc": np.array([self.validation_auc_])}
        if self.network_ is not None:
            from phenotaste.baselines._recurrent import state_arrays

            arrays |= state_arrays(self.network_, "network")
        if self.predictor_ is not None:
            arrays["classes"] = self.classes_
        if isinstance(self.predictor_, Lasso):
            arrays["lasso.coef"] = self.predictor_.coef
            arrays["lasso.rest"] = np.array(self.predictor_[1:])
        elif self.predictor_ is not None:
            from phenotaste.baselines._recurrent import state_arrays

            arrays |= state_arrays(self.predictor_, "predictor")
        return arrays

    def _restore(self, arrays: dict[str, Array]) -> None:
        self.validation_auc_ = float(arrays["validation_auc"][0])
        self.network_ = self.predictor_ = None
        if self.beta > 0:
            from phenotaste.baselines._cntf_networks import NextVisitLSTM
            from phenotaste.baselines._recurrent import load_state

            self.network_ = NextVisitLSTM(self.rank, self.hidden_size, self.n_layers)
            load_state(self.network_, "network", arrays)
        if "classes" not in arrays:
            return
        self.classes_ = arrays["classes"]
        if self.classes_.shape != (2,):
            raise ValueError("classes")
        if "lasso.coef" in arrays:
            intercept, C, auc = map(float, arrays["lasso.rest"])
            self.predictor_ = Lasso(arrays["lasso.coef"], intercept, C, auc)
            if self.predictor_.coef.shape != (self.rank,) or not np.isfinite(self.predictor_.coef).all():
                raise ValueError("shapes")
        else:
            from phenotaste.baselines._recurrent import load_state

            self.predictor_ = self._new_predictor()
            load_state(self.predictor_, "predictor", arrays)


def check_counts(aligned: Aligned) -> None:
    if aligned.shard.data.size and aligned.shard.data.min() < 0:
        raise InputError("CNTF models counts, but the visits hold negative values: remove or shift them.")


def scores_and_courses(S: Array, offsets: Array) -> tuple[Array, Array]:
    """w_k = Σ_i s_i and U_k = S_k diag(w_k)⁻¹; the course is zero where the score is."""
    patient = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    W = np.column_stack([np.bincount(patient, column, len(offsets) - 1) for column in S.T])
    total = W[patient]
    return W, np.divide(S, total, out=np.zeros_like(S), where=total > 0)


def cross_product_root(U: Array, norms: Array) -> Array:
    """H = Hᵀ ≥ 0 with HᵀH the mean of U_kᵀU_k over patients with a history."""
    values, vectors = np.linalg.eigh(U.T @ U / max(np.count_nonzero(norms), 1))
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
