"""The patient step on a Dask cluster: `TASTE(engine=DaskEngine("tls://scheduler:8786", work="/shared/folder"))`."""

import hashlib
import os
import secrets
import shutil
import tempfile
import warnings
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from phenotaste.core.records import Shard, Weights
from phenotaste.engines.dask import tasks
from phenotaste.engines.dask.address import check_safe, full_address, host_of, is_here, security_of
from phenotaste.engines.dask.files import Folder, folder_of
from phenotaste.engines.dask.session import OURS, Cluster
from phenotaste.engines.threads import block_edges
from phenotaste.errors import InputError

PATIENCE = 300.0  # seconds that a cluster may be without any worker


class DaskEngine:
    """Fits on any dask.distributed cluster, bit for bit as on threads, whatever becomes of its workers.

    Parameters
    ----------
    cluster : a dask.distributed Client, a cluster object such as LocalCluster, or a scheduler's address.
    work : folder that this machine and all workers see under one name, or a URL that fsspec understands. Patients'
        data and courses are kept there while the fit runs. Needed unless all workers are on this machine.
    tls : folder with ca.pem, cert.pem and key.pem, or a distributed.Security; else Dask's own configuration.
    allow_plain : talk to other machines unencrypted.
    checkpoint : `phenotaste.engines.checkpoint.Checkpoint`, to go on after an interruption; needs `work`.
    keep : leave the files in `work` when the fit is over.
    patience : seconds for which the cluster may have no worker before the fit gives up.

    Examples
    --------
    >>> from distributed import LocalCluster
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.engines.dask import DaskEngine
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> here = TASTE(rank=4, max_iter=5, random_state=0).fit(cohort)
    >>> with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
    ...     there = TASTE(rank=4, max_iter=5, random_state=0, engine=DaskEngine(cluster)).fit(cohort)
    >>> bool((there.W_ == here.W_).all())
    True
    """

    def __init__(
        self,
        cluster: Any,
        work: str | os.PathLike[str] | None = None,
        *,
        tls: Any = None,
        allow_plain: bool = False,
        checkpoint: Any = None,
        keep: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self.cluster, self.work, self.tls = cluster, work, tls
        self.allow_plain, self.checkpoint = allow_plain, checkpoint
        self.keep, self.patience = keep, patience
        self._left: list[Cluster] = []  # closed, and their files still there

    def __deepcopy__(self, memo: Any) -> "DaskEngine":
        """Scikit-learn's clone copies what it does not know; a connection cannot be copied, but it can be shared."""
        return self

    def __repr__(self) -> str:
        return f"DaskEngine({self.cluster!r}, work={self.work!r})"

    def open(
        self,
        cohort: Any,
        aligned: Any,
        weights: Weights,
        rank: int,
        *,
        exact: bool = False,
        dtype: str = "float64",
        n_jobs: int | None = None,
    ) -> Cluster:
        """The patients of a fit, laid out for the cluster; `n_jobs` is the workers' affair."""
        at_end = ExitStack()
        try:
            client = self._connect(at_end)
            check_workers(client, self.allow_plain, self.patience)
            folder = self._folder(client, at_end)
            check_alike(client, folder)
            shard: Shard = aligned.shard
            edges = block_edges(shard, cohort.shape[1] + shard.static.shape[1], rank)
            job = tasks.Job(folder, self._run(), rank, exact, dtype, weights.lam)
            opened = Cluster(
                client,
                job,
                shard,
                weights,
                edges,
                patience=self.patience,
                at_end=lambda cluster: self._end(cluster, at_end),
            )
            opened.lay_out()
            return opened
        except BaseException:
            at_end.close()
            raise

    def finish(self) -> None:
        """Remove files that were left for a checkpoint, once nobody will go on from it.

        Examples
        --------
        >>> import os
        >>> from distributed import LocalCluster
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.engines.checkpoint import Checkpoint
        >>> from phenotaste.engines.dask import DaskEngine
        >>> kept = Checkpoint("kept", every=2, keep=True)
        >>> with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
        ...     engine = DaskEngine(cluster, work="work", checkpoint=kept)
        ...     model = TASTE(rank=4, max_iter=5, engine=engine).fit(simulate.recovery(n_patients=20)[0])
        ...     before = os.listdir("work")
        ...     engine.finish()
        >>> len(before) > 0, os.path.exists("work") and os.listdir("work")
        (True, False)
        """
        while self._left:
            self._left.pop().remove()

    def _end(self, cluster: Cluster, at_end: ExitStack) -> None:
        """Files stay only where they are asked for, or a checkpoint is there that needs them."""
        if self.checkpoint is not None and self.checkpoint.is_there():
            self._left.append(cluster)
        elif not self.keep:
            cluster.remove()
        at_end.close()

    def _run(self) -> str:
        """A name for the courses of this process; with a checkpoint, one by which later ones know them for theirs."""
        if self.checkpoint is None:
            return secrets.token_hex(8)
        if self.work is None:
            raise InputError(
                "A fit with checkpoints keeps its courses: name a folder for them with work=FOLDER."
            )
        fit = hashlib.sha256(os.path.realpath(self.checkpoint.folder).encode()).hexdigest()
        return fit[:OURS] + secrets.token_hex(8)[OURS:]

    def _connect(self, at_end: ExitStack) -> Any:
        """A client; only one that is made here is closed at the end."""
        distributed = need_distributed()
        cluster = self.cluster
        if isinstance(cluster, distributed.Client):
            if cluster.asynchronous or cluster.status != "running":
                raise InputError(
                    "The Dask client is asynchronous or closed: give one that waits and is connected."
                )
            check_safe(cluster.scheduler.address, self.allow_plain, "scheduler")
            return cluster
        address = getattr(cluster, "scheduler_address", cluster)
        if not isinstance(address, str):
            raise InputError(
                f"A cluster is a Dask client, a cluster object or an address, not {type(cluster).__name__}."
            )
        address = full_address(address, self.allow_plain, self.tls is not None)
        check_safe(address, self.allow_plain, "scheduler")
        security = getattr(cluster, "security", None) if cluster is not address else None
        security = security_of(security if self.tls is None else self.tls, address)
        try:
            client = distributed.Client(address, security=security, timeout="10s", set_as_default=False)
        except (OSError, TimeoutError, RuntimeError) as error:
            raise InputError(
                f"No Dask scheduler answered at {address}: check the address, that it runs, and its certificates."
            ) from error
        at_end.callback(close, client)
        return client

    def _folder(self, client: Any, at_end: ExitStack) -> Folder:
        """Where blocks and courses go: a folder of its own here, where everybody who works is here too."""
        if self.work is not None:
            return folder_of(self.work)
        if not all(is_here(host_of(address)) for address in workers_of(client)):
            raise InputError(
                "Some workers are on other machines: name a folder that all of them see, or an object store, with "
                "work=FOLDER (--work FOLDER)."
            )
        folder = tempfile.mkdtemp(prefix="phenotaste-")
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        return Folder(folder)


def need_distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            "A Dask cluster needs the package distributed: pip install 'phenotaste[dask]'."
        ) from error
    return distributed


def close(client: Any) -> None:
    """Without waiting for a scheduler that may be gone."""
    with suppress(Exception):
        client.close(timeout=2)


def workers_of(client: Any) -> list[str]:
    return list(client.scheduler_info(n_workers=-1)["workers"])


def check_workers(client: Any, allow_plain: bool, patience: float) -> None:
    """That there are workers, and that nobody listens to what they say to each other."""
    try:
        client.wait_for_workers(1, timeout=patience)
    except TimeoutError as error:
        raise InputError(
            f"The cluster had no worker for {patience:.0f} seconds: start workers, or wait longer (patience)."
        ) from error
    for address in workers_of(client):
        check_safe(address, allow_plain, "worker")


def check_alike(client: Any, folder: Folder) -> None:
    """That all workers see the folder and have this code; other processors may find other last digits."""
    mark = np.frombuffer(secrets.token_bytes(16), np.uint8)
    try:
        folder.make("probe")
        token = folder.write("probe/00000", {"mark": mark})
    except (OSError, ImportError, ValueError) as error:
        raise InputError(
            f"{folder.url} cannot be written to as the work folder: check the path or URL, the disk and your rights."
        ) from error
    try:
        found = list(client.run(tasks.probe, folder, token).values())
        mine = tasks.probe(folder, token)
    except Exception as error:
        raise InputError(
            "Some workers cannot run phenotaste: install the same version of it on every worker."
        ) from error
    finally:
        folder.remove([token])
        folder.tidy("probe")
    blind = sum(not worker["sees"] for worker in found)
    if blind:
        raise InputError(
            f"{blind} of {len(found)} workers do not see the work folder {folder.url}: choose a folder that every "
            "machine has under the same name, or an object store."
        )
    for what, where in (("code", "phenotaste"), ("numpy", "numpy"), ("numba", "numba")):
        if any(worker[what] != mine[what] for worker in found):
            raise InputError(
                f"Some workers have another version of {where}: install the same one everywhere."
            )
    if len({mine["processor"], *(worker["processor"] for worker in found)}) > 1:
        warnings.warn(
            "The machines have different processors: the fit is as good, but may differ in the last digits from one "
            "on machines that are alike.",
            stacklevel=4,
        )
