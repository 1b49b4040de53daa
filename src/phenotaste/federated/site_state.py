"""What a site keeps between rounds, in a folder that only its owner can read: courses, and the last answer."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.federated.messages import DIGEST, FEDERATION, is_whole
from phenotaste.federated.settings import Settings
from phenotaste.storage import tensors

KIND, STATE = "federated-site", "site"


class Start(NamedTuple):
    """A start's courses after its last step, and before it."""

    round: int  # of that step
    courses: Array
    before: Array


class SiteState(NamedTuple):
    federation: str
    site: str
    settings: Settings
    agreed: str | None  # digest of the columns and λ, once they are told
    cohort: str  # its fingerprint: sums over other patients next time would tell who came or went
    fewest: int  # columns of fewer patients are hidden
    promised: tuple[float, float] | None  # ε and δ
    noisy_rounds: int
    round: int  # the last one answered
    message: str  # digest of the message answered
    reply: bytes
    starts: dict[int, Start]


def is_there(path: Path) -> bool:
    return (path / STATE / tensors.MANIFEST).exists()


def save(path: Path, state: SiteState) -> None:
    """Replace what is there in one step: after a kill it is the old state or the new one."""
    meta = {
        "federation": state.federation,
        "site": state.site,
        "settings": state.settings.as_dict(),
        "agreed": state.agreed,
        "cohort": state.cohort,
        "fewest": state.fewest,
        "promised": state.promised,
        "noisy_rounds": state.noisy_rounds,
        "round": state.round,
        "message": state.message,
        "starts": {str(number): start.round for number, start in state.starts.items()},
    }
    courses = {f"courses.{number}": start.courses for number, start in state.starts.items()}
    courses |= {f"before.{number}": start.before for number, start in state.starts.items()}
    files = {"reply": {"content": np.frombuffer(state.reply, np.uint8)}, "courses": courses}
    os.chmod(path, 0o700)
    tensors.write(path / STATE, KIND, files, meta)


def load(path: Path) -> SiteState:
    files, meta = tensors.read(path / STATE, KIND, mmap=False)  # steps write over the courses
    try:
        return understood(files, meta)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(
            f"{path} is not the state of a site in a federated fit: give the folder that earlier steps made, or a "
            "new one."
        ) from None


def understood(files: dict[str, dict[str, Array]], meta: dict[str, Any]) -> SiteState:
    if not FEDERATION.fullmatch(meta["federation"]) or not DIGEST.fullmatch(meta["message"]):
        raise ValueError("digests")
    if not all(is_whole(meta[name]) for name in ("fewest", "noisy_rounds", "round")):
        raise ValueError("numbers")
    promised = meta["promised"]
    courses = files["courses"]
    starts = {
        int(number): Start(int(last), courses[f"courses.{number}"], courses[f"before.{number}"])
        for number, last in meta["starts"].items()
    }
    return SiteState(
        meta["federation"],
        meta["site"],
        Settings.read(meta["settings"]),
        meta["agreed"],
        meta["cohort"],
        meta["fewest"],
        None if promised is None else (float(promised[0]), float(promised[1])),
        meta["noisy_rounds"],
        meta["round"],
        meta["message"],
        files["reply"]["content"].tobytes(),
        starts,
    )
