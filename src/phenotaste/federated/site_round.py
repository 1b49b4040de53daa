"""One round at a site: its columns, sums or figures, as the request's kind says."""

from typing import Any, NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.cohort.align import cohort_digest, patients_having
from phenotaste.core.records import Array, Model, Scored, Sums, Weights
from phenotaste.engines.base import Snapshot
from phenotaste.engines.threads import ThreadEngine, ThreadSession, one_blas_thread
from phenotaste.errors import InputError
from phenotaste.factorization import patient_weights
from phenotaste.federated import privacy
from phenotaste.federated.columns import SiteData, check_cohort, disclosable_names, site_data
from phenotaste.federated.requests import EVALUATE, JOIN, STEP, Request, Task, agreement_digest
from phenotaste.federated.responses import NoiseReport, Sender, pack_response, sums_arrays
from phenotaste.federated.state import SiteState, StartCourses
from phenotaste.taste import PROJECTION_ITERATIONS, PROJECTION_TOL

Content = tuple[dict[str, Any], dict[str, Array]]  # header fields and arrays of a response


class SitePolicy(NamedTuple):
    """The conditions that the site itself sets."""

    site: str
    min_patients: int
    min_cell_size: int
    epsilon: float | None
    delta: float
    exact: bool


class SiteRound:
    """The computation for one request over one site's patients."""

    def __init__(
        self,
        request: Request,
        digest: str,
        state: SiteState | None,
        policy: SitePolicy,
        cohort: Cohort,
        threads: int | None,
    ) -> None:
        self.request, self.digest, self.state, self.policy = request, digest, state, policy
        self.cohort, self.threads = cohort, threads
        self.settings = request.settings
        self.min_cell_size = policy.min_cell_size if state is None else state.min_cell_size
        if self.settings.noise:  # whether a column is suppressed would depend on exact counts
            self.min_cell_size = 1
        self.n_suppressed: int | None = None
        self.n_unknown: int | None = None
        self.cohort_digest = cohort_digest(cohort)
        self.budget = self._privacy_budget()
        self._check_cohort()

    def run(self) -> SiteState:
        """The site's state after the round, which includes the response."""
        starts = {} if self.state is None else dict(self.state.starts)
        if self.request.kind == JOIN:
            fields, arrays = self._columns()
        elif self.request.kind == STEP:
            fields, arrays = self._sums(starts)
        else:
            fields, arrays = self._figures(starts)
        # Courses are about patients: after the evaluation, or with noise the last round, they are deleted.
        last = self.settings.noise and self.request.round == self.settings.max_rounds
        if last or self.request.kind == EVALUATE:
            starts = {}
        # An exact number of visits is not covered by the privacy budget.
        visits = 0 if self.budget else self.cohort.n_visits
        sender = Sender(self.policy.site, len(self.cohort), visits)
        noisy_rounds = 0 if self.state is None else self.state.noisy_rounds
        return SiteState(
            federation=self.request.federation,
            site=self.policy.site,
            settings=self.settings,
            agreement=agreement_digest(self.request),
            cohort=self.cohort_digest,
            min_cell_size=self.min_cell_size,
            epsilon_delta=None if self.budget is None else (self.budget.epsilon, self.budget.delta),
            noisy_rounds=noisy_rounds + (self.budget is not None and self.request.kind == STEP),
            round=self.request.round,
            request=self.digest,
            response=pack_response(self.request, self.digest, sender, fields, arrays),
            starts=starts,
        )

    def _privacy_budget(self) -> privacy.PrivacyBudget | None:
        """The budget set in the first round; with noise, a site has to choose one or exact sums."""
        if self.state is not None:
            budget = self.state.budget
            if budget is not None and self.state.noisy_rounds >= budget.rounds:
                raise InputError(
                    "This site has spent its privacy budget on all agreed rounds: it sends no further responses."
                )
            return budget
        epsilon, exact = self.policy.epsilon, self.policy.exact
        if not self.settings.noise:
            if epsilon is not None:
                raise InputError(
                    "This federated fit was started without noise, and noise of one site alone would spoil the steps: "
                    "ask the coordinator to start one with --noise."
                )
            return None
        if (epsilon is None) != exact:
            raise InputError(
                "This federated fit is one with noise: set this site's privacy budget (--epsilon), or send exact sums "
                "(--exact)."
            )
        if epsilon is None:
            return None
        return privacy.PrivacyBudget(epsilon, self.policy.delta, self.settings.max_rounds)

    def _check_cohort(self) -> None:
        least = max(self.policy.min_patients, self.settings.min_patients)
        if len(self.cohort) < least:
            raise InputError(
                f"The cohort has fewer than {least:,} patients, and sums over few patients may disclose single ones: "
                "use a larger cohort, or lower --min-patients here and at the coordinator, if you are allowed to."
            )
        check_cohort(self.cohort)
        if self.state is not None and self.state.cohort != self.cohort_digest:
            raise InputError(
                "This is not the cohort of the earlier rounds, and the difference of two sums would disclose who was "
                "added or removed: use the same cohort, or start a new federated fit."
            )

    def _columns(self) -> Content:
        if self.settings.noise:  # columns and sizes are agreed in advance: nothing is disclosed here
            return {}, {}
        own = disclosable_names(self.cohort, self.min_cell_size)
        self.n_suppressed = (
            self.cohort.n_features + self.cohort.n_static - len(own.features) - len(own.static)
        )
        columns = self.request.columns or own
        if not columns.features:
            raise InputError(
                f"No feature of the cohort has at least {self.min_cell_size} patients: there is nothing to fit."
            )
        sizes = np.array(site_data(self.cohort, columns, self.min_cell_size).sizes)
        if self.request.columns is not None:
            return {"features": None, "static": None}, {"sizes": sizes}
        return {"features": own.features, "static": own.static}, {"sizes": sizes}

    def _data(self) -> SiteData:
        assert self.request.columns is not None
        data = site_data(self.cohort, self.request.columns, self.min_cell_size)
        self.n_unknown = data.n_unknown
        return data

    def _open(self, data: SiteData, model: Model) -> ThreadSession:
        rank, exact = self.settings.rank, self.settings.exact
        mu = patient_weights(self.settings.mu, self.settings.weights, data.norms, rank)
        weights = Weights(self.request.lam, mu)
        return ThreadEngine().open(data.shard, weights, rank, len(model.V), exact=exact, n_jobs=self.threads)

    def _sums(self, starts: dict[int, StartCourses]) -> Content:
        """One patient step of every start in the request; updates `starts`."""
        data, cold_start = self._data(), False
        arrays: dict[str, Array] = {}
        for task in self.request.tasks:
            with self._open(data, task.model) as session:
                continues = self._load_courses(session, task, starts)
                cold_start |= not continues and task.last_round > 0
                arrays |= sums_arrays(task.start, self._step(session, task, task.beta if continues else 0.0))
                courses = session.snapshot().arrays
            starts[task.start] = StartCourses(self.request.round, courses["U"], courses["U_prev"])
        noise = None
        if self.budget is not None:
            noise = NoiseReport(
                self.budget.epsilon, self.budget.delta, self.budget.noise_multiplier
            )._asdict()
        return {"cold_start": cold_start, "noise": noise}, arrays

    def _step(self, session: ThreadSession, task: Task, beta: float) -> Sums:
        with one_blas_thread():
            if not self.settings.noise:
                return session.step(task.model, beta)
            sums = session.step_clipped(task.model, privacy.clipping(self.settings))
        if self.budget is None:
            return sums
        return privacy.add_noise(sums, self.settings, self.budget.noise_multiplier)

    def _load_courses(self, session: ThreadSession, task: Task, starts: dict[int, StartCourses]) -> bool:
        """Set the session's courses; False where they do not continue from the start's last step."""
        start = starts.get(task.start)
        if start is None:
            session.init_U(task.model)
            return False
        if start.courses.shape != session.U.shape or start.previous.shape != session.U.shape:
            raise InputError(
                "The courses in the site's state do not match its cohort: restore the folder from a backup."
            )
        session.restore(Snapshot({}, {"U": start.courses, "U_prev": start.previous}))
        if start.round != task.last_round:
            return False
        if task.undo:
            session.undo()
        return True

    def _figures(self, starts: dict[int, StartCourses]) -> Content:
        """How well the model fits these patients and, for the report, how many have each feature."""
        (task,), data = self.request.tasks, self._data()
        with self._open(data, task.model) as session, one_blas_thread():
            self._load_courses(session, task, starts)
            if task.start in starts:
                scored = session.score(task.model)
            else:  # the state was lost
                scored = session.project(task.model, PROJECTION_TOL, PROJECTION_ITERATIONS)
        return site_figures(data, task, scored, self.min_cell_size)


def site_figures(data: SiteData, task: Task, scored: Scored, min_cell_size: int) -> Content:
    """Counts and sums for the evaluation."""
    H, K, full = task.model.H, len(data.norms), data.norms > 0
    temporal, static = patients_having(data.shard, len(task.model.V))
    short = (np.diff(data.shard.offsets) < len(H)) & full
    empty = _zero_if_small(int(np.sum(~full)), min_cell_size)
    counts = {
        "short": _zero_if_small(int(short.sum()), min_cell_size),
        "empty": empty,
        "counted": K - empty,
    }
    arrays = {
        "parts": np.array([*scored.loss.sum(axis=0), scored.static_error.sum()]),
        "gaps": np.array([scored.cp_gap[full].sum()]),
        "score_totals": scored.W.sum(axis=0),
        "feature_patients": _all_if_nearly_all(temporal, K, min_cell_size),
        "static_patients": _all_if_nearly_all(static, K, min_cell_size),
    }
    return counts, arrays


def _zero_if_small(count: int, min_cell_size: int) -> int:
    return count if count >= min_cell_size else 0


def _all_if_nearly_all(counts: Array, patients: int, min_cell_size: int) -> Array:
    """Patients with each feature; all of them where the complement is a small cell."""
    return np.where((counts > 0) & (patients - counts < min_cell_size), patients, counts).astype(np.float64)
