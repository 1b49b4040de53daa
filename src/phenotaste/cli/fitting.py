"""What the commands that fit have in common: options, engine and checkpoint, and saving the model."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from phenotaste.cli.options import DeviceChoice, check_replaceable
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste import TASTE, Cohort
    from phenotaste.engines import Checkpoint, DaskEngine
    from phenotaste.report import FitSummary
    from phenotaste.shareable import Dropped

IncludePatients = Annotated[
    bool, typer.Option("--include-patients", help="Also save the scores and courses of the patients.")
]
Shareable = Annotated[
    bool,
    typer.Option(
        "--shareable",
        help="Drop features and levels that fewer than 11 patients have, so that MODEL may be passed on.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="Memory limit, such as 4GB; courses are then stored in files in the work folder.",
        show_default=False,
    ),
]
Work = Annotated[
    str | None,
    typer.Option(
        help="Folder for courses and checkpoints; MODEL.work by default. With --engine, a folder shared by "
        "all workers, or a URL.",
        show_default=False,
    ),
]
EngineAddress = Annotated[
    str | None,
    typer.Option(
        help="Address of the scheduler of a Dask cluster to run on.",
        metavar="dask://HOST:PORT",
        show_default=False,
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(help="Folder with ca.pem, cert.pem and key.pem for --engine.", show_default=False),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow an unencrypted connection to --engine on another machine."),
]
CheckpointMinutes = Annotated[float, typer.Option(help="Minutes between checkpoints.", min=0.0)]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(help="Iterations between checkpoints.", min=1, show_default=False),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint in the work folder.")]


class Resources(NamedTuple):
    """Where a fit runs, and where it writes its checkpoints."""

    device: DeviceChoice
    memory: str | None
    work: str | None
    engine: str | None
    tls: Path | None
    insecure: bool
    checkpoint_minutes: float
    checkpoint_every: int | None
    resume: bool

    def apply(self, model: "TASTE", out: Path) -> "Checkpoint":
        """Set the engine and the checkpoint of a model that will be saved as `out`."""
        from phenotaste.engines import Checkpoint, DiskEngine
        from phenotaste.engines.cuda import cuda_available

        is_url = self.work is not None and "://" in self.work  # then checkpoints are next to the model
        beside = self.work is None or is_url
        checkpoint = model.checkpoint = Checkpoint(
            out.with_name(f"{out.name}.work") if beside else Path(self.work or ""),
            minutes=self.checkpoint_minutes,
            every=self.checkpoint_every,
            resume=self.resume,
            keep=True,
        )
        automatic = self.device is DeviceChoice.AUTO and not cuda_available()
        model.device = "cpu" if automatic else self.device.value
        if self.engine is not None:
            if self.memory is not None or self.device is not DeviceChoice.CPU:
                raise InputError("--engine excludes --memory and --device.")
            model.engine = cluster_engine(
                self.engine, self.work or checkpoint.folder, self.tls, self.insecure
            )
        elif self.memory is not None:
            if model.device != "cpu":
                raise InputError(f"--memory needs --device cpu, not {model.device}.")
            model.engine = DiskEngine(checkpoint.folder, self.memory)
        return checkpoint


class Saved(NamedTuple):
    """A fitted model after it was saved."""

    model: "TASTE"
    summary: "FitSummary"
    dropped: "Dropped | None"  # from a shareable model

    @property
    def sharing(self) -> dict[str, object]:
        dropped = None if self.dropped is None else self.dropped._asdict()
        return {"shareable": self.dropped is not None, "dropped": dropped}

    def lines(self) -> list[tuple[str, str]]:
        text = "no: keep it where the data is" if self.dropped is None else f"yes: {self.dropped.text()}"
        return [*self.summary.lines(), ("Shareable", text)]


def fit_and_save(
    model: "TASTE",
    fit: "Callable[[Cohort], TASTE]",
    cohort: Path,
    out: Path,
    *,
    overwrite: bool,
    include_patients: bool,
    shareable: bool,
) -> Saved:
    """Fit with the engine of `model` and save what `fit` returns; the checkpoint is removed at the end."""
    from phenotaste import TASTE, Cohort
    from phenotaste.cli.terminal import fit_progress
    from phenotaste.report import fit_summary

    if shareable and include_patients:
        raise InputError("--shareable excludes --include-patients.")
    assert model.checkpoint is not None
    with resume_hint(model.checkpoint):
        check_replaceable(out, overwrite, TASTE.load)
        # The limit also holds while the cohort is read and the model is saved.
        with nullcontext() if model.engine is None else model.engine.memory_limit():
            patients = Cohort.load(cohort)
            began = time.perf_counter()
            with fit_progress() as model.callback:
                fitted = fit(patients)
            summary = fit_summary(fitted, time.perf_counter() - began)
            dropped = fitted.save(out, include_patients=include_patients, shareable=shareable)
        model.checkpoint.remove()
    return Saved(fitted, summary, dropped)


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
