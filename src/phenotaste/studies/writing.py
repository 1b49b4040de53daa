"""What a study leaves: results.csv, summary.csv, the figure and the page, all made from results.csv."""

from typing import TYPE_CHECKING

from phenotaste.plotting import image_files
from phenotaste.studies.results import Folder
from phenotaste.studies.study import Cell, Study
from phenotaste.studies.study_page import page

if TYPE_CHECKING:
    import pandas as pd

RESULTS, SUMMARY = "results.csv", "summary.csv"
REPEATED = ("processor", "versions")  # long words that hardly ever change: written where they do


def write_results(folder: Folder, cells: list[Cell]) -> None:
    """A row for each finished cell, in the order of the study; cells that are not finished are left out."""
    import pandas as pd

    table = pd.DataFrame([row for cell in cells for row in folder.rows(cell) or ()])
    for name in REPEATED:
        if name in table:
            table[name] = table[name].mask(table[name] == table[name].shift(), "")
    folder.put(RESULTS, table.to_csv(index=False, float_format="%.8g"))


def read_results(path: object) -> "pd.DataFrame":
    """Numbers as they were written, to the bit, whatever the version of pandas."""
    import pandas as pd

    table = pd.read_csv(
        str(path), engine="python", dtype={"cell": str}
    )  # this engine has Python's own floats
    there = [name for name in REPEATED if name in table]
    table[there] = table[there].ffill()
    return table


def write_all(
    study: Study, folder: Folder, cells: list[Cell]
) -> tuple["pd.DataFrame", "pd.DataFrame", list[str]]:
    """Everything, from what results.csv says: a page made from a copy of that file is the same page."""
    write_results(folder, cells)
    results = read_results(folder.path / RESULTS)
    summary = study.table(results)
    folder.put(SUMMARY, summary.to_csv(index=False))
    figure = study.figure(results, summary)
    files = [RESULTS, SUMMARY, f"{study.NAME}.md"]
    for name, content in image_files(study.NAME, figure):
        folder.put(name, content)
        files.append(name)
    for name in getattr(study, "FILES", ()):
        for path in (folder.workplace(cell) / name for cell in cells):
            if path.exists():
                folder.put(name, path.read_bytes())
                files.append(name)
    folder.put(f"{study.NAME}.md", page(study, results))
    return results, summary, files
