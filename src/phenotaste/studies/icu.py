"""Replication and prediction of death in real ICU stays, for every method that the data allow."""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.studies import evidence, evidence_page
from phenotaste.studies.icu2012 import ADDRESS, SETS, icu2012, modes
from phenotaste.studies.study import Cell, CellContext, Options, Row

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAME = "icu"
TITLE = "Phenotypes of ICU stays"
QUESTION = (
    "Every method is fitted to two disjoint sets of real ICU stays: which definitions are found in both, how "
    "well do the scores predict death in hospital in the other set, and is TASTE better than what is simpler?"
)
TIMED = False
ACCEPTS = evidence.ACCEPTS | {"data"}
COHORT = "ICU stays"
QUICK_STAYS = 200  # of each set

ABOUT = {
    COHORT: evidence_page.About(
        outcome="death in hospital",
        rows="stays",
        description="Stays of at least 48 hours of the PhysioNet/CinC Challenge 2012 (sets a and b), which "
        "are real. A visit is an hour with any measurement, and its codes are the variables that were low or "
        "high then; static features are age, sex, type of unit and body-mass index, in bands.",
        kinds="The methods that factorise pairs of codes have vital signs and what else is recorded at the "
        "bedside as one kind, and laboratory values as the other.",
    )
}
DATA = f"""
The data are open (ODC-By 1.0) and not part of this project: I. Silva, G. Moody, D. Scott, L. Celi, R. Mark, “Predicting
in-hospital mortality of ICU patients”, Computing in Cardiology 2012. Two commands download them and run the study:

<!-- not run: downloads data, and takes hours -->
```sh
wget -P icu2012 {ADDRESS}/{{set-a.tar.gz,set-b.tar.gz,Outcomes-a.txt,Outcomes-b.txt}}
phenotaste study icu --data icu2012 --out icu
```
""".strip()


def cells(options: Options) -> list[Cell]:
    if options.data is None:
        raise InputError(
            "The study icu reads the stays of the PhysioNet Challenge 2012, which are not part of the "
            f"package: download set-a.tar.gz, set-b.tar.gz, Outcomes-a.txt and Outcomes-b.txt from {ADDRESS} "
            "and give their folder as data (--data DIR)."
        )
    patients = QUICK_STAYS if options.quick else None
    return evidence.checked(evidence.cells(options, COHORT, patients, kinds=True, sets=True))


def cost(cell: Cell) -> float:
    return evidence.cost(cell)


def run(cell: Cell, context: CellContext) -> list[Row]:
    sides = sides_of(cell, str(context.options.data))
    return evidence.run(cell, sides, context.threads, context.options.device)


def sides_of(cell: Cell, folder: str) -> evidence.Sides:
    first, second = both_sets(folder, cell["patients"], cell["seed"])
    kinds = modes([str(name) for name in np.asarray(first.feature_names)])
    if cell["sets"] == evidence.PUBLISHED:
        return evidence.Sides(first, second, kinds)
    return evidence.halves(evidence.joined(first, second), cell["split"], cell["seed"], kinds)


@lru_cache(maxsize=1)
def both_sets(folder: str, patients: int | None, seed: int) -> tuple[Cohort, Cohort]:
    first, second = (evidence.some(icu2012(folder, name), patients, seed) for name in SETS)
    return first, second


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    return evidence.table(results)


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    return evidence_page.figure(results, table, ABOUT)


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    return evidence_page.text(results, table, ABOUT, DATA)
