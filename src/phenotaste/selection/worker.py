"""A process that fits what it is told. It reads tasks as lines of JSON and answers each with one.

The cohort is memory-mapped, so that all workers look at the same pages. A worker ends with its parent, even one that
was killed: then nothing holds the other end of its input any more.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phenotaste.errors import InputError
from phenotaste.selection.grid import Fitting, Task


def main() -> None:
    serve(work)


def serve(work: Callable[["queue.Queue[dict[str, Any]]", Any], None]) -> None:
    """Answer orders until the parent is gone; what goes wrong is answered too."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library might print must not end up among the answers
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=listen, args=(orders,), daemon=True).start()
    say = lambda **answer: print(json.dumps(answer), file=answers, flush=True)  # noqa: E731
    try:
        work(orders, say)
    except InputError as error:
        say(refused=str(error))
    except MemoryError:
        say(refused="There is not enough memory for so many fits at once: use fewer jobs.")
    except OSError as error:
        reason = (error.strerror or "the system refused").lower()
        say(refused=f"A fit could not be kept: {reason}; check the disk, and go on with what is finished.")
    except Exception as error:
        say(failed=type(error).__name__)
        raise  # its own standard error has the details


def listen(orders: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin.buffer:
        orders.put(json.loads(line))
    os._exit(0)  # the parent is gone or needs no more: also out of a long fit


def work(orders: "queue.Queue[dict[str, Any]]", say: Any) -> None:
    first = orders.get()
    from phenotaste.cohort import Cohort
    from phenotaste.cohort.align import cohort_digest
    from phenotaste.selection.fits import run_task
    from phenotaste.selection.folder import Folder

    cohort = Cohort.load(first["cohort"], mmap=True)
    if cohort_digest(cohort) != first["fingerprint"]:
        raise InputError(f"{first['cohort']} was changed while it was being worked on: begin again.")
    fitting, folder = Fitting(**first["fitting"]), Folder(Path(first["folder"]))
    say(ready=True)
    while True:
        task = Task(*orders.get()["task"])
        folder.keep(task, run_task(cohort, task, fitting, first["threads"]))
        say(done=task.name)


def first_order(cohort: Path, digest: str, folder: Path, fitting: Fitting, threads: int) -> dict[str, Any]:
    return {
        "cohort": str(cohort),
        "fingerprint": digest,
        "folder": str(folder),
        "fitting": asdict(fitting),
        "threads": threads,
    }
