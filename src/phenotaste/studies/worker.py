"""One cell done and kept; and a process that does those it is told of, as lines of JSON, like a selection's worker."""

import queue
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phenotaste.selection.worker import serve
from phenotaste.studies.folder import Folder
from phenotaste.studies.machine import describe, timed
from phenotaste.studies.study import Cell, Options, Study, Work, load


def run_cell(study: Study, cell: Cell, work: Work, folder: Folder) -> None:
    """Do a cell and put it on disk, with what it took and on what."""
    if work.folder is not None and hasattr(study, "FILES"):
        work.folder.mkdir(parents=True, exist_ok=True)
    with timed() as taken:
        found = study.run(cell, work)
    rows = found if isinstance(found, list) else [found]
    facts = {f"cell_{name}": value for name, value in taken.items()} | describe(work.threads)
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
