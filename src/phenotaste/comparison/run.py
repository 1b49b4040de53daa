"""`compare`: run all fits of a comparison, in this process or in worker processes."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import cohort_digest
from phenotaste.comparison.comparison import Comparison, write_tables
from phenotaste.comparison.fits import ComparisonFolder, Patients, run_task, without_columns
from phenotaste.comparison.methods import METHODS, MODES, Modes, checked_methods, make
from phenotaste.comparison.tasks import FitSettings, Plan, Task
from phenotaste.errors import InputError
from phenotaste.prediction.repeated_splits import labelled_patients
from phenotaste.prediction.split_cohorts import check_sizes
from phenotaste.runs.folder import RunSettings
from phenotaste.runs.progress import Progress, Reporter
from phenotaste.runs.resources import available_cores
from phenotaste.runs.workers import run_workers
from phenotaste.selection.execution import CohortSource, load_source, saved_cohort
from phenotaste.selection.grid import checked_ranks
from phenotaste.storage.locks import temporary_folder
from phenotaste.validation import check_integer, check_seed

TEMPORARY_PREFIX = "phenotaste-compare-"
MIN_GROUP_SIZE = 50  # patients; fewer have no definitions of their own
MAX_GROUPS = 12


def compare(
    c: Cohort | str | os.PathLike[str],
    methods: Iterable[str] | str | None = None,
    ranks: Iterable[int] | int = (5, 10),
    *,
    halves: int = 3,
    starts: int = 3,
    splits: int = 5,
    between: str | Sequence[Any] | None = None,
    modes: Modes = MODES,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    jobs: int | None = None,
    random_state: int = 0,
    trusted: bool = False,
    callback: Callable[[Progress[Task]], object] | None = None,
) -> Comparison:
    """Fit several methods to the same patients, and compare replication, prediction, error, time and memory.

    Definitions replicate if separate fits of disjoint halves of the patients find the same: each phenotype is matched
    with its counterpart by the cosine. Prediction learns definitions and regression from training patients only.

    Parameters
    ----------
    c : a cohort, or the folder of a saved one; its labels, if it has any, are predicted.
    methods : of `comparison.METHODS`; by default all that the cohort allows and that do not need torch.
    ranks : numbers of phenotypes, the same for all methods.
    halves : how often the patients are split into two random halves that are fitted separately.
    starts : fits of all patients with different seeds; times and memory are measured here.
    splits : splits into training, validation and test patients; 0 for no prediction.
    between : a fact such as "site" or "year", of which the static columns are "site=…", or a value for each patient:
        groups that are fitted separately, of at least 50 patients. The columns of the fact are left out of all fits.
    modes : two kinds of codes for the methods that factorise counts of pairs, each a prefix or a list of names.
    settings : additional settings by method, as {"taste": {"smooth": 0.1}}.
    out : folder for all results; every finished fit is written to it at once.
    resume : resume the comparison in `out`; methods, ranks and numbers of fits may be added.
    jobs : processes of one thread each, the number of cores by default.
    random_state : an integer; halves and splits are the same for all methods.
    trusted : also show figures of fewer than 11 patients.
    callback : called after each fit with a record (done, total, task, fraction, seconds_left).

    Examples
    --------
    >>> from phenotaste import comparison, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=300)
    >>> result = comparison.compare(cohort, ["spartan", "nmf"], ranks=3, halves=1, starts=2, splits=0, jobs=1)
    >>> result.table["method"].tolist(), bool((result.table["halves_V"] > 0.3).all())
    (['spartan', 'nmf'], True)
    """
    source = load_source(c)
    source.check_output(out, "comparison")
    common = FitSettings(
        check_seed(random_state), bool(trusted), checked_modes(modes), checked_extra(settings)
    )
    cohort, levels, groups = grouped(source.cohort, between)
    n_splits = check_integer("splits", splits) if cohort.labels is not None else 0
    if n_splits:
        cohort, groups = labelled(cohort, groups)
    names = checked_methods(methods, cohort, common.methods(None))
    plan = Plan(
        tuple(names), checked_ranks(ranks), check_integer("halves", halves),
        check_integer("starts", starts, min=1), n_splits, levels,
    )  # fmt: skip
    patients = Patients(cohort, case_of(cohort) if n_splits else None, groups)
    check_plan(patients, plan, common)
    if jobs is not None:
        check_integer("jobs", jobs, min=1)
    with ExitStack() as stack:
        path = stack.enter_context(temporary_folder(TEMPORARY_PREFIX)) if out is None else Path(out)
        folder = ComparisonFolder(path)
        if out is not None:
            stack.enter_context(folder.locked())
        folder.open(run_settings(patients, plan, common), resume=resume)
        try:
            run_pending(patients, plan, folder, common, jobs, callback)
        except KeyboardInterrupt:
            if out is not None:
                with suppress(OSError):
                    write_tables(Comparison.of(patients, plan, folder, common), folder)
            raise
        result = Comparison.of(patients, plan, folder, common)
        if out is not None:
            result.save(folder)
        return result


# Checks ------------------------------------------------------------------------------------------------------------


def checked_modes(modes: Any) -> Modes:
    pair = tuple(modes) if isinstance(modes, tuple | list) else ()
    if len(pair) != 2:
        raise InputError(
            "modes must be two kinds of codes, each a prefix or a list of names, as ('Dx_', 'Rx_')."
        )
    first, second = (mode if isinstance(mode, str) else [str(name) for name in mode] for mode in pair)
    return first, second


def checked_extra(settings: Any) -> dict[str, dict[str, Any]]:
    extra = {str(name): dict(own) for name, own in (settings or {}).items()}
    unknown = set(extra) - set(METHODS)
    if unknown:
        raise InputError(
            f"settings names {', '.join(sorted(unknown))}, which is none of the methods: {', '.join(METHODS)}."
        )
    return extra


def check_plan(patients: Patients, plan: Plan, settings: FitSettings) -> None:
    """Refuse at once what a fit would refuse."""
    if patients.case is not None:
        check_sizes(patients.case, patients.cohort.persons)
    if plan.halves and not patients.cohort.persons.max(initial=0):
        raise InputError(
            "The cohort has a single patient, who cannot be split into halves: use a larger cohort."
        )
    for name, rank in plan.cells():
        try:
            model = make(name, plan.ranks[-1] if rank else None, 0, settings.methods(None))
        except TypeError:
            raise InputError(f"settings of {name} contains a setting that it does not have.") from None
        if hasattr(model, "validate"):
            model.validate(patients.cohort)
        else:
            model._check_settings()


def case_of(cohort: Cohort) -> np.ndarray:
    labels = np.asarray(cohort.labels)
    return labels == labels.max()


def labelled(cohort: Cohort, groups: np.ndarray | None) -> tuple[Cohort, np.ndarray | None]:
    """The patients with a label, coded 0 and 1."""
    known, case = labelled_patients(cohort, None, drop_unlabelled=True)
    if groups is not None and len(known) < len(cohort):
        values = np.asarray(cohort.labels).tolist()
        groups = groups[[value is not None and value == value for value in values]]
    return known.with_labels(case.astype(np.float64)), groups


def grouped(cohort: Cohort, between: Any) -> tuple[Cohort, tuple[str, ...], np.ndarray | None]:
    """The cohort without the columns of the fact, the names of its groups, and the group of each patient."""
    if between is None:
        return cohort, (), None
    if isinstance(between, str):
        values = values_of_fact(cohort, between)
        cohort = without_columns(cohort, between)
    else:
        values = np.array([str(value) for value in between])
        if values.shape != (len(cohort),):
            raise InputError(
                f"between has {len(values):,} values for {len(cohort):,} patients: give one for each."
            )
    names, sizes = np.unique(values, return_counts=True)
    large = [str(name) for name in names[(sizes >= MIN_GROUP_SIZE) & (names != "")]]
    if not 2 <= len(large) <= MAX_GROUPS:
        raise InputError(
            f"{len(large)} groups of at least {MIN_GROUP_SIZE} patients cannot be compared: name a fact that has "
            f"2 to {MAX_GROUPS}."
        )
    position = {name: number for number, name in enumerate(large)}
    return cohort, tuple(large), np.array([position.get(value, -1) for value in values.tolist()])


def values_of_fact(cohort: Cohort, fact: str) -> np.ndarray:
    """The value of each patient from the columns "fact=value"; empty without one."""
    names = [] if cohort.static_names is None else [str(name) for name in cohort.static_names]
    columns = [j for j, name in enumerate(names) if name.startswith(f"{fact}=")]
    if not columns or cohort.static is None:
        raise InputError(
            f"The cohort has no static columns of {fact}, which would be called {fact}=…: name another fact, or give "
            "the groups as a table."
        )
    values = np.full(len(cohort), "", dtype=object)
    for j in columns:
        values[np.asarray(cohort.static[:, j]) > 0] = names[j].removeprefix(f"{fact}=")
    return values.astype(str)


# Running -----------------------------------------------------------------------------------------------------------


def run_settings(patients: Patients, plan: Plan, settings: FitSettings) -> RunSettings:
    """What a resumed comparison must share; methods, ranks and numbers of fits may be added."""
    identity = {"cohort": cohort_digest(patients.cohort)}
    if patients.groups is not None:
        digest = hashlib.sha256(np.asarray(patients.groups, np.int64).tobytes()).hexdigest()
        identity["groups"] = hashlib.sha256(f"{digest} {plan.groups}".encode()).hexdigest()
    return RunSettings(__version__, identity, settings.as_dict())


def run_pending(
    patients: Patients,
    plan: Plan,
    folder: ComparisonFolder,
    settings: FitSettings,
    jobs: int | None,
    callback: Callable[[Progress[Task]], object] | None,
) -> None:
    tasks = plan.tasks()
    pending = folder.pending(tasks)
    reporter = Reporter(pending, lambda task: task.cost, callback, finished=len(tasks) - len(pending))
    jobs = min(jobs or available_cores(), max(len(pending), 1))
    if jobs == 1:
        for task in pending:
            folder.save(task, run_task(patients, task, settings, 1))
            reporter.done(task)
        return
    with saved_cohort(CohortSource(patients.cohort, None)) as path:
        setup = {
            "cohort": str(path),
            "groups": None if patients.groups is None else patients.groups.tolist(),
            "predict": patients.case is not None,
            "folder": str(folder.path.resolve()),
            "settings": settings.as_dict(),
        }
        run_workers(__name__, setup, pending, jobs=jobs, threads=1, on_done=reporter.done)


def prepare_worker(setup: dict[str, Any]) -> Callable[[Any], None]:
    """Return the function that runs a task in a worker process."""
    cohort = Cohort.load(setup["cohort"], mmap=True)
    groups = None if setup["groups"] is None else np.array(setup["groups"])
    patients = Patients(cohort, case_of(cohort) if setup["predict"] else None, groups)
    chosen = dict(setup["settings"])
    settings = FitSettings(**chosen | {"modes": tuple(chosen["modes"])})
    folder = ComparisonFolder(Path(setup["folder"]))

    def run(fields: list[Any]) -> None:
        task = Task(*fields)
        folder.save(task, run_task(patients, task, settings, 1))

    return run
