"""One round at a site: its columns, sums or figures, as the request's kind says."""

from typing import Any, NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.cohort.align import Aligned, cohort_digest, patients_having
from phenotaste.core.records import Array, Model, Scored, Sums
from phenotaste.engines.base import Snapshot
from phenotaste.engines.threads import ThreadEngine, ThreadSession, one_blas_thread
from phenotaste.errors import InputError
from phenotaste.factorization import influence_of, relative_weights
from phenotaste.federated import privacy, request_rules
from phenotaste.federated.columns import (
    ColumnNames,
    check_cohort,
    disclosable_names,
    site_data,
    static_totals,
)
from phenotaste.federated.requests import EVALUATE, JOIN, STEP, Request, Task, columns_digest
from phenotaste.federated.responses import NoiseReport, Sender, pack_response, sums_arrays
from phenotaste.federated.state import SiteState, StartCourses
from phenotaste.taste import PROJECTION_ITERATIONS, PROJECTION_TOL

MAX_SUM = 1e100
Content = tuple[dict[str, Any], dict[str, Array]]  # header fields and arrays of a response


class SitePolicy(NamedTuple):
    """The conditions that the site itself sets."""

    site: str
    min_patients: int
    min_cell_size: int
    epsilon: float | None
    delta: float
    exact: bool
    rejoin: bool = False


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
        self.n_patients = len(cohort)  # that the response reports
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
        check_size(arrays)
        # Courses are about patients: after the evaluation, or with noise the last round, they are deleted.
        last = self.settings.noise and self.request.round == self.settings.max_rounds
        if last or self.request.kind == EVALUATE:
            starts = {}
        # An exact number of visits is not covered by the privacy budget.
        visits = 0 if self.budget else self.cohort.n_visits
        sender = Sender(self.policy.site, self.n_patients, visits)
        noisy_rounds = 0 if self.state is None else self.state.noisy_rounds
        return SiteState(
            federation=self.request.federation,
            site=self.policy.site,
            settings=self.settings,
            columns=columns_digest(self.request),
            lam=None if self.request.kind == JOIN else self.request.lam,
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
        self._check_patients(len(self.cohort))
        check_cohort(self.cohort)
        if self.state is not None and self.state.cohort != self.cohort_digest:
            raise InputError(
                "This is not the cohort of the earlier rounds, and the difference of two sums would disclose who was "
                "added or removed: use the same cohort, or start a new federated fit."
            )

    def _check_patients(self, patients: int) -> None:
        least = max(self.policy.min_patients, self.settings.min_patients)
        if patients < least:
            raise InputError(
                f"The cohort has fewer than {least:,} patients with a history, and sums over few patients may disclose "
                "single ones: use a larger cohort, or lower --min-patients here and at the coordinator, if you are "
                "allowed to."
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
        arrays = {"static_totals": static_totals(self._read(columns), self.settings.influence_power)}
        if self.request.columns is not None:
            return {"features": None, "static": None}, arrays
        return {"features": own.features, "static": own.static}, arrays

    def _data(self) -> Aligned:
        assert self.request.columns is not None
        data = self._read(self.request.columns)
        self.n_unknown = data.unknown_features
        return data

    def _read(self, columns: ColumnNames) -> Aligned:
        """The patients; those without a history take no part in the fit, so that they are not counted."""
        data = site_data(self.cohort, columns, self.min_cell_size)
        if not self.settings.noise:  # the privacy budget does not cover who has a history
            self.n_patients = int(np.sum(data.sizes > 0))
            self._check_patients(self.n_patients)
            request_rules.check_rank(self.settings.rank, len(columns.features) - data.absent_features)
        return data

    def _open(self, data: Aligned, model: Model) -> ThreadSession:
        settings, influence = self.settings, influence_of(self.settings.influence_power, data)
        weights = relative_weights(
            data, settings.rank, self.request.lam, settings.mu, settings.smooth, influence
        )
        return ThreadEngine().open(data.shard, weights, settings.rank, len(model.V), n_jobs=self.threads)

    def _sums(self, starts: dict[int, StartCourses]) -> Content:
        """One patient step of every start in the request; updates `starts`."""
        data, cold_start = self._data(), False
        self._check_first_step(data)
        arrays: dict[str, Array] = {}
        for task in self.request.tasks:
            self._check_model(task, starts)
            with self._open(data, task.model) as session:
                continues = self._load_courses(session, task, starts)
                cold_start |= not continues and task.last_round > 0
                sums = self._step(session, task, task.beta if continues else 0.0)
                courses = session.snapshot().arrays
            arrays |= sums_arrays(task.start, sums)
            starts[task.start] = StartCourses(
                self.request.round, courses["U"], courses["U_prev"], task.model.V
            )
        noise = None
        if self.budget is not None:
            noise = NoiseReport(
                self.budget.epsilon, self.budget.delta, self.budget.noise_multiplier
            )._asdict()
        return {"cold_start": cold_start, "noise": noise}, arrays

    def _check_first_step(self, data: Aligned) -> None:
        """Check the columns and λ̃ before they are fixed for this fit."""
        first = self.state is None or self.state.lam is None
        if self.policy.rejoin or self.settings.noise or not first:
            return
        totals = static_totals(data, self.settings.influence_power)
        request_rules.check_lam(self.request.lam, self.settings, totals)
        if self.state is not None and self.state.columns is None:
            request_rules.check_columns(self.request, disclosable_names(self.cohort, self.min_cell_size))

    def _check_model(self, task: Task, starts: dict[int, StartCourses]) -> None:
        """Compare the model with the agreed start or the previous request; noise protects under any model."""
        if self.policy.rejoin or self.settings.noise:
            return
        assert self.request.columns is not None
        if task.start in starts:
            request_rules.check_change(task.model.V, starts[task.start].V, self.request.round)
        else:
            request_rules.check_start(task, self.settings, self.request.columns)

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
        self._check_model(task, starts)
        with self._open(data, task.model) as session, one_blas_thread():
            self._load_courses(session, task, starts)
            if task.start in starts:
                scored = session.score(task.model)
            else:  # the state was lost
                scored = session.project(task.model, PROJECTION_TOL, PROJECTION_ITERATIONS)
        return site_figures(data, task, scored, self.min_cell_size)


def check_size(arrays: dict[str, Array]) -> None:
    """Refuse to send what is not finite or enormous: such sums show a single extreme value."""
    if not all(np.all(np.abs(array) <= MAX_SUM) for array in arrays.values()):
        raise InputError(
            "A sum over this site's patients is not finite or above 1e+100: check the cohort for extreme values."
        )


def site_figures(data: Aligned, task: Task, scored: Scored, min_cell_size: int) -> Content:
    """Counts and sums for the evaluation, over patients with a history."""
    full, visits = data.sizes > 0, np.diff(data.shard.offsets)
    rank, K = len(task.model.H), int(full.sum())
    with_course, long = (_none_if_few(full & (visits >= least), min_cell_size) for least in (2, rank))
    shard = data.shard._replace(static=data.shard.static[full])
    temporal, static = patients_having(shard, len(task.model.V))
    counts = {
        "short": int(_none_if_few(full & (visits < rank), min_cell_size).sum()),
        "with_course": int(with_course.sum()),
    }
    visit_error = np.sum(scored.visit_error[full] * data.sizes[full] ** 2)
    arrays = {
        "parts": np.array([*scored.loss.sum(axis=0), visit_error, scored.static_error.sum()]),
        "gaps": np.array(
            [
                scored.cp_gap[with_course].sum(),
                scored.present_gap[long].sum(),
                scored.present_size[long].sum(),
            ]
        ),
        "score_totals": scored.W.sum(axis=0),
        "feature_patients": _all_if_nearly_all(temporal, K, min_cell_size),
        "static_patients": _all_if_nearly_all(static, K, min_cell_size),
    }
    return counts, arrays


def _none_if_few(patients: Array, min_cell_size: int) -> Array:
    """The mask of some patients, empty where they are a small cell."""
    return patients & (patients.sum() >= min_cell_size)


def _all_if_nearly_all(counts: Array, patients: int, min_cell_size: int) -> Array:
    """Patients with each feature; all of them where the complement is a small cell."""
    return np.where((counts > 0) & (patients - counts < min_cell_size), patients, counts).astype(np.float64)
