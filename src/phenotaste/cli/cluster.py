"""`--engine dask://HOST:PORT`: a fit on a cluster, from the command line."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from phenotaste.engines.checkpoint import Checkpoint
    from phenotaste.engines.dask import DaskEngine


def cluster_engine(
    address: str, store: str | None, checkpoint: "Checkpoint", tls: Path | None, insecure: bool
) -> "DaskEngine":
    """The engine that the options name; work files lie beside the checkpoints, or in an object store."""
    from phenotaste.engines.dask.engine import DaskEngine, need_distributed

    if not address.startswith(("dask://", "tcp://", "tls://")):  # the last two are what Dask itself prints
        raise typer.BadParameter("write it as dask://HOST:PORT, or as Dask prints it", param_hint="--engine")
    need_distributed()
    keep_quiet()
    return DaskEngine(
        address, store or checkpoint.folder, tls=tls, allow_plain=insecure, checkpoint=checkpoint
    )


def keep_quiet() -> None:
    """What goes wrong is said in a sentence; Dask would print the way there, line by line."""
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in ("distributed", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
