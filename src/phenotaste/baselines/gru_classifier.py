"""A GRU over the visits in order (Choi et al. 2016); torch is imported when a model is fitted or used."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from sklearn.utils.validation import check_random_state

from phenotaste.baselines.classifier import (
    Classifier,
    validation_mask,
)
from phenotaste.cohort import Cohort
from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.validation import check_choice, check_integer, check_number

if TYPE_CHECKING:
    from phenotaste.baselines._gru_network import VisitSequences
    from phenotaste.baselines._recurrent import Progress


class GRUClassifier(Classifier):
    """Gated recurrent units on one-hot visits (Choi et al. 2016, "Using recurrent neural network models for early
    detection of heart failure onset"), with the static features on every visit as in TASTE's paper (Q3).

    A visit is the sum of the embeddings of its codes and of the patient's static features: the multi-hot vector times
    a matrix, without forming the vector. The GRU's last hidden state goes into a logistic regression.
    A patient without visits is treated as one visit without codes.

    Parameters
    ----------
    static : whether the static features are used.
    times : give the GRU log(1 + days since the previous visit) as well; the cohort then needs visit times.
    hidden_size, embedding_size, n_layers : the size of the network.
    dropout : dropout probability of the last hidden state.
    l2 : weight of the squared coefficients of the logistic regression.
    learning_rate, batch_size : parameters of Adam.
    max_epochs, patience : stop after `max_epochs`, or when the validation AUC has not risen for `patience` epochs;
        the weights of the best epoch are kept.
    validation : share of the training patients held out for that, stratified by class. If a class is too small to be
        split, no patient is held out, and the last epoch is kept.
    class_weight : None, or "balanced" to weigh the classes equally (probabilities are then not calibrated).
    device : "cpu" or "cuda". On the CPU the same seed gives the same bits.
    callback : called after each epoch with a record (epoch, max_epochs, loss, validation_auc); return True to stop.

    Attributes
    ----------
    network_ : the fitted torch module.
    loss_curve_, validation_curve_ : training loss and validation AUC of each epoch (NaN without validation patients).
    best_epoch_, n_epochs_, outcome_ : outcome_ is "early_stopping", "max_epochs" or "stopped" (by the callback).
    classes_ : the two labels.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=60)
    >>> model = baselines.GRUClassifier(hidden_size=8, max_epochs=2, random_state=0).fit(cohort, truth.labels)
    >>> model.predict_proba(cohort[:3]).shape
    (3, 2)
    """

    _kind = "gru-model"
    _arrays: ClassVar[tuple[str, ...]] = ("loss_curve_", "validation_curve_")
    _figures: ClassVar[tuple[str, ...]] = ("best_epoch_", "n_epochs_", "outcome_")

    def __init__(
        self,
        *,
        static: bool = True,
        times: bool = False,
        hidden_size: int = 100,
        embedding_size: int = 100,
        n_layers: int = 1,
        dropout: float = 0.5,
        l2: float = 1e-3,
        learning_rate: float = 1e-3,
        batch_size: int = 32,
        max_epochs: int = 50,
        patience: int = 10,
        validation: float = 10 / 85,
        class_weight: Literal["balanced"] | None = None,
        device: str = "cpu",
        random_state: Any = None,
        callback: "Callable[[Progress], object] | None" = None,
    ) -> None:
        self.static = static
        self.times = times
        self.hidden_size = hidden_size
        self.embedding_size = embedding_size
        self.n_layers = n_layers
        self.dropout = dropout
        self.l2 = l2
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation = validation
        self.class_weight = class_weight
        self.device = device
        self.random_state = random_state
        self.callback = callback

    def _check_settings(self) -> None:
        for name in ("hidden_size", "embedding_size", "n_layers", "batch_size", "max_epochs", "patience"):
            check_integer(name, getattr(self, name), min=1)
        for name in ("dropout", "validation"):
            check_number(name, getattr(self, name), max=1, closed="left")
        check_number("l2", self.l2)
        check_number("learning_rate", self.learning_rate)
        check_choice("class_weight", self.class_weight, (None, "balanced"))

    def _fit(self, cohort: Cohort, case: Array, validation: tuple[Cohort, Array] | None) -> None:
        from phenotaste.baselines._recurrent import Labelled, TrainingSettings, device_of, seeded, train

        device = device_of(self.device)
        seed = int(check_random_state(self.random_state).randint(2**31))
        rng = np.random.default_rng(seed)
        data = self._data(cohort, device)
        training, held_out = Labelled(data, case, np.arange(len(cohort))), None
        if validation is not None:
            if len(np.unique(validation[1])) < 2:
                raise InputError("The validation cohort holds one class only: its AUC is not defined.")
            other = self._data(validation[0], device)
            held_out = Labelled(other, validation[1], np.arange(len(validation[0])))
        elif (mask := validation_mask(case, self.validation, rng, cohort.persons)) is not None:
            training = Labelled(data, case, np.flatnonzero(~mask))
            held_out = Labelled(data, case, np.flatnonzero(mask))
        settings = TrainingSettings(
            self.learning_rate,
            self.l2,
            self.batch_size,
            self.max_epochs,
            self.patience,
            self.class_weight == "balanced",
        )
        with seeded(seed, device):
            network = self._network().to(device)
            result = train(network, training, held_out, settings, rng, self.callback)
        self.network_ = network.cpu()
        self.loss_curve_, self.validation_curve_ = np.array(result.losses), np.array(result.aucs)
        self.best_epoch_, self.n_epochs_ = result.best_epoch, len(result.losses)
        early = "early_stopping" if self.n_epochs_ < self.max_epochs else "max_epochs"
        self.outcome_ = "stopped" if result.stopped else early

    def _probability(self, cohort: Cohort) -> Array:
        from phenotaste.baselines._recurrent import device_of, probabilities

        device = device_of(self.device)
        case = probabilities(self.network_.to(device), self._data(cohort, device))
        self.network_.cpu()
        return case

    def _network(self) -> Any:
        from phenotaste.baselines._gru_network import VisitGRU

        return VisitGRU(
            self._columns.n_features,
            self._columns.n_static,
            self.times,
            self.embedding_size,
            self.hidden_size,
            self.n_layers,
            self.dropout,
        )

    def _data(self, cohort: Cohort, device: Any) -> "VisitSequences":
        from phenotaste.baselines._gru_network import VisitSequences, log_gaps

        visits, static = self._aligned(cohort)
        gaps = log_gaps(cohort.visit_times, cohort.offsets) if self.times else None
        return VisitSequences(visits, cohort.offsets, static, gaps, device)

    def _extra_arrays(self) -> dict[str, Array]:
        from phenotaste.baselines._recurrent import state_arrays

        return state_arrays(self.network_, "network")

    def _restore(self, arrays: dict[str, Array]) -> None:
        from phenotaste.baselines._recurrent import load_state

        self.network_ = self._network()
        load_state(self.network_, "network", arrays)

    def _check_fitted(self) -> None:
        if self.loss_curve_.shape != (self.n_epochs_,) or len(self.classes_) != 2:
            raise ValueError("shapes")
