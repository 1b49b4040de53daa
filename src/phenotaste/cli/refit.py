"""`phenotaste refit`: fit a reviewed model again, keeping what the review accepted."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from phenotaste.cli.options import CohortFolder, DeviceChoice, Json, ModelFolder, Seed, ThreadCount
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste import TASTE


def refit(
    model: ModelFolder,
    cohort: CohortFolder,
    review: Annotated[
        Path, typer.Option(help="The review.json of MODEL, saved by its report page.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new model.", metavar="MODEL2", show_default=False)],
    freedom: Annotated[
        float,
        typer.Option(
            help="Accepted definitions may move as far as a cosine of 1 - freedom; 0 keeps every bit."
        ),
    ] = 0.0,
    rank: Annotated[
        int | None,
        typer.Option(
            help="Number of phenotypes; those beyond the ones that the review keeps are found anew.",
            show_default=False,
        ),
    ] = None,
    n_init: Annotated[
        int | None, typer.Option(help="Number of starts; as in MODEL by default.", show_default=False)
    ] = None,
    max_iter: Annotated[
        int | None,
        typer.Option(help="Maximum number of iterations; as in MODEL by default.", show_default=False),
    ] = None,
    device: Annotated[
        DeviceChoice, typer.Option(help="Device; auto uses a GPU if one is available.")
    ] = DeviceChoice.CPU,
    seed: Seed = 0,
    threads: ThreadCount = None,
    include_patients: IncludePatients = False,
    shareable: Shareable = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing MODEL2.")] = False,
    memory: Memory = None,
    work: Work = None,
    engine: EngineAddress = None,
    tls: Tls = None,
    insecure: Insecure = False,
    checkpoint_minutes: CheckpointMinutes = 10.0,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = False,
    json_: Json = False,
) -> None:
    """Fit a model again after a review, and save it as a new model.

    Accepted phenotypes keep their definitions. Merged ones become one phenotype and are estimated anew, as are open
    ones, from where they were. Rejected ones stay in the fit as a hidden background, so that what they explain does
    not come back under another name. MODEL itself stays as it is; MODEL2 has its settings, the names of the review,
    and for each phenotype the one it comes from.

    COHORT is the cohort of the fit, or one with the same features.

    Example:

        phenotaste refit model cohort --review review.json --out model2

    Two new phenotypes beside the ten that the review keeps, and accepted definitions that may move a little:

        phenotaste refit model cohort --review review.json --rank 12 --freedom 0.1 --out model2
    """
    from phenotaste.cli.options import load_model
    from phenotaste.cli.terminal import print_json, print_list
    from phenotaste.taste import TASTE

    if out.resolve() == model.resolve():
        raise InputError(f"{out} is the model that was reviewed: choose another --out.")
    before = load_model(model)
    if not isinstance(before, TASTE):
        raise InputError(f"{model} holds a model of {type(before).__name__}: only TASTE is fitted again.")
    before.random_state, before.n_jobs = seed, threads
    before.n_init = before.n_init if n_init is None else n_init
    before.max_iter = before.max_iter if max_iter is None else max_iter
    resources = Resources(
        device, memory, work, engine, tls, insecure, checkpoint_minutes, checkpoint_every, resume
    )
    resources.apply(before, out)
    saved = fit_and_save(
        before,
        lambda patients: before.refit(patients, review, freedom=freedom, rank=rank),
        cohort,
        out,
        overwrite=overwrite,
        include_patients=include_patients,
        shareable=shareable,
    )
    record = saved.model.refit_
    assert record is not None
    if json_:
        print_json({"model": str(out), **saved.summary.as_dict(), **saved.sharing, "refit": record})
    else:
        lines = [*origin_lines(saved.model, record), *saved.lines()]
        print_list(f"{saved.model.rank} phenotypes saved as {out}", lines)


def origin_lines(model: "TASTE", record: dict[str, Any]) -> list[tuple[str, str]]:
    """Where each phenotype comes from, and how near it still is."""
    lines = []
    for row in record["phenotypes"]:
        numbers = " and ".join(str(number) for number in row["from"])
        text = "new" if not row["from"] else f"{row['decision']}, from {numbers}, cosine {row['cosine']:.3f}"
        lines.append((row["name"] or f"Phenotype {row['phenotype']}", text))
    if record["rejected"]:
        hidden = ", ".join(row["name"] or "phenotype " + str(row["from"][0]) for row in record["rejected"])
        lines.append(("Background", f"{hidden} (in the fit, not shown)"))
    return lines
