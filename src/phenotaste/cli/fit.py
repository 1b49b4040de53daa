"""`phenotaste fit`: fit the phenotypes of a cohort and save the model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phenotaste.cli.fitting import (
    CheckpointEvery,
    CheckpointMinutes,
    EngineAddress,
    IncludePatients,
    Insecure,
    Memory,
    Resources,
    Resume,
    Shareable,
    Tls,
    Work,
    fit_and_save,
)
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
)

if TYPE_CHECKING:
    from phenotaste import TASTE


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
    guides: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with phenotypes known in part, each with codes to begin from (docs/refit.md).",
            show_default=False,
        ),
    ] = None,
    include_patients: IncludePatients = False,
    shareable: Shareable = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing MODEL.")] = False,
    memory: Memory = None,
    work: Work = None,
    engine: EngineAddress = None,
    tls: Tls = None,
    insecure: Insecure = False,
    checkpoint_minutes: CheckpointMinutes = 10.0,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = False,
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

    Phenotypes that are known in part (docs/refit.md):

        phenotaste fit cohort --rank 10 --guides guides.toml --out model

    On a cluster (docs/cluster.md):

        phenotaste fit cohort --rank 40 --out model --engine dask://login1:8786 --tls certs --work /shared/work
    """
    if out is None and not plan:
        raise typer.BadParameter("give the folder for the model: --out MODEL", param_hint="--out")
    from phenotaste import TASTE
    from phenotaste.cli.terminal import print_json, print_list
    from phenotaste.guides import read_guides

    model = TASTE(
        rank,
        objective=objective.value,
        lam=lam,
        mu=mu,
        smooth=smooth,
        balance=balance,
        init=init.value,
        n_init=n_init,
        guides=None if guides is None else read_guides(guides),
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
    resources = Resources(
        device, memory, work, engine, tls, insecure, checkpoint_minutes, checkpoint_every, resume
    )
    resources.apply(model, out)
    saved = fit_and_save(
        model,
        model.fit,
        cohort,
        out,
        overwrite=overwrite,
        include_patients=include_patients,
        shareable=shareable,
    )
    if json_:
        print_json({"model": str(out), **saved.summary.as_dict(), **saved.sharing})
    else:
        print_list(f"{rank} phenotypes saved as {out}", saved.lines())


def print_plan(model: "TASTE", cohort: Path, json_: bool) -> None:
    from phenotaste import Cohort
    from phenotaste.cli.terminal import print_json, print_list
    from phenotaste.plan import plan

    expected = plan(model, Cohort.load(cohort))
    if json_:
        print_json(expected._asdict())
    else:
        print_list(f"A fit of {model.rank} phenotypes would take", expected.lines())
