"""One message's work over one site's patients: columns, sums or figures, as the coordinator asks."""

from typing import Any, NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.cohort.align import cohort_digest
from phenotaste.core.loop import Mark
from phenotaste.core.records import Array, Sums, Weights
from phenotaste.engines.threads import Threads, one_blas_thread
from phenotaste.errors import InputError
from phenotaste.factorization import patient_weights
from phenotaste.federated import noise
from phenotaste.federated.answers import answer_bytes, sums_arrays
from phenotaste.federated.columns import Data, need_names, own_names, site_data
from phenotaste.federated.orders import CLOSING, INVITATION, PROPOSAL, Order, Task, agreed
from phenotaste.federated.site_figures import figures_of
from phenotaste.federated.site_state import SiteState, Start
from phenotaste.taste import PROJECTION_ITERATIONS, PROJECTION_TOL


class Rules(NamedTuple):
    """What the site itself insists on."""

    site: str
    minimum_patients: int
    fewest: int
    epsilon: float | None
    delta: float
    exact: bool


def promised(state: SiteState) -> noise.Promise:
    assert state.promised is not None
    return noise.promise(*state.promised, state.settings.max_rounds)


class Work:
    """One message's work over one site's patients."""

    def __init__(
        self,
        order: Order,
        digest: str,
        known: SiteState | None,
        rules: Rules,
        cohort: Cohort,
        threads: int | None,
    ) -> None:
        self.order, self.digest, self.known, self.rules = order, digest, known, rules
        self.cohort, self.threads = cohort, threads
        self.settings = order.settings
        self.fewest = 1 if self.settings.noise else rules.fewest if known is None else known.fewest
        self.hidden: int | None = None
        self.unknown: int | None = None
        self.cohort_print = cohort_digest(cohort)
        self.promise = self._promise()
        self._check_cohort()

    def done(self) -> SiteState:
        """The state after the work, with the answer in it."""
        starts = {} if self.known is None else dict(self.known.starts)
        more: dict[str, Any]
        if self.order.kind == INVITATION:
            more, arrays = self._columns()
        elif self.order.kind == PROPOSAL:
            more, arrays = self._sums(starts)
        else:
            more, arrays = self._figures(starts)
        # After the closing look, or with noise the last round, courses are needed no more: they are about patients.
        last = self.settings.noise and self.order.round == self.settings.max_rounds
        if last or self.order.kind == CLOSING:
            starts = {}
        reply = answer_bytes(
            self.order,
            self.digest,
            self.rules.site,
            len(self.cohort),
            0 if self.promise else self.cohort.n_visits,  # an exact count would be outside the promise
            more,
            arrays,
        )
        noisy = 0 if self.known is None else self.known.noisy_rounds
        return SiteState(
            self.order.federation,
            self.rules.site,
            self.settings,
            agreed(self.order),
            self.cohort_print,
            self.fewest,
            None if self.promise is None else (self.promise.epsilon, self.promise.delta),
            noisy + (self.promise is not None and self.order.kind == PROPOSAL),
            self.order.round,
            self.digest,
            reply,
            starts,
        )

    def _promise(self) -> noise.Promise | None:
        """What was promised at first; with noise a site has to say what it wants."""
        if self.known is not None:
            found = None if self.known.promised is None else promised(self.known)
            if found is not None and self.known.noisy_rounds >= found.rounds:
                raise InputError(
                    "This site has answered all the rounds that its promise of noise covers: it answers no more."
                )
            return found
        if not self.settings.noise:
            if self.rules.epsilon is not None:
                raise InputError(
                    "This federated fit was begun without noise, and a site alone would spoil the steps: ask the "
                    "coordinator to begin one with --noise."
                )
            return None
        if (self.rules.epsilon is None) != self.rules.exact:
            raise InputError(
                "This federated fit is one with noise: say how much is promised (--epsilon), or that this site sends "
                "exact sums (--exact)."
            )
        if self.rules.exact:
            return None
        assert self.rules.epsilon is not None
        return noise.promise(self.rules.epsilon, self.rules.delta, self.settings.max_rounds)

    def _check_cohort(self) -> None:
        least = max(self.rules.minimum_patients, self.settings.minimum_patients)
        if len(self.cohort) < least:
            raise InputError(
                f"The cohort has fewer than {least:,} patients, and sums over so few may show single ones: use a "
                "larger cohort, or lower --minimum-patients, here and at the coordinator, if you may."
            )
        need_names(self.cohort)
        if self.known is not None and self.known.cohort != self.cohort_print:
            raise InputError(
                "This is not the cohort that earlier rounds were answered with, and the difference of sums would show "
                "who came or went: use the same one, or begin a new federated fit."
            )

    def _columns(self) -> tuple[dict[str, Any], dict[str, Array]]:
        if self.settings.noise:  # the columns and sizes are agreed beforehand: nothing has to be told
            return {}, {}
        names = self.order.dictionary or own_names(self.cohort, self.fewest)
        self.hidden = self._count_hidden()
        if not names.features:
            raise InputError(
                f"No feature of the cohort is had by {self.fewest} patients: there is nothing to fit."
            )
        sizes = site_data(self.cohort, names, self.fewest).sizes
        told = self.order.dictionary is None
        return (
            {"features": names.features if told else None, "static": names.static if told else None},
            {"sizes": np.array(sizes)},
        )

    def _count_hidden(self) -> int:
        names = own_names(self.cohort, self.fewest)
        return self.cohort.n_features + self.cohort.n_static - len(names.features) - len(names.static)

    def _data(self) -> Data:
        assert self.order.dictionary is not None
        data = site_data(self.cohort, self.order.dictionary, self.fewest)
        self.unknown = data.unknown
        return data

    def _engine(self, data: Data, lam: float) -> Threads:
        rank = self.settings.rank
        mu = patient_weights(self.settings.mu, self.settings.weights, data.norms, rank)
        return Threads(data.shard, Weights(lam, mu), rank, exact=self.settings.exact, n_jobs=self.threads)

    def _sums(self, starts: dict[int, Start]) -> tuple[dict[str, Any], dict[str, Array]]:
        data, fresh = self._data(), False
        arrays: dict[str, Array] = {}
        for task in self.order.tasks:
            engine = self._engine(data, self.order.lam)
            goes_on = self._place(engine, task, starts)
            fresh |= not goes_on and task.last > 0
            sums = self._step(engine, task, task.reach if goes_on else 0.0)
            arrays |= sums_arrays(task.start, sums)
            found = engine.mark().arrays
            starts[task.start] = Start(self.order.round, found["courses"], found["previous"])
        told = None
        if self.promise is not None:
            told = {
                "epsilon": self.promise.epsilon,
                "delta": self.promise.delta,
                "loudness": self.promise.loudness,
            }
        return {"fresh": fresh, "noise": told}, arrays

    def _step(self, engine: Threads, task: Task, reach: float) -> Sums:
        with one_blas_thread():
            if not self.settings.noise:
                return engine.step(task.model, reach)
            sums = noise.clipped_step(engine, task.model, self.settings)
        return sums if self.promise is None else noise.with_noise(sums, self.settings, self.promise.loudness)

    def _place(self, engine: Threads, task: Task, starts: dict[int, Start]) -> bool:
        """Put the courses where the step sets out; False where they do not go on from the round before."""
        known = starts.get(task.start)
        if known is None:
            engine.start(task.model)
            return False
        if known.courses.shape != engine.courses.shape or known.before.shape != engine.courses.shape:
            raise InputError(
                "The courses in the site's state are not those of its cohort: restore the folder from a copy."
            )
        engine.restore(Mark({}, {"courses": known.courses, "previous": known.before}))
        if known.round != task.last:
            return False
        if task.undo:
            engine.undo()
        return True

    def _figures(self, starts: dict[int, Start]) -> tuple[dict[str, Any], dict[str, Array]]:
        """The closing look: how well the model fits these patients, and for the report how many have what."""
        (task,), data = self.order.tasks, self._data()
        engine = self._engine(data, self.order.lam)
        self._place(engine, task, starts)
        with one_blas_thread():
            if task.start in starts:
                scored = engine.score(task.model)
            else:  # the state was lost
                scored = engine.project(task.model, PROJECTION_TOL, PROJECTION_ITERATIONS)
            plain = self._engine(data, 1.0)
            plain.restore(Mark({}, {"courses": engine.courses}))
            static = float(plain.score(task.model, scored.W).loss[:, 1].sum())
        return figures_of(data, task, scored, static, self.fewest)
