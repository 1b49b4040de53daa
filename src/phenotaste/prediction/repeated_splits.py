"""`evaluate`: repeated splits, every method on each of them, and the tables of the results."""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from phenotaste import __version__
from phenotaste.baselines.classifier import read_labels
from phenotaste.baselines.lasso import checked_grid as checked_strengths
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import cohort_digest
from phenotaste.cohort.origin import learnt_warning
from phenotaste.core.records import Array
from phenotaste.disclosure import Gate
from phenotaste.errors import InputError
from phenotaste.prediction import evaluation_tables as tables
from phenotaste.prediction import methods
from phenotaste.prediction.coefficients import fit_coefficients
from phenotaste.prediction.evaluation import Evaluation, as_csv
from phenotaste.prediction.methods import TASTE_NAME, Candidate, TuningSettings
from phenotaste.prediction.nested_split import EvaluationFolder, SplitSettings, Task, gate_of, run_split
from phenotaste.prediction.split_cohorts import check_sizes, draw_split
from phenotaste.runs.folder import RunSettings
from phenotaste.runs.progress import Progress, Reporter
from phenotaste.selection.execution import TEMPORARY_PREFIX, load_source
from phenotaste.selection.grid import checked_ranks, checked_weights
from phenotaste.storage.locks import temporary_folder
from phenotaste.validation import check_integer, check_seed

if TYPE_CHECKING:
    import pandas as pd


class Fit(NamedTuple):
    """One fit of a method on a split."""

    method: str
    split: int
    candidate: Candidate

    @property
    def cost(self) -> float:
        return methods.cost(self.method, self.candidate)


def evaluate(
    c: Cohort | str | os.PathLike[str],
    y: Any = None,
    *,
    ranks: Iterable[int] | int = (5, 10, 20),
    lams: Iterable[float] | float = (0.01,),
    mus: Iterable[float] | float = (1.0,),
    splits: int = 5,
    baselines: Iterable[str] | str | None = None,
    C: Any = None,
    objective: Literal["relative", "paper"] = "relative",
    smooth: float | None = None,
    balance: float = 0.5,
    n_init: int | None = None,
    max_iter: int = 200,
    tol: float = 1e-4,
    courses: bool = False,
    size: bool = True,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    resamples: int = 1000,
    random_state: int = 0,
    n_jobs: int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    patients: bool = False,
    drop_unlabelled: bool = False,
    trusted: bool = False,
    callback: Callable[[Progress[Fit]], object] | None = None,
) -> Evaluation:
    """Estimate how well phenotype scores predict a label, and compare with other methods, by repeated nested splits.

    Patients are split into 75 % training, 10 % validation and 15 % test patients, `splits` times; rows of one patient,
    as with several index times, are in one part. On each split TASTE
    is fitted to the training patients, all patients are projected onto its definitions, and a lasso logistic regression
    is fitted to the training scores. Number of phenotypes, weights and strength of the lasso are those with the highest
    validation AUC. Only then are the test patients used.

    Parameters
    ----------
    c : a cohort, or the folder of a saved one.
    y : two classes, one label for each patient; the cohort's own by default. The larger value is the case.
    ranks, lams, mus : the grid that TASTE is tuned over; other factorisations are tuned over the ranks.
    splits : the number of splits.
    baselines : of "copa", "copa-static", "cntf", "gru", "raw", "raw-static", "nmf", "visit-nmf", "lda", "svd" and
        "boosting"; by default "copa", "copa-static", "raw" and "raw-static".
    C : strengths of the lasso to choose from, the paper's by default.
    objective, smooth, balance : as in `TASTE`.
    n_init, max_iter, tol : as in `TASTE`, for all factorisations; by default each has its own number of starts. Of
        "nmf", "visit-nmf" and "lda" only `n_init`.
    courses : use two features of each course beside the scores of factorisations: its share in the last quarter, and
        its slope. Methods without courses use their scores alone.
    size : use the size of the record, log ‖X_k‖ of the visits, beside the scores of factorisations: TASTE's scores are
        relative to it and leave it out, those of most other methods contain it.
    settings : additional settings by method, as {"gru": {"max_epochs": 20}}.
    resamples : bootstrap samples of the patients, for intervals.
    random_state : an integer; the result does not depend on the number of threads.
    n_jobs : threads, all cores by default.
    out : folder for tables, figures, a page and the model; every finished split is written to it at once.
    resume : resume the evaluation in `out`; splits and baselines may be added.
    patients : keep the risk of every test patient, in the result and, readable only by its owner, in `out`.
    drop_unlabelled : leave out patients without a label, who otherwise raise InputError.
    trusted : also show figures of fewer than 11 patients.
    callback : called after each fit with a record (done, total, task, fraction, seconds_left); `task` has the method
        and the split.

    Examples
    --------
    >>> from phenotaste import prediction, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=400)
    >>> result = prediction.evaluate(cohort, ranks=5, splits=2, baselines="raw", resamples=50, n_init=1)
    >>> result.summary["method"].tolist(), 0.5 < result.auc < 1
    (['taste', 'raw'], True)
    """
    source = load_source(c)
    source.check_output(out, "prediction")
    cohort, case = labelled_patients(source.cohort, y, drop_unlabelled)
    check_sizes(case, cohort.persons)
    tuning = TuningSettings(
        checked_ranks(ranks), checked_weights(lams, "lams"), checked_weights(mus, "mus"), checked_strengths(C),
        objective, smooth, balance, n_init, max_iter, tol, bool(courses), bool(size),
        {name: dict(own) for name, own in (settings or {}).items()},
    )  # fmt: skip
    names = methods.checked_methods(baselines, cohort.static is not None)
    n_splits = check_integer("splits", splits, min=1)
    common = SplitSettings(
        tuning,
        random_state=check_seed(random_state),
        resamples=check_integer("resamples", resamples),
        threads=n_jobs,
        trusted=bool(trusted),
        keep_risk=bool(patients),
    )
    check_fits(names, tuning, cohort)
    if (sentence := learnt_warning(source.cohort.origin)) is not None:
        warnings.warn(sentence, stacklevel=2)
    with ExitStack() as stack:
        path = stack.enter_context(temporary_folder(TEMPORARY_PREFIX)) if out is None else Path(out)
        folder = EvaluationFolder(path, private=common.keep_risk)
        if out is not None:
            stack.enter_context(folder.locked())
        folder.open(run_settings(cohort, case, common), resume=resume)
        tasks = [Task(method, number) for number in range(n_splits) for method in names]
        result = Run(cohort, case, tasks, common, folder, callback).run()
        if out is not None:
            result.save(folder)
        return result


def run_settings(cohort: Cohort, case: Array, settings: SplitSettings) -> RunSettings:
    labels = hashlib.sha256(np.packbits(case).tobytes()).hexdigest()
    kept = settings.tuning.as_dict() | {
        "resamples": settings.resamples,
        "random_state": settings.random_state,
        "patients": settings.keep_risk,
        "trusted": settings.trusted,
    }
    return RunSettings(__version__, {"cohort": cohort_digest(cohort), "labels": labels}, kept)


@dataclass
class Run:
    """The steps of one call of `evaluate`."""

    cohort: Cohort
    case: Array
    tasks: list[Task]
    settings: SplitSettings
    folder: EvaluationFolder
    callback: Callable[[Progress[Fit]], object] | None

    def run(self) -> Evaluation:
        try:
            self.run_pending()
        except KeyboardInterrupt:
            if finished := self.folder.load_all(self.tasks):
                self.folder.write("splits.csv", as_csv(tables.splits_table(finished), self.settings.trusted))
            raise
        return self.evaluation(self.folder.load_all(self.tasks))

    def run_pending(self) -> None:
        pending = self.folder.pending(self.tasks)
        fits = fits_of(pending, self.settings.tuning)
        finished = len(fits_of(self.tasks, self.settings.tuning)) - len(fits)
        reporter = Reporter(fits, lambda fit: fit.cost, self.callback, finished=finished)
        for task in pending:

            def on_fit(candidate: Candidate, task: Task = task) -> None:
                reporter.done(Fit(*task, candidate))

            self.folder.save(task, run_split(self.cohort, self.case, task, self.settings, on_fit))

    def evaluation(self, finished: tables.Finished) -> Evaluation:
        gate = gate_of(self.case, self.settings)
        coefficients = fit_coefficients(self.cohort, self.case, finished, self.settings, gate)
        for what, missing in (
            ("ROC curve", [task for task, result in finished.items() if "roc" not in result.arrays]),
            ("calibration", [task for task, result in finished.items() if not result.figures["groups"]]),
        ):
            if missing:
                gate.note(what, f"{len(missing)} of {len(finished)} methods and splits")
        return Evaluation(
            summary=tables.summary_table(finished),
            comparison=tables.comparison_table(finished),
            splits=tables.splits_table(finished),
            tuning=tables.tuning_table(finished),
            coefficients=coefficients.table,
            roc=tables.roc_table(finished),
            calibration=tables.calibration_table(finished),
            model=coefficients.model,
            predictions=self.predictions(finished) if self.settings.keep_risk else None,
            counts=self.counts(gate),
            audit=gate.audit,
            trusted=gate.trusted,
            size=self.settings.tuning.size,
        )

    def test_patients(self, split: int) -> Array:
        return draw_split(self.case, split, self.settings.random_state, self.cohort.persons).test

    def counts(self, gate: Gate) -> dict[str, int | None]:
        """Return the rounded numbers of patients and cases, in total and in a test; None for a small count."""
        persons, test = self.cohort.persons, np.zeros(len(self.case), bool)
        test[self.test_patients(0)] = True

        def count(rows: Array) -> int:
            return len(np.unique(persons[rows]))

        counts = {
            "patients": count(np.ones(len(self.case), bool)),
            "cases": count(self.case),
            "test_patients": count(test),
            "test_cases": count(test & self.case),
        }
        shown = {name: gate.count(name, count) for name, count in counts.items()}
        if None in shown.values():
            gate.note("prediction", "numbers of patients and cases")
        return shown

    def predictions(self, finished: tables.Finished) -> "pd.DataFrame":
        import pandas as pd

        parts = []
        for task, result in finished.items():
            test = self.test_patients(task.split)
            columns = {
                "patient": self.cohort.patient_ids[test], "split": task.split, "method": task.method,
                "case": self.case[test], "risk": result.arrays["risk"],
            }  # fmt: skip
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)


def fits_of(tasks: Iterable[Task], tuning: TuningSettings) -> list[Fit]:
    return [Fit(*task, candidate) for task in tasks for candidate in methods.candidates(task.method, tuning)]


def labelled_patients(cohort: Cohort, y: Any, drop_unlabelled: bool) -> tuple[Cohort, Array]:
    """Return the labelled patients, and which of them are cases."""
    if not drop_unlabelled:
        return cohort, read_labels(cohort, y).case
    if y is None and cohort.labels is None:
        read_labels(cohort, None)  # raises
    values = np.asarray(cohort.labels if y is None else y)
    if values.shape != (len(cohort),):
        read_labels(cohort, y)
    missing = np.array([value is None or value != value for value in values.tolist()])
    if missing.all():
        raise InputError("No patient has a label: build the cohort with labels, or give them as y.")
    known = cohort[~missing]
    return known, read_labels(known, values[~missing]).case


def check_fits(names: list[str], tuning: TuningSettings, cohort: Cohort) -> None:
    """Refuse at once what a fit would refuse, and warn once instead of in every fit."""
    unknown = set(tuning.extra) - set(names)
    if unknown:
        raise InputError(f"settings names {', '.join(sorted(unknown))}, which is not among the methods.")
    largest = Candidate(tuning.ranks[-1], tuning.lams[0], tuning.mus[0])
    for name in names:
        try:
            if name == TASTE_NAME or name in methods.SCORED:
                methods.factorisation(name, largest, tuning, 0).validate(cohort)
            else:
                methods.classifier(name, largest, tuning, 0)._check_settings()
        except TypeError:
            raise InputError(f"settings of {name} contains a setting that it does not have.") from None
    if 0.0 in tuning.mus:
        warnings.warn("mu=0 drops the uniqueness term: the phenotypes are not unique.", stacklevel=3)
