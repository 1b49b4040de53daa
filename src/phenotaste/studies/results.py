"""Results of a study: the folder of finished cells, results.csv, and what is made from it: summary, figure and page."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from phenotaste.plotting import image_files
from phenotaste.runs.folder import RunFolder
from phenotaste.storage.encoding import BLANK, is_sealed, json_value, seal
from phenotaste.studies.study import Cell, Row, Study
from phenotaste.studies.study_page import page

if TYPE_CHECKING:
    import pandas as pd

RESULTS, SUMMARY, WORK = "results.csv", "summary.csv", "work"
CONSTANT_COLUMNS = ("processor", "versions")  # long and rarely changing: written only where they change


class CellResult(NamedTuple):
    rows: list[Row]
    facts: Row  # what holds for all of the rows


class StudyFolder(RunFolder[Cell, CellResult]):
    """A study on disk."""

    kind, results_name = "study", "cells"

    def file_name(self, cell: Cell) -> str:
        return f"{cell_name(cell)}.json"

    def encode(self, cell: Cell, result: CellResult) -> bytes:
        rows, facts = [json_value(row) for row in result.rows], json_value(result.facts)
        record = {"sha256": BLANK, "cell": cell, "rows": rows, "facts": facts}
        return seal(json.dumps(record).encode())

    def decode(self, cell: Cell, content: bytes) -> CellResult:
        record = json.loads(content)
        if not is_sealed(content, record["sha256"]) or record["cell"] != cell:
            raise ValueError("the content does not match its checksum or its cell")
        return CellResult(record["rows"], record["facts"])

    def rows(self, cell: Cell) -> list[Row] | None:
        """Return the rows of a finished cell with its settings and facts; None if it is not finished."""
        result = self.load(cell)
        if result is None:
            return None
        return [{**cell, **row, "cell": cell_id(cell), **result.facts} for row in result.rows]

    def work_folder(self, cell: Cell) -> Path:
        """Return the folder for intermediate results of a cell."""
        return self.path / WORK / cell_name(cell)


def cell_name(cell: Cell) -> str:
    """Return a file name: the values of the cell, and a digest that distinguishes cells with similar values."""
    words = "-".join(
        re.sub(r"[^A-Za-z0-9.+]", "", str(value)) for value in cell.values() if value is not None
    )
    return f"{words[:100]}-{hashlib.sha256(json.dumps(cell).encode()).hexdigest()[:8]}"


def cell_id(cell: Cell) -> str:
    """Return the digest at the end of the cell's name."""
    return cell_name(cell)[-8:]


def write_results(folder: StudyFolder, cells: list[Cell]) -> None:
    """Write results.csv with the rows of every finished cell, in the order of the study."""
    import pandas as pd

    table = pd.DataFrame([row for cell in cells for row in folder.rows(cell) or ()])
    for name in CONSTANT_COLUMNS:
        if name in table:
            table[name] = table[name].mask(table[name] == table[name].shift(), "")
    folder.write(RESULTS, table.to_csv(index=False, float_format="%.8g"))


def read_results(path: object) -> "pd.DataFrame":
    """Read results.csv; the numbers do not depend on the version of pandas."""
    import pandas as pd

    # This engine parses numbers with Python's float.
    table = pd.read_csv(str(path), engine="python", dtype={"cell": str})
    columns = [name for name in CONSTANT_COLUMNS if name in table]
    table[columns] = table[columns].ffill()
    return table


def write_all(
    study: Study, folder: StudyFolder, cells: list[Cell]
) -> tuple["pd.DataFrame", "pd.DataFrame", list[str]]:
    """Write all files; they are made from results.csv, so that a copy of it gives the same page."""
    write_results(folder, cells)
    results = read_results(folder.path / RESULTS)
    summary = study.table(results)
    folder.write(SUMMARY, summary.to_csv(index=False))
    files = [RESULTS, SUMMARY, f"{study.NAME}.md"]
    for name, content in image_files(study.NAME, study.figure(results, summary)):
        folder.write(name, content)
        files.append(name)
    for name in getattr(study, "FILES", ()):
        for path in (folder.work_folder(cell) / name for cell in cells):
            if path.exists():
                folder.write(name, path.read_bytes())
                files.append(name)
    folder.write(f"{study.NAME}.md", page(study, results))
    return results, summary, files


def summarise(results: "pd.DataFrame", by: Sequence[str], measured: Sequence[str]) -> "pd.DataFrame":
    """Return `count`, and `NAME_mean` and `NAME_sd` of each measured column, a row for each setting."""
    import pandas as pd

    groups = results.groupby(list(by), sort=False, dropna=False)
    parts: list[Any] = [groups.size().rename("count")]
    for name in measured:
        parts.append(groups[name].mean().rename(f"{name}_mean"))
        parts.append(groups[name].std().rename(f"{name}_sd"))
    return pd.concat(parts, axis=1).reset_index()
