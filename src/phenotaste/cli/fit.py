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
    CohortFolder,
    DeviceChoice,
    DtypeChoice,
    InitChoice,
    Json,
    Seed,
    SolverChoice,
    ThreadCount,
    WeightsChoice,
    check_replaceable,
)
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste import TASTE
    from phenotaste.engines import Checkpoint, DaskEngine
    from phenotaste.report import FitSummary


def fit(
    cohort: CohortFolder,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the saved model.", metavar="MODEL", show_default=False)
    ] = None,
    rank: Annotated[int, typer.Option(help="Number of phenotypes.")] = 5,
    lam: Annotated[float, typer.Option(help="Weight of the static features relative to the visits.")] = 0.1,
    mu: Annotated[float, typer.Option(help="Weight of the uniqueness term.")] = 1.0,
    weights: Annotated[
        WeightsChoice, typer.Option(help="Whether lam and mu are relative to the size of the data.")
    ] = WeightsChoice.RELATIVE,
    normalize: Annotated[bool, typer.Option(help="Normalise the definitions to unit norm.")] = True,
    solver: Annotated[
        SolverChoice,
        typer.Option(help="Coordinate descent, or exact block principal pivoting as in the paper."),
    ] = SolverChoice.CD,
    init: Annotated[InitChoice, typer.Option(help="Initialisation of the definitions.")] = InitChoice.NMF,
    n_init: Annotated[int, typer.Option(help="Number of starts; the best one is kept.")] = 1,
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

    The model folder contains nothing about individual patients unless --include-patients is given. The work
    folder does: it is readable by its owner only, and it is removed when the model is saved. An interrupted
    fit is resumed with --resume, and its result is bitwise identical to that of an uninterrupted fit.

    Example:

        phenotaste fit cohort --rank 5 --n-init 5 --out model

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
        lam=lam,
        mu=mu,
        weights=weights.value,
        normalize=normalize,
        solver=solver.value,
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
    with resume_hint(model.checkpoint):
        summary = fit_and_save(model, cohort, out, overwrite, include_patients)
        model.checkpoint.remove()
    if json_:
        print_json({"model": str(out), **summary.as_dict()})
    else:
        print_list(f"{rank} phenotypes saved as {out}", summary.lines())


def fit_and_save(
    model: "TASTE", cohort: Path, out: Path, overwrite: bool, include_patients: bool
) -> "FitSummary":
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
        model.save(out, include_patients=include_patients)
    return summary


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
