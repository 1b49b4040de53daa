"""Where the starts of a fit begin: a short fit of a sample of the patients with too many phenotypes, then pruned.

The objective has several local minima, which mostly differ in one phenotype: two that should be one, and one that
should be two. A fit with some phenotypes more has room for both, and removing the ones that cost least leads to the
lowest minimum far more often than a fit with the right number from the beginning.
"""

from contextlib import ExitStack

import numpy as np

from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.model_step import unit_columns
from phenotaste.core.records import Array, Model, Shard, Sums, Weights
from phenotaste.engines.partition import has_history
from phenotaste.engines.threads import ThreadEngine, ThreadSession, one_blas_thread

SAMPLE_PATIENTS = 2000
KINDS = ("nmf_visits", "random")  # of initial definitions, in no order: see `core.init`
SPARE = 3  # phenotypes more than asked for
WIDE_ITERATIONS = 30
TRIALS, TRIAL_ITERATIONS = 5, 4  # phenotypes that are removed on trial, each followed by some iterations
FINALISTS, FINAL_ITERATIONS = 3, 25  # of the last trials


def best_short_fit(
    shard: Shard, weights: Weights, n_features: int, rank: int, rng: np.random.Generator, n_jobs: int | None
) -> Model:
    """The model in which a start begins, found on this machine whatever the fit itself runs on."""
    patients = np.flatnonzero(has_history(shard))
    if len(patients) > SAMPLE_PATIENTS:
        patients = np.sort(rng.choice(patients, SAMPLE_PATIENTS, replace=False))
    kind = KINDS[int(rng.integers(len(KINDS)))]
    with ExitStack() as stack, one_blas_thread():
        sample = Sample(shard, weights, n_features, rank, patients, n_jobs, stack)
        start = init_model(kind, sample.shard, n_features, rank + SPARE, True, rng, sample.weights.scale)
        state = sample.iterate(start, WIDE_ITERATIONS)
        for _ in range(SPARE):
            trials = sample.without_one(state.model)
            state = trials[0]
        finalists = [sample.iterate(trial.model, FINAL_ITERATIONS) for trial in trials[:FINALISTS]]
    return min(finalists, key=lambda state: state.best_loss).model


class Sample:
    """Some patients, with a session for each number of phenotypes; the stack closes them."""

    def __init__(
        self,
        shard: Shard,
        weights: Weights,
        n_features: int,
        rank: int,
        patients: Array,
        n_jobs: int | None,
        stack: ExitStack,
    ) -> None:
        self.shard, self.weights = sample_shard(shard, patients), sample_weights(weights, patients)
        self.n_features, self.rank, self.n_jobs, self.stack = n_features, rank, n_jobs, stack
        self.sessions: dict[int, ThreadSession] = {}

    def iterate(self, model: Model, iterations: int) -> loop.State:
        """Some iterations from a model."""
        session = self.session(model.V.shape[1])
        session.init_U(model)
        return loop.iterate(session, model, iterations)

    def without_one(self, model: Model) -> list[loop.State]:
        """The model without one phenotype after a few iterations, for those that seem to cost least; best first."""
        sums = self.session(model.V.shape[1]).step(model)
        tried = np.argsort(removal_costs(model, sums), kind="stable")[:TRIALS]
        states = [self.iterate(without(model, int(r)), TRIAL_ITERATIONS) for r in tried]
        return sorted(states, key=lambda state: state.best_loss)

    def session(self, rank: int) -> ThreadSession:
        if rank not in self.sessions:
            # The terms on U are spread over the phenotypes.
            share = self.rank / rank
            weights = self.weights._replace(tau=self.weights.tau * share, mu=self.weights.mu * share)
            session = ThreadEngine().open(self.shard, weights, rank, self.n_features, n_jobs=self.n_jobs)
            self.sessions[rank] = self.stack.enter_context(session)
        return self.sessions[rank]


def removal_costs(model: Model, sums: Sums) -> Array:
    """What each phenotype explains that the most similar other one cannot: its size, less what they share."""
    V = unit_columns(model.V)
    similar = V.T @ V
    np.fill_diagonal(similar, 0.0)
    return np.asarray(np.diagonal(sums.UU) * (1.0 - np.minimum(similar.max(axis=0), 1.0) ** 2))


def without(model: Model, phenotype: int) -> Model:
    """The model without one phenotype; HᵀH of the others stays."""
    H = np.linalg.qr(np.delete(model.H, phenotype, axis=1), mode="r")
    return Model(np.asarray(H), np.delete(model.V, phenotype, axis=1), np.delete(model.F, phenotype, axis=1))


def sample_weights(weights: Weights, patients: Array) -> Weights:
    mu, scale, influence = (part[patients] for part in (weights.mu, weights.scale, weights.influence))
    return weights._replace(mu=mu, scale=scale, influence=influence)


def sample_shard(shard: Shard, patients: Array) -> Shard:
    """A copy of the data of some patients."""
    rows, offsets = ranges(shard.offsets, patients)
    entries, indptr = ranges(shard.indptr, rows)
    parts = (shard.data[entries], shard.indices[entries], indptr, offsets, shard.static[patients])
    for part in parts:
        part.flags.writeable = False  # as in every shard: the kernels are compiled for read-only arrays
    return Shard(*parts)


def ranges(edges: Array, chosen: Array) -> tuple[Array, Array]:
    """The positions from edges[i] to edges[i + 1] for every chosen i, and their own edges."""
    lengths = edges[chosen + 1] - edges[chosen]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return np.repeat(edges[chosen] - ends[:-1], lengths) + np.arange(ends[-1]), ends
