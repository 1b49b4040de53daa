"""`evaluate`: repeated splits, every method on each of them, what was found as one record."""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from phenotaste.baselines.classifier import read_labels
from phenotaste.baselines.lasso import checked_grid as checked_strengths
from phenotaste.cohort import Cohort
from phenotaste.core.records import Array
from phenotaste.disclosure import Gate
from phenotaste.errors import InputError
from phenotaste.prediction import evaluation_tables, methods
from phenotaste.prediction.coefficients import drivers
from phenotaste.prediction.evaluation import Evaluation
from phenotaste.prediction.methods import TASTE_NAME, Candidate, Grids
from phenotaste.prediction.nested_split import run_cell
from phenotaste.prediction.results import Folder, Task
from phenotaste.prediction.splits import check_sizes, draw_split
from phenotaste.selection.execution import private_folder
from phenotaste.selection.files import locked
from phenotaste.selection.grid import checked_count, checked_ranks, checked_seed, checked_weights
from phenotaste.selection.search import source_of

if TYPE_CHECKING:
    import pandas as pd

DRIVER_RESAMPLES = 200  # of the regression on all patients; each is a fit


class Progress(NamedTuple):
    """What a callback is told after each fit.

    Examples
    --------
    >>> from phenotaste import prediction, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=300)
    >>> said = []
    >>> settings = {"ranks": 3, "splits": 1, "C": 1.0, "resamples": 20, "max_iter": 20}
    >>> found = prediction.evaluate(cohort, baselines="raw", callback=said.append, **settings)
    >>> [(progress.done, progress.total, progress.method) for progress in said]
    [(1, 2, 'taste'), (2, 2, 'raw')]
    """

    done: int
    total: int
    method: str
    split: int
    share: float  # of the whole work, by cost
    seconds_left: float


def evaluate(
    c: Cohort | str | os.PathLike[str],
    y: Any = None,
    *,
    ranks: Iterable[int] | int = (5, 10, 20),
    lams: Iterable[float] | float = (0.1,),
    mus: Iterable[float] | float = (1.0,),
    splits: int = 5,
    baselines: Iterable[str] | str | None = None,
    C: Any = None,
    weights: Literal["relative", "absolute"] = "relative",
    n_init: int = 1,
    max_iter: int = 200,
    tol: float = 1e-4,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    resamples: int = 1000,
    random_state: int = 0,
    n_jobs: int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    patients: bool = False,
    drop_unlabelled: bool = False,
    trusted: bool = False,
    callback: Callable[[Progress], object] | None = None,
) -> Evaluation:
    """How well phenotype scores predict a label, beside other methods, without a look at the test patients.

    Patients are split 75/10/15, `splits` times. On each split TASTE is fitted to the first part alone, all parts are
    scored with its definitions, and a lasso logistic regression is fitted to the first part's scores. Number of
    phenotypes, weights and strength of the lasso are those with the highest AUC on the second part; then, and only
    then, the third is looked at.

    Parameters
    ----------
    c : a cohort, or the folder of a saved one.
    y : two classes, one label for each patient; the cohort's own by default. The larger is the case.
    ranks, lams, mus : the grid that TASTE is tuned over; other factorisations are tuned over the ranks.
    splits : how often the patients are split.
    baselines : of "copa", "copa-static", "cntf", "gru", "raw", "raw-static"; all that need no torch by default.
    C : strengths of the lasso to choose from, the paper's by default.
    weights, n_init, max_iter, tol : as in `TASTE`, for all factorisations.
    settings : more settings of a method, as {"gru": {"max_epochs": 20}}.
    resamples : of the patients, for intervals.
    random_state : a whole number; the same gives the same result on any number of threads.
    n_jobs : threads, all cores by default.
    out : folder for tables, figures, a page and the model; every finished split is in it at once.
    resume : go on with what `out` holds; splits and baselines may be added.
    patients : keep the risk of every test patient, in the record and, for their owner's eyes alone, in `out`.
    drop_unlabelled : leave out patients whose label is missing, which are refused otherwise.
    trusted : also show what stands for fewer than 11 patients.
    callback : called after each fit with a record (done, total, method, split, share, seconds_left).

    Examples
    --------
    >>> from phenotaste import prediction, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=400)
    >>> found = prediction.evaluate(cohort, ranks=5, splits=2, baselines="raw", resamples=50)
    >>> found.summary["method"].tolist(), 0.5 < found.auc < 1
    (['taste', 'raw'], True)
    """
    source = source_of(c)
    check_place(out, source.path)
    cohort, case = labelled_patients(source.cohort, y, drop_unlabelled)
    check_sizes(case)
    grids = Grids(
        checked_ranks(ranks), checked_weights(lams, "lams"), checked_weights(mus, "mus"), checked_strengths(C),
        weights, n_init, max_iter, tol, {name: dict(own) for name, own in (settings or {}).items()},
    )  # fmt: skip
    names = methods.checked_methods(baselines, cohort.static is not None)
    seed, count = checked_seed(random_state), checked_count(splits, "splits", 1)
    checked_count(resamples, "resamples")
    check_fits(names, grids, cohort)
    with ExitStack() as stack:
        folder = Folder(
            stack.enter_context(private_folder()) if out is None else Path(out), private=bool(patients)
        )
        if out is not None:
            stack.enter_context(locked(folder.path, "prediction"))
        kept = grids.as_dict() | {"resamples": resamples, "random_state": seed}
        kept |= {"patients": bool(patients), "trusted": bool(trusted)}
        folder.begin(cohort, case, kept, resume)
        run = Run(cohort, case, names, count, grids, folder, seed, resamples, n_jobs, bool(trusted), callback)
        found = run.all()
        if out is not None:
            found.save(folder)
        return found


class Run:
    """One run of `evaluate` on its way."""

    def __init__(
        self,
        cohort: Cohort,
        case: Array,
        names: list[str],
        splits: int,
        grids: Grids,
        folder: Folder,
        seed: int,
        resamples: int,
        threads: int | None,
        trusted: bool,
        callback: Callable[[Progress], object] | None,
    ) -> None:
        self.cohort, self.case, self.grids, self.folder = cohort, case, grids, folder
        self.seed, self.resamples, self.threads = seed, resamples, threads
        self.callback, self.gate = callback, Gate(trusted=trusted)
        self.tasks = [Task(method, number) for number in range(splits) for method in names]
        self.splits = [draw_split(case, number, seed) for number in range(splits)]

    def all(self) -> Evaluation:
        try:
            self.work_off()
        except KeyboardInterrupt:
            if finished := self.finished():
                self.folder.put("splits.csv", evaluation_tables.splits_table(finished).to_csv(index=False))
            raise
        return self.record()

    def work_off(self) -> None:
        todo = self.folder.unfinished(self.tasks)
        report = Reporter(todo, self.tasks, self.grids, self.callback)
        for task in todo:
            found = run_cell(
                self.cohort,
                self.case,
                self.splits[task.split],
                task.method,
                self.grids,
                number=task.split,
                random_state=self.seed,
                resamples=self.resamples,
                threads=self.threads,
                gate=Gate(trusted=self.gate.trusted),
                keep_risk=self.folder.private,
                told=partial(report, task),
            )
            self.folder.keep(task, found)

    def finished(self) -> evaluation_tables.Finished:
        found = {task: self.folder.found(task) for task in self.tasks}
        return {task: result for task, result in found.items() if result is not None}

    def record(self) -> Evaluation:
        finished = self.finished()
        driving = drivers(
            self.cohort,
            self.case,
            finished,
            self.grids,
            self.gate,
            random_state=self.seed,
            resamples=min(self.resamples, DRIVER_RESAMPLES),
            threads=self.threads,
        )
        for what, missing in (
            ("ROC curve", [task for task, found in finished.items() if "roc" not in found.arrays]),
            ("calibration", [task for task, found in finished.items() if not found.figures["groups"]]),
        ):
            if missing:
                self.gate.note(what, f"{len(missing)} of {len(finished)} methods and splits")
        return Evaluation(
            summary=evaluation_tables.summary_table(finished),
            comparison=evaluation_tables.comparison_table(finished),
            splits=evaluation_tables.splits_table(finished),
            tuning=evaluation_tables.tuning_table(finished),
            coefficients=driving.table,
            roc=evaluation_tables.roc_table(finished),
            calibration=evaluation_tables.calibration_table(finished),
            model=driving.model,
            predictions=self.predictions(finished) if self.folder.private else None,
            counts=self.counts(),
            audit=self.gate.audit,
            trusted=self.gate.trusted,
        )

    def counts(self) -> dict[str, int | None]:
        """Patients and cases, and those tested on at a time, where they are enough to be told."""
        cases, tested = int(self.case.sum()), self.splits[0].test
        shown = self.gate.count("prediction", "cases tested on", int(self.case[tested].sum()))
        return {
            "patients": len(self.case),
            "cases": cases,  # at least 20, or they would have been refused
            "tested_patients": len(tested),
            "tested_cases": shown,
        }

    def predictions(self, finished: evaluation_tables.Finished) -> "pd.DataFrame":
        import pandas as pd

        parts = []
        for task, found in finished.items():
            test = self.splits[task.split].test
            columns = {
                "patient": self.cohort.patient_ids[test], "split": task.split, "method": task.method,
                "case": self.case[test], "risk": found.arrays["risk"],
            }  # fmt: skip
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)


class Reporter:
    """Counts fits, and tells how long the rest will take at the pace so far."""

    def __init__(
        self,
        todo: list[Task],
        tasks: list[Task],
        grids: Grids,
        callback: Callable[[Progress], object] | None,
    ) -> None:
        self.callback = callback
        fits = {method: methods.candidates(method, grids) for method in {task.method for task in tasks}}
        self.total = sum(len(fits[task.method]) for task in tasks)
        self.done = self.total - sum(len(fits[task.method]) for task in todo)
        self.whole = sum(methods.cost(task.method, fit) for task in todo for fit in fits[task.method])
        self.paid, self.began = 0.0, time.monotonic()

    def __call__(self, task: Task, candidate: Candidate) -> None:
        self.done += 1
        self.paid += methods.cost(task.method, candidate)
        if self.callback is not None:
            left = (time.monotonic() - self.began) * max(self.whole - self.paid, 0.0) / self.paid
            self.callback(Progress(self.done, self.total, *task, min(self.paid / self.whole, 1.0), left))


def labelled_patients(cohort: Cohort, y: Any, drop_unlabelled: bool) -> tuple[Cohort, Array]:
    """The patients to work with, and which of them are cases."""
    if not drop_unlabelled:
        return cohort, read_labels(cohort, y).case
    if y is None and cohort.labels is None:
        read_labels(cohort, None)  # which says so
    values = np.asarray(cohort.labels if y is None else y)
    if values.shape != (len(cohort),):
        read_labels(cohort, y)
    missing = np.array([value is None or value != value for value in values.tolist()])
    if missing.all():
        raise InputError("No patient has a label: build the cohort with labels, or give them as y.")
    known = cohort[~missing]
    return known, read_labels(known, values[~missing]).case


def check_place(out: str | os.PathLike[str] | None, cohort: Path | None) -> None:
    if out is not None and cohort is not None and Path(out).resolve().is_relative_to(cohort.resolve()):
        # Results are for sharing, cohorts are not.
        raise InputError(f"{out} lies within the cohort's folder: choose another place for the prediction.")


def check_fits(names: list[str], grids: Grids, cohort: Cohort) -> None:
    """Refuse before the long work what a fit would refuse, and say once what every fit would say."""
    unknown = set(grids.more) - set(names)
    if unknown:
        raise InputError(f"settings speaks of {', '.join(sorted(unknown))}, which is not among the methods.")
    largest = Candidate(grids.ranks[-1], grids.lams[0], grids.mus[0])
    for name in names:
        try:
            if name == TASTE_NAME or name in methods.SCORED:
                methods.factorisation(name, largest, grids, 0)._read(cohort)
            else:
                methods.classifier(name, largest, grids, 0)._check_settings()
        except TypeError:
            raise InputError(f"settings of {name} holds a setting that it does not have.") from None
    if 0.0 in grids.mus:
        warnings.warn(
            "mu=0 drops the uniqueness term: the phenotypes found are one choice of many.", stacklevel=3
        )
