"""A folder of files that takes its name when all of them are written, and replaces an earlier one as a whole."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from phenotaste.errors import InputError
from phenotaste.storage.atomic import check_output_folder, write_folder

DEFINITION = "definition.json"
OURS = re.compile(r"phenotype_\d+\.parquet|cohort\.csv|cohort_definition\.csv|definition\.json")


def check_place(path: str | os.PathLike[str], overwrite: bool, inputs: tuple[Path, ...] = ()) -> Path:
    """Where the folder may come to be; what is there already is replaced only if asked for, and only an export."""
    target = check_output_folder(path, inputs)
    there = sorted(entry.name for entry in os.scandir(target)) if target.is_dir() else []
    if there and not overwrite:
        raise InputError(f"{path} exists already: choose another place, or ask for it to be overwritten.")
    if not all(OURS.fullmatch(name) for name in there):
        raise InputError(f"{path} holds files that no export wrote: choose another place.")
    return target


def whole_folder(path: str | os.PathLike[str], overwrite: bool) -> AbstractContextManager[Path]:
    """Open a folder that only its owner can read and that replaces an earlier export if the block succeeds."""
    return write_folder(check_place(path, overwrite), private=True, existing="replace")


def write_definition(folder: Path, record: Mapping[str, Any]) -> None:
    (folder / DEFINITION).write_text(
        json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
