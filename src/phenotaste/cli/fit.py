"""`phenotaste fit`: fit the phenotypes of a cohort and save the model."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phenotaste.cli.options import (
    Balance,
    CohortFolder,
    DeviceChoice,
    DtypeChoice,
    InitChoice,
    Json,
    ObjectiveChoice,
    Seed,
    ThreadCount,
    check_replaceable,
)
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste import TASTE
    from phenotaste.engines import Checkpoint, DaskEngine
    from phenotaste.report import FitSummary
    from phenotaste.shareable import Dropped


def fit(
    cohort: CohortFolder,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the saved model.", metavar="MODEL", show_default=False)
    ] = None,
    rank: Annotated[int, typer.Option(help="Number of phenotypes.")] = 5,
    objective: Annotated[
        ObjectiveChoice,
        typer.Option(
            help="relative: patients scaled to unit size, smooth courses; paper: the method of the paper, with "
            "absolute weights."
        ),
    ] = ObjectiveChoice.RELATIVE,
    lam: Annotated[float, typer.Option(help="Weight of the static features relative to the visits.")] = 0.01,
    mu: Annotated[float, typer.Option(help="Weight of the uniqueness term.")] = 1.0,
    smooth: Annotated[
        float,
        typer.Option(
            help="Weight of the changes of a course from visit to visit; not used by --objective paper."
        ),
    ] = 0.3,
    balance: Balance = 0.5,
    init: Annotated[
        InitChoice,
        typer.Option(
            help="Where a start begins: short_fits is a short fit with spare phenotypes; not used by --objective paper."
        ),
    ] = InitChoice.SHORT_FITS,
    n_init: Annotated[
        int | None,
        typer.Option(
            help="Number of starts, the best of which is kept; 4 by default, 1 with --objective paper.",
            show_default=False,
        ),
    ] = None,
    max_iter: Annotated[int, typer.Option(help="Maximum number of iterations per start.")] = 200,
    tol: Annotated[
        float, typer.Option(help="Stop at a relative decrease of the objective below this.")
    ] = 1e-5,
    dtype: Annotated[
        DtypeChoice, typer.Option(help="Floating-point type of the courses.")
    ] = DtypeChoice.FLOAT64,
    device: Annotated[
        DeviceChoice, typer.Option(help="Device; auto uses a GPU if one is available.")
    ] = DeviceChoice.CPU,
    seed: Seed = 0,
    threads: ThreadCount = None,
    include_patients: Annotated[
        bool, typer.Option("--include-patients", help="Also save the scores and courses of the patients.")
    ] = False,
    shareable: Annotated[
        bool,
        typer.Option(
            "--shareable",
            help="Drop features and levels that fewer than 11 patients have, so that MODEL may be passed on.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing MODEL.")] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory limit, such as 4GB; courses are then stored in files in the work folder.",
            show_default=False,
        ),
    ] = None,
    work: Annotated[
        str | None,
        typer.Option(
            help="Folder for courses and checkpoints; MODEL.work by default. With --engine, a folder shared by "
            "all workers, or a URL.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Address of the scheduler of a Dask cluster to run on.",
            metavar="dask://HOST:PORT",
            show_default=False,
        ),
    ] = None,
    tls: Annotated[
        Path | None,
        typer.Option(help="Folder with ca.pem, cert.pem and key.pem for --engine.", show_default=False),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow an unencrypted connection to --engine on another machine."),
    ] = False,
    checkpoint_minutes: Annotated[float, typer.Option(help="Minutes between checkpoints.", min=0.0)] = 10.0,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(help="Iterations between checkpoints.", min=1, show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint in the work folder.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Estimate memory and time of the fit without fitting.")
    ] = False,
    json_: Json = False,
) -> None:
    """Fit the phenotypes of a cohort and save the model.

    The model folder holds no patient's scores or courses unless --include-patients is given, but it names every
    feature, even one that a single patient has: keep it where the data is, or add --shareable. The work folder
    holds patients: it is readable by its owner only, and it is removed when the model is saved. An interrupted
    fit is resumed with --resume, and its result is bitwise identical to that of an uninterrupted fit.

    Example:

        phenotaste fit cohort --rank 5 --out model

    Smoother courses, and the paper's own objective:

        phenotaste fit cohort --rank 5 --smooth 1 --n-init 8 --out smoother

        phenotaste fit cohort --rank 5 --objective paper --lam 0.1 --mu 0.1 --out as-published

    A model that may be passed on:

        phenotaste fit cohort --rank 5 --shareable --out model

    Estimate the resources of a large fit:

        phenotaste fit cohort --rank 40 --plan

    A cohort larger than memory:

        phenotaste fit cohort --rank 40 --out model --memory 4GB

    On a cluster (docs/cluster.md):

        phenotaste fit cohort --rank 40 --out model --engine dask://login1:8786 --tls certs --work /shared/work
    """
    if out is None and not plan:
        raise typer.BadParameter("give the folder for the model: --out MODEL", param_hint="--out")
    from phenotaste import TASTE
    from phenotaste.cli.terminal import print_json, print_list
    from phenotaste.engines import Checkpoint, DiskEngine
    from phenotaste.engines.cuda import cuda_available

    model = TASTE(
        rank,
        objective=objective.value,
        lam=lam,
        mu=mu,
        smooth=smooth,
        balance=balance,
        init=init.value,
        n_init=n_init,
        max_iter=max_iter,
        tol=tol,
        dtype=dtype.value,
        device=device.value,
        n_jobs=threads,
        random_state=seed,
    )
    if plan or out is None:
        print_plan(model, cohort, json_)
        return
    is_url = work is not None and "://" in work  # then checkpoints are next to the model
    model.checkpoint = Checkpoint(
        out.with_name(f"{out.name}.work") if work is None or is_url else Path(work),
        minutes=checkpoint_minutes,
        every=checkpoint_every,
        resume=resume,
        keep=True,
    )
    if device is DeviceChoice.AUTO and not cuda_available():
        model.device = "cpu"
    if engine is not None:
        if memory is not None or device is not DeviceChoice.CPU:
            raise InputError("--engine excludes --memory and --device.")
        model.engine = cluster_engine(engine, work or model.checkpoint.folder, tls, insecure)
    elif memory is not None:
        if model.device != "cpu":
            raise InputError(f"--memory needs --device cpu, not {model.device}.")
        model.engine = DiskEngine(model.checkpoint.folder, memory)
    if shareable and include_patients:
        raise InputError("--shareable excludes --include-patients.")
    with resume_hint(model.checkpoint):
        summary, dropped = fit_and_save(model, cohort, out, overwrite, include_patients, shareable)
        model.checkpoint.remove()
    if json_:
        sharing = {"shareable": shareable, "dropped": None if dropped is None else dropped._asdict()}
        print_json({"model": str(out), **summary.as_dict(), **sharing})
    else:
        line = ("Shareable", "no: keep it where the data is" if dropped is None else f"yes: {dropped.text()}")
        print_list(f"{rank} phenotypes saved as {out}", [*summary.lines(), line])


def fit_and_save(
    model: "TASTE", cohort: Path, out: Path, overwrite: bool, include_patients: bool, shareable: bool
) -> "tuple[FitSummary, Dropped | None]":
    from phenotaste import TASTE, Cohort
    from phenotaste.cli.terminal import fit_progress
    from phenotaste.report import fit_summary

    check_replaceable(out, overwrite, TASTE.load)
    # The limit also holds while the cohort is read and the model is saved.
    with nullcontext() if model.engine is None else model.engine.memory_limit():
        patients = Cohort.load(cohort)
        began = time.perf_counter()
        with fit_progress() as model.callback:
            model.fit(patients)
        summary = fit_summary(model, time.perf_counter() - began)
        dropped = model.save(out, include_patients=include_patients, shareable=shareable)
    return summary, dropped


def cluster_engine(
    address: str, work: str | os.PathLike[str], tls: Path | None, insecure: bool
) -> "DaskEngine":
    """The engine of `--engine dask://HOST:PORT`."""
    from phenotaste.engines.dask.engine import DaskEngine, import_distributed

    if not address.startswith(("dask://", "tcp://", "tls://")):  # the last two are what Dask itself prints
        raise typer.BadParameter(
            "use dask://HOST:PORT, or the address that Dask prints", param_hint="--engine"
        )
    import_distributed()
    # Errors are reported in one sentence; Dask would log tracebacks.
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in ("distributed", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return DaskEngine(address, work, tls=tls, allow_plain=insecure)


@contextmanager
def resume_hint(checkpoint: "Checkpoint") -> Iterator[None]:
    """If a fit ends early, say how to resume it from its last checkpoint."""
    try:
        yield
    except BaseException:
        if checkpoint.exists():
            typer.echo(
                f"The last checkpoint is in {checkpoint.folder}: repeat the command with --resume to resume from it, "
                "or delete that folder.",
                err=True,
            )
        raise


def print_plan(model: "TASTE", cohort: Path, json_: bool) -> None:
    from phenotaste import Cohort
    from phenotaste.cli.terminal import print_json, print_list
    from phenotaste.plan import plan

    expected = plan(model, Cohort.load(cohort))
    if json_:
        print_json(expected._asdict())
    else:
        print_list(f"A fit of {model.rank} phenotypes would take", expected.lines())
