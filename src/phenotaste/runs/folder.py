"""The folder of a run: settings that a resumed run has to share, one file for each finished task, and the results."""

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from phenotaste.errors import InputError
from phenotaste.storage.atomic import remove_stale_files, write_file
from phenotaste.storage.locks import exclusive_folder

SETTINGS = "settings.json"
FORMAT = 1

Task = TypeVar("Task")
Result = TypeVar("Result")


class RunSettings(NamedTuple):
    """What decides whether an earlier run can be resumed."""

    version: str  # of the library
    identity: Mapping[str, Any]  # what the results belong to, such as the digest of a cohort
    settings: Mapping[str, Any]


class RunFolder(ABC, Generic[Task, Result]):
    """The folder of a run; every file in it is complete at any moment.

    A kind of run is a subclass: it names its tasks' files and encodes their results. Where settings may change when
    a run is resumed, it overrides `check_settings`.
    """

    kind: str  # of run, in messages
    results_name: str  # of the folder for finished tasks

    def __init__(self, path: Path, *, private: bool = False) -> None:
        """With `private`, only the owner can read the results of tasks."""
        self.path, self.results, self.private = path, path / self.results_name, private

    @abstractmethod
    def file_name(self, task: Task) -> str: ...

    @abstractmethod
    def encode(self, task: Task, result: Result) -> bytes: ...

    @abstractmethod
    def decode(self, task: Task, content: bytes) -> Result:
        """Return the result; raise ValueError or KeyError for bytes that `encode` has not made for this task."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other runs from this folder."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: choose another folder for the {self.kind}.")
        in_use = f"{self.path} is in use by another process: wait until it ends, or choose another folder."
        with exclusive_folder(self.path, in_use):
            yield

    def open(self, run: RunSettings, *, resume: bool) -> None:
        """Create the folder, or check that it holds this run; results of another run are never overwritten."""
        record = {"format": FORMAT, "kind": self.kind, **run._asdict()}
        current: dict[str, Any] = json.loads(json.dumps(record))
        if self.path.is_dir() and any(self.path.iterdir()):
            self._check_resumable(current, resume)
        self.path.mkdir(parents=True, exist_ok=True)
        self.results.mkdir(exist_ok=True, mode=0o700 if self.private else 0o777)
        for folder in (self.path, self.results):
            remove_stale_files(folder)
        self.write(SETTINGS, json.dumps(current, indent=1) + "\n")

    def _check_resumable(self, current: dict[str, Any], resume: bool) -> None:
        recorded = self._recorded()
        if recorded is None:
            raise InputError(
                f"{self.path} contains files that are not from a {self.kind}: choose another folder."
            )
        other = differing(recorded["identity"], current["identity"])
        if other:
            raise InputError(
                f"{self.path} holds other results (different {' and '.join(other)}): choose another folder."
            )
        if not resume:
            raise InputError(
                f"{self.path} already holds this {self.kind}: resume it (--resume, or resume=True), or choose another "
                "folder."
            )
        if recorded["version"] != current["version"]:
            raise InputError(
                f"{self.path} was started with phenotaste {recorded['version']}: finish it with that version, or "
                "choose another folder."
            )
        self.check_settings(recorded["settings"], current["settings"])

    def check_settings(self, recorded: dict[str, Any], current: dict[str, Any]) -> None:
        """Raise InputError where settings are not those that the run was started with."""
        changed = differing(recorded, current)
        if changed:
            raise InputError(
                f"{self.path} was started with different settings ({', '.join(changed)}): resume it with the same "
                "ones, or choose another folder."
            )

    def _recorded(self) -> dict[str, Any] | None:
        """Return the settings in the folder; None if it is not the folder of such a run."""
        try:
            recorded = json.loads((self.path / SETTINGS).read_bytes())
            known = (recorded["format"], recorded["kind"]) == (FORMAT, self.kind)
            records = isinstance(recorded["identity"], dict) and isinstance(recorded["settings"], dict)
            return recorded if known and records and "version" in recorded else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def result_path(self, task: Task) -> Path:
        return self.results / self.file_name(task)

    def save(self, task: Task, result: Result) -> None:
        write_file(self.result_path(task), self.encode(task, result), private=self.private)

    def load(self, task: Task) -> Result | None:
        """Return the result of a finished task; None if its file is missing or damaged."""
        try:
            return self.decode(task, self.result_path(task).read_bytes())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def load_all(self, tasks: Iterable[Task]) -> dict[Task, Result]:
        """Return the results of those tasks that are finished."""
        results = {task: self.load(task) for task in tasks}
        return {task: result for task, result in results.items() if result is not None}

    def pending(self, tasks: Iterable[Task]) -> list[Task]:
        """Return the tasks that are not finished; a damaged file is warned about and will be replaced."""
        pending = [task for task in tasks if self.load(task) is None]
        damaged = sum(self.result_path(task).exists() for task in pending)
        if damaged:
            warnings.warn(
                f"{damaged} of the files in {self.results} {'is' if damaged == 1 else 'are'} damaged: recomputed.",
                stacklevel=3,
            )
        return pending

    def write(self, name: str, content: str | bytes, *, private: bool = False) -> None:
        """Write a file of the run; with `private`, only its owner can read it."""
        write_file(self.path / name, content, private=private)


def differing(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return the names whose values differ."""
    return [name for name, value in current.items() if name not in recorded or recorded[name] != value]
