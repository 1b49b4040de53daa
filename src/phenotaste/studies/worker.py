"""One cell done and kept; and a process that does those it is told of, as lines of JSON, like a selection's worker."""

import platform
import queue
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from phenotaste.runs.resources import affinity_cores, available_cores, processor_name, timed
from phenotaste.selection.worker import serve
from phenotaste.studies.results import Folder
from phenotaste.studies.study import Cell, Options, Row, Study, Work, load

PACKAGES = ("phenotaste", "numpy", "scipy", "numba", "scikit-learn")


def environment(threads: int | None) -> Row:
    """Cores, processor and versions that times depend on; nothing that identifies the computer."""
    return {
        "cores": affinity_cores(),
        "threads": available_cores() if threads is None else threads,
        "processor": processor_name(),
        "versions": versions(),
    }


def versions() -> str:
    installed = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            installed.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(installed)


def run_cell(study: Study, cell: Cell, work: Work, folder: Folder) -> None:
    """Do a cell and put it on disk, with what it took and on what."""
    if work.folder is not None and hasattr(study, "FILES"):
        work.folder.mkdir(parents=True, exist_ok=True)
    with timed() as taken:
        found = study.run(cell, work)
    rows = found if isinstance(found, list) else [found]
    facts = {f"cell_{name}": value for name, value in taken.items()} | environment(work.threads)
    folder.keep(cell, rows, facts)


def main() -> None:
    serve(work)


def work(orders: "queue.Queue[dict[str, Any]]", say: Any) -> None:
    first = orders.get()
    study, options = load(first["study"]), Options(**first["options"])
    folder = Folder(Path(first["folder"]))
    say(ready=True)
    while True:
        cell = orders.get()["task"]
        run_cell(study, cell, Work(options, first["threads"], folder.workplace(cell)), folder)
        say(done=True)


def first_order(name: str, folder: Path, options: Options, threads: int | None) -> dict[str, Any]:
    return {"study": name, "folder": str(folder), "options": asdict(options), "threads": threads}
