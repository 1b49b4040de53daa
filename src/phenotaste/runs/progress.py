"""Progress of a run: what is done, and the time left, estimated from the cost of the tasks and the time so far."""

import time
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

Task = TypeVar("Task")


class Progress(NamedTuple, Generic[Task]):
    """What a callback receives after each task, and during a long one.

    Examples
    --------
    >>> from phenotaste.runs.progress import Progress
    >>> Progress(done=3, total=4, task="fit 3", fraction=0.5, seconds_left=60.0).fraction
    0.5
    """

    done: int  # tasks, those of earlier runs included
    total: int
    task: Task  # the last one
    fraction: float  # of the work of this run, by cost
    seconds_left: float


class Reporter(Generic[Task]):
    """Count finished tasks and report them to a callback.

    Examples
    --------
    >>> from phenotaste.runs.progress import Reporter
    >>> reports = []
    >>> reporter = Reporter(["short", "longer"], len, reports.append, finished=1)
    >>> reporter.update("short", 0.2)
    >>> reporter.done("short")
    >>> [(report.done, report.total, round(report.fraction, 2)) for report in reports]
    [(1, 3, 0.09), (2, 3, 0.45)]
    """

    def __init__(
        self,
        pending: Iterable[Task],
        cost: Callable[[Task], float],
        callback: Callable[[Progress[Task]], object] | None = None,
        *,
        finished: int = 0,
        later: int = 0,
    ) -> None:
        """`finished` tasks were done by earlier runs; `later` tasks follow, whose cost is not known yet."""
        self.cost, self.callback = cost, callback
        costs = [cost(task) for task in pending]
        self.n_done, self.total = finished, finished + len(costs) + later
        self.cost_total = sum(costs) * (1 + later / max(len(costs), 1))
        self.cost_done = 0.0
        self.started = time.monotonic()

    def done(self, task: Task) -> None:
        """Report a finished task."""
        self.n_done += 1
        self.cost_done += self.cost(task)
        self._report(task, self.cost_done)

    def update(self, task: Task, fraction: float) -> None:
        """Report that this fraction of a task is done."""
        self._report(task, self.cost_done + fraction * self.cost(task))

    def _report(self, task: Task, cost_done: float) -> None:
        if self.callback is not None and cost_done > 0:
            remaining = max(self.cost_total - cost_done, 0.0)
            seconds_left = (time.monotonic() - self.started) * remaining / cost_done
            fraction = min(cost_done / self.cost_total, 1.0)
            self.callback(Progress(self.n_done, self.total, task, fraction, seconds_left))
