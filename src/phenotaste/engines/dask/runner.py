"""Tasks handed to a Dask cluster until they are done, and what is said where they cannot be."""

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from phenotaste.core.kernels.sums import tree_reduce
from phenotaste.core.records import Model
from phenotaste.engines.dask import tasks
from phenotaste.engines.dask.files import Damaged
from phenotaste.errors import InputError

T = TypeVar("T")

RETRIES = 2  # of a task that failed, by Dask itself
ATTEMPTS = 4  # at work that lost its workers again and again, or found a block damaged
LOOK = 5.0  # seconds between two looks at whether anybody is still working


class Crew:
    """Whoever works at the cluster now. Tasks are pure: what went wrong is simply done again, a few times."""

    def __init__(
        self, client: Any, job: tasks.Job, patience: float, mend: Callable[[Damaged, bool], None]
    ) -> None:
        self.client, self.job, self.patience, self.mend = client, job, patience, mend

    def each(
        self, task: Callable[..., T], *arguments: Sequence[Any], model: Model | None = None, **same: Any
    ) -> list[T]:
        """A task for each of the arguments, and what they return."""
        return self._until_done(lambda: self.once(task, *arguments, model=model, **same))

    def once(
        self, task: Callable[..., T], *arguments: Sequence[Any], model: Model | None = None, **same: Any
    ) -> list[T]:
        """The same, where damaged files are not mended on the way."""
        return [self._result(future) for future in self._submit(task, *arguments, model=model, **same)]

    def tree(
        self,
        task: Callable[..., T],
        add: Callable[[T, T], T],
        *arguments: Sequence[Any],
        model: Model,
        **same: Any,
    ) -> T:
        """A task for each, and their results added up in the one order, all of it on the cluster."""

        def attempt() -> T:
            token = secrets.token_hex(16)
            leaves = self._submit(task, *arguments, model=model, **same)
            nodes = iter(range(len(leaves)))

            def plus(left: Any, right: Any) -> Any:
                key = f"phenotaste-{add.__name__}-{token}-{next(nodes)}"
                return self.client.submit(add, left, right, key=key, retries=RETRIES)

            found: T = self._result(tree_reduce(leaves, plus))
            return found

        return self._until_done(attempt)

    def _submit(
        self, task: Callable[..., Any], *arguments: Sequence[Any], model: Model | None, **same: Any
    ) -> list[Any]:
        token = secrets.token_hex(16)
        if model is not None:
            # A task of its own: so it goes over the network once for each worker, and can be had again.
            key = f"phenotaste-model-{token}"
            same["model"] = self.client.submit(tasks.same, model, key=key, retries=RETRIES)
        keys = [f"phenotaste-{task.__name__}-{token}-{n}" for n in range(len(arguments[0]))]
        options = {"key": keys, "retries": RETRIES, "pure": False}
        return list(self.client.map(task, *arguments, job=self.job, **same, **options))

    def _until_done(self, attempt: Callable[[], T]) -> T:
        from distributed import KilledWorker

        for left in reversed(range(ATTEMPTS)):
            try:
                return attempt()
            except KilledWorker as error:
                if not left:
                    raise InputError(
                        "Worker processes kept ending under the same piece of work, most often for want of memory: "
                        "give each worker more memory or fewer threads, and go on from the checkpoint."
                    ) from error
            except Damaged as error:
                self.mend(error, not left)
            except OSError as error:
                if self.client.status != "running":
                    raise scheduler_lost() from error
                raise InputError(
                    f"The work folder {self.job.folder.url} cannot be used: {error.strerror or error}; look after "
                    "the disk, and go on from the checkpoint."
                ) from error
        raise AssertionError

    def _result(self, future: Any) -> Any:
        """What a task returned, however long it takes; but not from a cluster without workers or scheduler."""
        idle = 0.0
        while True:
            try:
                return future.result(timeout=LOOK)
            except CancelledError as error:
                raise scheduler_lost() from error
            except TimeoutError:
                if future.done():
                    return future.result()
            if self.client.status != "running":
                raise scheduler_lost()
            idle = 0.0 if self.client.scheduler_info()["workers"] else idle + LOOK
            if idle > self.patience:
                raise InputError(
                    f"The cluster has had no worker for {idle:.0f} seconds: start workers, and go on from the "
                    "checkpoint."
                )


def scheduler_lost() -> InputError:
    return InputError(
        "The connection to the Dask scheduler was lost: start the cluster again, and go on from the last checkpoint "
        "(--resume)."
    )
