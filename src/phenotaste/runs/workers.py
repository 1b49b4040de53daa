"""Worker processes: started, given one task after another, and ended with whoever hired them, whatever ends that."""

import json
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from phenotaste.errors import InputError

MOST_DEATHS = 3  # of workers, in one run, before it is given up

Task = Any  # whatever JSON can carry; the module in which workers begin knows what to do with it


class Worker:
    def __init__(self, first_order: dict[str, Any], threads: int, entry: str) -> None:
        home = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        # Not multiprocessing: that would run the user's own script once more in every worker.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {entry} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)},
            # Ctrl-C goes to all processes of a group: workers are ended by us, not by the terminal.
            process_group=0 if os.name == "posix" else None,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.orders, self.answers = self.process.stdin, self.process.stdout
        self.task: Task = None
        self.send(first_order)

    def send(self, order: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # its end is noticed where its answers are read
            self.orders.write(json.dumps(order).encode() + b"\n")
            self.orders.flush()

    def answer(self) -> dict[str, Any] | None:
        """The next answer; None when the worker has ended."""
        line = self.answers.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def give(self, task: Task) -> None:
        self.task = task
        self.send({"task": task})

    def end(self) -> None:
        self.process.kill()  # at most an unfinished draft is left, and that is swept
        self.process.wait()
        for stream in (self.orders, self.answers):
            with suppress(BrokenPipeError):
                stream.close()


def run_crew(
    tasks: Iterable[Task],
    first_order: dict[str, Any],
    *,
    jobs: int,
    threads: int,
    done: Callable[[Task], None],
    entry: str = "phenotaste.selection.worker",
) -> None:
    """Have all tasks done by `jobs` processes of `threads` threads each; calls `done` after each one.

    `entry` is the module whose `main` is run in them.
    """
    todo = deque(tasks)
    workers: list[Worker] = []
    deaths = 0
    with selectors.DefaultSelector() as answers:

        def hire() -> None:
            worker = Worker(first_order, threads, entry)
            workers.append(worker)
            answers.register(worker.answers, selectors.EVENT_READ, worker)

        def dismiss(worker: Worker) -> None:
            answers.unregister(worker.answers)
            workers.remove(worker)
            worker.end()

        try:
            for _ in range(min(jobs, len(todo))):
                hire()
            while workers:
                for key, _ in answers.select():
                    worker: Worker = key.data
                    answer = worker.answer()
                    finished, worker.task = worker.task, None
                    if answer is None:
                        deaths += 1
                        if finished is not None:
                            todo.appendleft(finished)
                        dismiss(worker)
                        give_up_after(deaths)
                        hire()
                        continue
                    if "refused" in answer:
                        raise InputError(answer["refused"])
                    if "failed" in answer:
                        raise RuntimeError(f"a worker process failed with {answer['failed']}")
                    if "done" in answer and finished is not None:
                        done(finished)
                    if todo:
                        worker.give(todo.popleft())
                    else:
                        dismiss(worker)
        finally:
            for worker in workers:
                worker.end()


def give_up_after(deaths: int) -> None:
    if deaths >= MOST_DEATHS:
        raise InputError(
            f"{deaths} worker processes ended before their work was done, most likely for want of memory: use fewer "
            "jobs. What is finished is kept, and can be gone on with."
        )
