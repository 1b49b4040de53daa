"""Install packages into the environment of this Python, in the versions of constraints.txt; arguments as for pip.

uv does it in a quarter of pip's time. pip installs uv, and everything else where uv cannot: on a platform without
uv, or from an index that only pip is set up for.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

CONSTRAINTS = str(Path(__file__).parents[1] / "constraints.txt")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]


def pip_settings() -> dict[str, str]:
    """The settings of `pip install` from its files and the environment, each under its last name: `index-url`."""
    settings: dict[str, str] = {}
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout.splitlines()
    for section in ("global.", "install.", ":env:."):  # the later overrides the earlier, as in pip
        for line in listed:
            name, _, value = line.partition("=")
            if name.startswith(section):
                settings[name.removeprefix(section)] = value.strip("'\"")
    return settings


def uv_environment(settings: dict[str, str]) -> dict[str, str]:
    """uv reads none of pip's settings: without them it would pass over a hospital's own index and certificate."""
    environment = dict(os.environ)
    for name, variable in (("index-url", "UV_DEFAULT_INDEX"), ("cert", "SSL_CERT_FILE")):
        if settings.get(name):
            environment.setdefault(variable, settings[name])
    return environment


def with_uv(arguments: list[str]) -> bool:
    settings = pip_settings()
    if "no-index" in settings:  # pip is set up for a folder of wheels
        return False
    if find_spec("uv") is None:
        bootstrap = [*PIP, "install", "-q", "--only-binary=uv", "-c", CONSTRAINTS, "uv"]
        if subprocess.run(bootstrap, capture_output=True).returncode:
            return False
    command = [*UV, "-q", "-c", CONSTRAINTS, *arguments]
    return subprocess.run(command, env=uv_environment(settings), capture_output=True).returncode == 0


def main(arguments: list[str]) -> int:
    if with_uv(arguments):
        return 0
    print("uv cannot install here; pip does, which takes a minute longer.", flush=True)
    return subprocess.run([*PIP, "install", "-q", "--no-compile", "-c", CONSTRAINTS, *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
