"""The engine that fits on a Dask cluster, its addresses, and the encryption of its connections."""

import os
import secrets
import shutil
import socket
import tempfile
import warnings
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from phenotaste.core.records import Shard, Weights
from phenotaste.engines.base import Engine
from phenotaste.engines.dask import tasks
from phenotaste.engines.dask.files import WorkFolder, work_folder
from phenotaste.engines.dask.session import ClusterOptions, DaskSession
from phenotaste.engines.partition import block_edges
from phenotaste.errors import InputError

PATIENCE = 300.0  # seconds for which a cluster may have no worker


class DaskEngine(Engine):
    """A dask.distributed cluster: the result is that of threads, to the bit, even if workers are lost.

    Parameters
    ----------
    cluster : a dask.distributed Client, a cluster object such as LocalCluster, or a scheduler's address.
    work : folder that this machine and all workers see under one name, or a URL that fsspec understands. It holds
        patient data and courses while the fit runs. Required unless all workers are on this machine.
    tls : folder with ca.pem, cert.pem and key.pem, or a distributed.Security; by default Dask's own configuration.
    allow_plain : allow unencrypted connections to other machines.
    keep : keep the files in `work` when the fit is over.
    patience : seconds for which the cluster may have no worker before the fit fails.

    Examples
    --------
    >>> from distributed import LocalCluster
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.engines import DaskEngine
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> local = TASTE(rank=4, max_iter=5, n_init=1, random_state=0).fit(cohort)
    >>> with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
    ...     remote = TASTE(rank=4, max_iter=5, n_init=1, random_state=0, engine=DaskEngine(cluster)).fit(cohort)
    >>> bool((remote.W_ == local.W_).all())
    True
    """

    def __init__(
        self,
        cluster: Any,
        work: str | os.PathLike[str] | None = None,
        *,
        tls: Any = None,
        allow_plain: bool = False,
        keep: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self.cluster, self.work, self.tls = cluster, work, tls
        self.allow_plain, self.keep, self.patience = allow_plain, keep, patience

    def __deepcopy__(self, memo: object) -> "DaskEngine":
        """Scikit-learn's clone deep-copies parameters; a connection cannot be copied, but it can be shared."""
        return self

    def __repr__(self) -> str:
        return f"DaskEngine({self.cluster!r}, work={self.work!r})"

    def open(
        self,
        shard: Shard,
        weights: Weights,
        rank: int,
        n_features: int,
        *,
        exact: bool = False,
        dtype: str = "float64",
        n_jobs: int | None = None,
    ) -> DaskSession:
        """A session over the patients, written to the work folder; `n_jobs` is ignored, the workers decide."""
        stack = ExitStack()
        try:
            client = self._connect(stack)
            check_workers(client, self.allow_plain, self.patience)
            folder = self._folder(client, stack)
            check_same_versions(client, folder)
            session = DaskSession(
                client,
                tasks.Job(folder, secrets.token_hex(8), rank, n_features, exact, dtype, *weights[:3]),
                shard,
                weights,
                block_edges(shard, n_features + shard.static.shape[1], rank),
                ClusterOptions(self.patience, self.work is not None, self.keep),
                stack.close,
            )
            session.write_blocks()
            return session
        except BaseException:
            stack.close()
            raise

    def _connect(self, stack: ExitStack) -> Any:
        """A client; one that is created here is closed with the session."""
        distributed = import_distributed()
        cluster = self.cluster
        if isinstance(cluster, distributed.Client):
            if cluster.asynchronous or cluster.status != "running":
                raise InputError(
                    "The Dask client is asynchronous or closed: pass a synchronous client that is connected."
                )
            check_encrypted(cluster.scheduler.address, self.allow_plain, "scheduler")
            return cluster
        address = getattr(cluster, "scheduler_address", cluster)
        if not isinstance(address, str):
            raise InputError(
                f"A cluster is a Dask client, a cluster object or an address, not {type(cluster).__name__}."
            )
        address = full_address(address, self.allow_plain, self.tls is not None)
        check_encrypted(address, self.allow_plain, "scheduler")
        security = getattr(cluster, "security", None) if cluster is not address else None
        security = security_of(security if self.tls is None else self.tls, address)
        try:
            client = distributed.Client(address, security=security, timeout="10s", set_as_default=False)
        except (OSError, TimeoutError, RuntimeError) as error:
            raise InputError(
                f"No Dask scheduler answered at {address}: check the address, that it runs, and its certificates."
            ) from error
        stack.callback(close_client, client)
        return client

    def _folder(self, client: Any, stack: ExitStack) -> WorkFolder:
        """The folder for blocks and U: a temporary one if all workers are on this machine."""
        if self.work is not None:
            return work_folder(self.work)
        if not all(is_local(host_of(address)) for address in workers_of(client)):
            raise InputError(
                "Some workers are on other machines: name a folder that all of them see, or an object store, with "
                "work=FOLDER (--work FOLDER)."
            )
        folder = tempfile.mkdtemp(prefix="phenotaste-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return WorkFolder(folder)


def import_distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            "A Dask cluster needs the package distributed: pip install 'phenotaste[dask]'."
        ) from error
    return distributed


def close_client(client: Any) -> None:
    """Close without waiting for a scheduler that may be gone."""
    with suppress(Exception):
        client.close(timeout=2)


def workers_of(client: Any) -> list[str]:
    return list(client.scheduler_info(n_workers=-1)["workers"])


def check_workers(client: Any, allow_plain: bool, patience: float) -> None:
    """Check that there are workers, and that connections between them are encrypted."""
    try:
        client.wait_for_workers(1, timeout=patience)
    except TimeoutError as error:
        raise InputError(
            f"The cluster had no worker for {patience:.0f} seconds: start workers, or wait longer (patience)."
        ) from error
    for address in workers_of(client):
        check_encrypted(address, allow_plain, "worker")


def check_same_versions(client: Any, folder: WorkFolder) -> None:
    """Check that all workers see the folder and run this code; other processors may give other last digits."""
    content = np.frombuffer(secrets.token_bytes(16), np.uint8)
    try:
        folder.make("probe")
        token = folder.write("probe/00000", {"content": content})
    except (OSError, ImportError, ValueError) as error:
        raise InputError(
            f"The work folder {folder.url} cannot be written to: check the path or URL, the disk and the permissions."
        ) from error
    try:
        workers = list(client.run(tasks.probe, folder, token).values())
        local = tasks.probe(folder, token)
    except Exception as error:
        raise InputError(
            "Some workers cannot run phenotaste: install the same version of it on every worker."
        ) from error
    finally:
        folder.remove([token])
        folder.remove_empty("probe")
    blind = sum(not worker["sees"] for worker in workers)
    if blind:
        raise InputError(
            f"{blind} of {len(workers)} workers do not see the work folder {folder.url}: choose a folder that every "
            "machine has under the same name, or an object store."
        )
    for what, package in (("code", "phenotaste"), ("numpy", "numpy"), ("numba", "numba")):
        if any(worker[what] != local[what] for worker in workers):
            raise InputError(
                f"Some workers have another version of {package}: install the same one everywhere."
            )
    if len({local["processor"], *(worker["processor"] for worker in workers)}) > 1:
        warnings.warn(
            "The machines have different processors: the result may differ in the last digits from that of equal "
            "machines.",
            stacklevel=4,
        )


ENCRYPTED = ("tls", "wss")
IN_PROCESS = "inproc"
CERTIFICATES = ("ca.pem", "cert.pem", "key.pem")


def full_address(address: str, allow_plain: bool, encrypted: bool) -> str:
    """`dask://host:port` or `host:port` as Dask writes it; encrypted, except on this machine or if plain is allowed."""
    scheme, _, rest = address.rpartition("://")
    if scheme not in ("", "dask"):
        return address.removeprefix("dask://")
    host = host_of(f"tcp://{rest}")
    try:
        port = urlsplit(f"tcp://{rest}").port
    except ValueError:
        port = None
    if not host or port is None:
        raise InputError(
            f"{address} is not the address of a Dask scheduler: write it as dask://HOST:PORT, for example "
            "dask://login1:8786."
        )
    plain = not encrypted and (allow_plain or is_local(host))
    return f"{'tcp' if plain else 'tls'}://{rest}"


def check_encrypted(address: str, allow_plain: bool, role: str) -> None:
    """Refuse an unencrypted connection to another machine."""
    scheme = address.partition("://")[0]
    if allow_plain or scheme in (*ENCRYPTED, IN_PROCESS) or is_local(host_of(address)):
        return
    raise InputError(
        f"The connection to the {role} at {address}, on another machine, would be unencrypted: start the cluster with "
        "certificates and a tls:// address (docs/cluster.md), or, on a network that you trust, set "
        "allow_plain=True (--insecure)."
    )


def host_of(address: str) -> str:
    return urlsplit(address).hostname or ""


def is_local(host: str) -> bool:
    """Whether a host name or address is one of this machine's: a socket can be bound to those only."""
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(addresses) and all(is_bindable(str(number)) for number in addresses)


def is_bindable(number: str) -> bool:
    if ip_address(number.partition("%")[0]).is_loopback:
        return True
    family = socket.AF_INET6 if ":" in number else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((number, 0))
    except OSError:
        return False
    return True


def security_of(tls: Any, address: str) -> Any:
    """Dask's Security from a folder of certificates, from the user's object, or from Dask's own configuration."""
    from distributed.security import Security

    if isinstance(tls, (str, os.PathLike)):
        folder = Path(tls)
        missing = [name for name in CERTIFICATES if not (folder / name).is_file()]
        if missing:
            raise InputError(
                f"{folder} lacks {', '.join(missing)}: a folder of certificates has {', '.join(CERTIFICATES)} "
                "(docs/cluster.md says how to create them)."
            )
        authority, certificate, key = (str(folder / name) for name in CERTIFICATES)
        return Security(
            tls_ca_file=authority,
            tls_client_cert=certificate,
            tls_client_key=key,
            require_encryption=True,
        )
    if tls is None:
        tls = Security()
    if address.startswith("tls://") and not tls.tls_ca_file:
        raise InputError(
            f"{address} is encrypted and no certificates were given: name the folder that has "
            f"{', '.join(CERTIFICATES)} with tls=FOLDER (--tls FOLDER)."
        )
    return tls
