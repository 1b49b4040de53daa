"""A folder of files that takes its name when all of them are written, and replaces an earlier one as a whole."""

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phenotaste.errors import InputError
from phenotaste.report.files import check_folder

DEFINITION = "definition.json"
OURS = re.compile(r"phenotype_\d+\.parquet|cohort\.csv|cohort_definition\.csv|definition\.json")


def check_place(path: str | os.PathLike[str], overwrite: bool, inputs: tuple[Path, ...] = ()) -> Path:
    """Where the folder may come to be; what is there already is replaced only if asked for, and only an export."""
    target = check_folder(path, inputs)
    there = sorted(entry.name for entry in os.scandir(target)) if target.is_dir() else []
    if there and not overwrite:
        raise InputError(f"{path} exists already: choose another place, or ask for it to be overwritten.")
    if not all(OURS.fullmatch(name) for name in there):
        raise InputError(f"{path} holds files that no export wrote: choose another place.")
    return target


@contextmanager
def whole_folder(path: str | os.PathLike[str], overwrite: bool) -> Iterator[Path]:
    """A folder to fill, which only its owner can read; a failure leaves what was there before."""
    target = check_place(path, overwrite)
    token = secrets.token_hex(8)
    draft, old = (target.with_name(f".{target.name}.{token}.{word}") for word in ("partial", "replaced"))
    draft.mkdir(mode=0o700)
    try:
        yield draft
        for file in draft.iterdir():
            file.chmod(0o600)
        if target.is_dir():
            os.rename(target, old)
        try:
            os.rename(draft, target)
        except BaseException:
            if old.is_dir():
                os.rename(old, target)
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if target.is_dir():
            shutil.rmtree(old, ignore_errors=True)


def write_definition(folder: Path, record: Mapping[str, Any]) -> None:
    (folder / DEFINITION).write_text(
        json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
