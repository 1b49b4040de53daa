"""Addresses of Dask clusters, and the encryption of connections: sums over patients and task code travel on them."""

import os
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from phenotaste.errors import InputError

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
