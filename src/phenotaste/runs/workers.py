"""Worker processes that run tasks one after another, and end with their parent however it ends.

Parent and worker exchange lines of JSON: `run_workers` is the parent's side, `serve` the worker's.
"""

import importlib
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from phenotaste.errors import InputError

MAX_CRASHES = 3  # of workers in one run

Task = Any  # anything that JSON can carry
PrepareWorker = Callable[[dict[str, Any]], Callable[[Task], object]]


class Worker:
    """The parent's handle of a worker process."""

    def __init__(self, module: str, setup: Mapping[str, Any], threads: int) -> None:
        source = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        # Not multiprocessing, which runs the user's own script again in every worker.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from phenotaste.runs.workers import serve; serve({module!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)},
            # Ctrl-C signals the terminal's whole process group: workers are stopped by their parent instead.
            process_group=0 if os.name == "posix" else None,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.responses = self.process.stdin, self.process.stdout
        self.task: Task = None
        self._send(setup)

    def _send(self, request: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the end of the process is noticed when its responses are read
            self.requests.write(json.dumps(request).encode() + b"\n")
            self.requests.flush()

    def receive(self) -> dict[str, Any] | None:
        """Return the next response; None when the process has ended."""
        line = self.responses.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def assign(self, task: Task) -> None:
        self.task = task
        self._send({"task": task})

    def stop(self) -> None:
        self.process.kill()  # leaves at most an unfinished draft, which is removed when the run is resumed
        self.process.wait()
        for stream in (self.requests, self.responses):
            with suppress(BrokenPipeError):
                stream.close()


def run_workers(
    module: str,
    setup: Mapping[str, Any],
    tasks: Iterable[Task],
    *,
    jobs: int,
    threads: int,
    on_done: Callable[[Task], None],
) -> None:
    """Run all tasks in `jobs` processes of `threads` threads each.

    Parameters
    ----------
    module : the module whose `prepare_worker` makes, from `setup`, the function that runs a task.
    setup : what every process receives before its first task.
    on_done : called with each finished task.
    """
    pending = deque(tasks)
    workers: list[Worker] = []
    crashes = 0
    with selectors.DefaultSelector() as selector:

        def start() -> None:
            worker = Worker(module, setup, threads)
            workers.append(worker)
            selector.register(worker.responses, selectors.EVENT_READ, worker)

        def stop(worker: Worker) -> None:
            selector.unregister(worker.responses)
            workers.remove(worker)
            worker.stop()

        try:
            for _ in range(min(jobs, len(pending))):
                start()
            while workers:
                for key, _ in selector.select():
                    worker: Worker = key.data
                    response = worker.receive()
                    task, worker.task = worker.task, None
                    if response is None:
                        crashes += 1
                        if task is not None:
                            pending.appendleft(task)
                        stop(worker)
                        check_crashes(crashes)
                        start()
                        continue
                    check_response(response)
                    if "done" in response and task is not None:
                        on_done(task)
                    if pending:
                        worker.assign(pending.popleft())
                    else:
                        stop(worker)
        finally:
            for worker in workers:
                worker.stop()


def check_crashes(crashes: int) -> None:
    if crashes >= MAX_CRASHES:
        raise InputError(
            f"{crashes} worker processes ended before their work was done, most likely for lack of memory: use fewer "
            "jobs. Finished results are kept, and the run can be resumed."
        )


def check_response(response: Mapping[str, Any]) -> None:
    if "refused" in response:
        raise InputError(response["refused"])
    if "failed" in response:
        raise RuntimeError(f"a worker process failed with {response['failed']}")


def serve(module: str) -> None:
    """Run the tasks that the parent sends until it closes the pipe; exceptions are sent back to it.

    The process ends with its parent, even one that was killed: the system then closes the pipe.
    """
    responses = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries must not mix with the responses
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=read_requests, args=(requests,), daemon=True).start()

    def respond(**response: Any) -> None:
        print(json.dumps(response), file=responses, flush=True)

    try:
        prepare_worker: PrepareWorker = importlib.import_module(module).prepare_worker
        run_task = prepare_worker(requests.get())
        respond(ready=True)
        while True:
            run_task(requests.get()["task"])
            respond(done=True)
    except InputError as error:
        respond(refused=str(error))
    except MemoryError:
        respond(refused="There is not enough memory for this number of fits at a time: use fewer jobs.")
    except OSError as error:
        reason = (error.strerror or "the system refused").lower()
        respond(refused=f"A result could not be written: {reason}; check the disk, then resume the run.")
    except Exception as error:
        respond(failed=type(error).__name__)
        raise  # the traceback goes to standard error


def read_requests(requests: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)  # the parent has ended or needs nothing more: stop even in the middle of a task
