"""Submits tasks to a Dask cluster until they succeed, and explains in a sentence when they cannot."""

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from phenotaste.core.kernels.sums import tree_reduce
from phenotaste.core.records import Model
from phenotaste.engines.dask import tasks
from phenotaste.engines.dask.files import DamagedFile
from phenotaste.errors import InputError

T = TypeVar("T")

RETRIES = 2  # of a failed task, by Dask itself
ATTEMPTS = 4  # after tasks lost their workers repeatedly, or read a damaged block
POLL_SECONDS = 5.0  # between two checks that the cluster still has workers


class TaskRunner:
    """Runs pure tasks on whatever workers the cluster has: after a failure they are simply submitted again.

    Parameters
    ----------
    patience : seconds for which the cluster may have no worker.
    repair : called with a damaged file, and whether this was the last attempt.
    """

    def __init__(
        self, client: Any, job: tasks.Job, patience: float, repair: Callable[[DamagedFile, bool], None]
    ) -> None:
        self.client, self.job, self.patience, self.repair = client, job, patience, repair

    def map(
        self, task: Callable[..., T], *arguments: Sequence[Any], model: Model | None = None, **common: Any
    ) -> list[T]:
        """The results of a task for each tuple of arguments."""
        return self._retry(lambda: self.map_once(task, *arguments, model=model, **common))

    def map_once(
        self, task: Callable[..., T], *arguments: Sequence[Any], model: Model | None = None, **common: Any
    ) -> list[T]:
        """The same, without repairing damaged files."""
        return [self._result(future) for future in self._submit(task, *arguments, model=model, **common)]

    def reduce(
        self,
        task: Callable[..., T],
        add: Callable[[T, T], T],
        *arguments: Sequence[Any],
        model: Model,
        **common: Any,
    ) -> T:
        """The sum of the tasks' results, added on the cluster in the fixed order of `tree_reduce`."""

        def attempt() -> T:
            token = secrets.token_hex(16)
            leaves = self._submit(task, *arguments, model=model, **common)
            nodes = iter(range(len(leaves)))

            def plus(left: Any, right: Any) -> Any:
                key = f"phenotaste-{add.__name__}-{token}-{next(nodes)}"
                return self.client.submit(add, left, right, key=key, retries=RETRIES)

            result: T = self._result(tree_reduce(leaves, plus))
            return result

        return self._retry(attempt)

    def _submit(
        self, task: Callable[..., Any], *arguments: Sequence[Any], model: Model | None, **common: Any
    ) -> list[Any]:
        token = secrets.token_hex(16)
        if model is not None:
            # A task of its own: so the model is sent once to each worker, and can be recomputed.
            key = f"phenotaste-model-{token}"
            common["model"] = self.client.submit(tasks.identity, model, key=key, retries=RETRIES)
        keys = [f"phenotaste-{task.__name__}-{token}-{n}" for n in range(len(arguments[0]))]
        options = {"key": keys, "retries": RETRIES, "pure": False}
        return list(self.client.map(task, *arguments, job=self.job, **common, **options))

    def _retry(self, attempt: Callable[[], T]) -> T:
        from distributed import KilledWorker

        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                return attempt()
            except KilledWorker as error:
                if not attempts_left:
                    raise InputError(
                        "Worker processes kept dying in the same task, usually out of memory: give each worker "
                        "more memory or fewer threads, and resume from the checkpoint."
                    ) from error
            except DamagedFile as error:
                self.repair(error, not attempts_left)
            except OSError as error:
                if self.client.status != "running":
                    raise scheduler_lost() from error
                raise InputError(
                    f"The work folder {self.job.folder.url} cannot be used: {error.strerror or error}; check "
                    "the disk, and resume from the checkpoint."
                ) from error
        raise AssertionError

    def _result(self, future: Any) -> Any:
        """The result of a task, however long it takes, unless the cluster loses its scheduler or all workers."""
        idle = 0.0
        while True:
            try:
                return future.result(timeout=POLL_SECONDS)
            except CancelledError as error:
                raise scheduler_lost() from error
            except TimeoutError:
                if future.done():
                    return future.result()
            if self.client.status != "running":
                raise scheduler_lost()
            idle = 0.0 if self.client.scheduler_info()["workers"] else idle + POLL_SECONDS
            if idle > self.patience:
                raise InputError(
                    f"The cluster has had no worker for {idle:.0f} seconds: start workers, and resume from the "
                    "checkpoint."
                )


def scheduler_lost() -> InputError:
    return InputError(
        "The connection to the Dask scheduler was lost: restart the cluster, and resume from the last checkpoint "
        "(--resume)."
    )
