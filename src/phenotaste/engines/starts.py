"""Where the starts of a fit begin: a short fit of a sample of the patients with too many phenotypes, then pruned.

The objective has several local minima, which mostly differ in one phenotype: two that should be one, and one that
should be two. A fit with some phenotypes more has room for both, and removing the ones that cost least leads to the
lowest minimum far more often than a fit with the right number from the beginning.
"""

from typing import NamedTuple, Self

import numpy as np

from phenotaste.core import loop
from phenotaste.core.constraints import NO_CONSTRAINTS, Constraints, Given, Within
from phenotaste.core.init import init_model
from phenotaste.core.model_step import unit_columns
from phenotaste.core.records import Array, Model, Shard, Sums, Weights
from phenotaste.engines.partition import has_history
from phenotaste.engines.threads import ThreadEngine, ThreadSession, one_blas_thread

SAMPLE_PATIENTS = 2000
KINDS = ("nmf_visits", "random")  # of initial definitions (see `core.init`); each start draws one
SPARE = 3  # phenotypes more than asked for
WIDE_ITERATIONS = 30
TRIALS, TRIAL_ITERATIONS = 5, 4  # phenotypes that are removed on trial, each followed by some iterations
FINALISTS, FINAL_ITERATIONS = 3, 25  # of the last trials
SAME_COURSES = (
    0.5  # cosine over all visits: measured .1 to .5 between phenotypes, .7 to .8 between parts of one
)


class ShortFit(NamedTuple):
    model: Model
    loss: float
    sizes: Array  # Σ p_k w_kr² of each phenotype, in the last patient step


def best_short_fit(
    shard: Shard,
    weights: Weights,
    n_features: int,
    rank: int,
    rng: np.random.Generator,
    n_jobs: int | None,
    given: Given | None = None,
) -> Model:
    """The model in which a start begins, found on this machine whatever the fit itself runs on.

    Columns that are given come first, and none of them is removed.
    """
    patients = sampled_patients(shard, rng)
    kind = KINDS[int(rng.integers(len(KINDS)))]
    with Sample(shard, weights, n_features, rank, patients, n_jobs, given) as sample, one_blas_thread():
        start = init_model(
            kind, sample.shard, n_features, rank + SPARE, True, rng, sample.weights.scale, given
        )
        best = sample.fit(start, WIDE_ITERATIONS)
        for _ in range(SPARE):
            trials = sample.without_one(best)
            best = trials[0]
        finalists = [sample.fit(trial.model, FINAL_ITERATIONS) for trial in trials[:FINALISTS]]
    return min(finalists, key=lambda fit: fit.loss).model


def guided(
    shard: Shard, weights: Weights, n_features: int, rank: int, rows: list[Array], n_jobs: int | None
) -> Array:
    """For each code set, a mask of features, the column of V in which a phenotype of these codes begins.

    A short fit in which these columns lie on their codes alone, and have no static definition, finds who has them. The
    columns that would then be best without this constraint have what else goes with the codes, beyond what the other
    phenotypes explain. A phenotype with nearly the same courses is none of the others: it is the rest of a frequent
    one. The draw does not depend on the fit.
    """
    rng = np.random.default_rng(0)
    patients = sampled_patients(shard, rng)
    columns = tuple((g, Within(mask)) for g, mask in enumerate(rows))
    P = shard.static.shape[1]
    nothing = tuple((g, Within(np.zeros(P, bool))) for g in range(len(rows)))
    V = unit_columns(np.column_stack(rows).astype(np.float64))
    given = Given(Model(np.eye(len(rows)), V, np.zeros((P, len(rows)))), Constraints((), columns, nothing))
    with Sample(shard, weights, n_features, rank, patients, n_jobs, given) as sample, one_blas_thread():
        scale = sample.weights.scale
        start = init_model("nmf_visits", sample.shard, n_features, rank, True, rng, scale, given)
        fit = sample.fit(start, WIDE_ITERATIONS)
        sums = sample.sums(fit.model)
    sizes = np.sqrt(np.diagonal(sums.UU))
    for g in range(len(rows)):
        same = sums.UU[:, g] > SAME_COURSES * sizes * sizes[g]
        others = [r for r in range(rank) if r != g and (r < len(rows) or not same[r])]
        rest = sums.XU[:, g] - fit.model.V[:, others] @ sums.UU[others, g]
        V[:, g] = np.maximum(rest, 0.0) if (rest > 0).any() else V[:, g]
    return unit_columns(V)


def sampled_patients(shard: Shard, rng: np.random.Generator) -> Array:
    patients = np.flatnonzero(has_history(shard))
    if len(patients) > SAMPLE_PATIENTS:
        patients = np.sort(rng.choice(patients, SAMPLE_PATIENTS, replace=False))
    return patients


class Sample:
    """Some patients, with a session for short fits of one rank at a time."""

    def __init__(
        self,
        shard: Shard,
        weights: Weights,
        n_features: int,
        rank: int,
        patients: Array,
        n_jobs: int | None,
        given: Given | None = None,
    ) -> None:
        self.n_given = 0 if given is None else given.rank
        self.constraints: Constraints = NO_CONSTRAINTS if given is None else given.constraints
        self.shard, self.weights = sample_shard(shard, patients), sample_weights(weights, patients)
        self.n_features, self.rank, self.n_jobs = n_features, rank, n_jobs
        self.session: ThreadSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def fit(self, model: Model, iterations: int) -> ShortFit:
        """Some iterations from a model."""
        session = self._session(model.V.shape[1])
        session.init_U(model)
        state, sums = loop.iterate(session, model, iterations, self.constraints)
        return ShortFit(state.model, state.best_loss, np.diagonal(sums.UU).copy())

    def sums(self, model: Model) -> Sums:
        """The sums of one more patient step from where the last fit ended."""
        return self._session(model.V.shape[1]).step(model)

    def without_one(self, fit: ShortFit) -> list[ShortFit]:
        """The model without one phenotype after a few iterations, for those that seem to cost least; best first."""
        costs = removal_costs(fit.model, fit.sizes)[self.n_given :]
        tried = self.n_given + np.argsort(costs, kind="stable")[:TRIALS]
        fits = [self.fit(without(fit.model, int(r)), TRIAL_ITERATIONS) for r in tried]
        return sorted(fits, key=lambda fit: fit.loss)

    def _session(self, rank: int) -> ThreadSession:
        if self.session is None or self.session.rank != rank:
            self.close()
            # The terms on U are spread over the phenotypes.
            share = self.rank / rank
            weights = self.weights._replace(tau=self.weights.tau * share, mu=self.weights.mu * share)
            self.session = ThreadEngine().open(self.shard, weights, rank, self.n_features, n_jobs=self.n_jobs)
        return self.session


def removal_costs(model: Model, sizes: Array) -> Array:
    """What each phenotype explains that the most similar other one cannot: its size, less what they share."""
    V = unit_columns(model.V)
    similar = V.T @ V
    np.fill_diagonal(similar, 0.0)
    return np.asarray(sizes * (1.0 - np.minimum(similar.max(axis=0), 1.0) ** 2))


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
