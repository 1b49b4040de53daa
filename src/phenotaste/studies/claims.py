"""The comparison of `icu` on claims: simulated patients with diagnoses and medications, and DE-SynPUF."""

from functools import lru_cache
from typing import TYPE_CHECKING

from phenotaste import simulate
from phenotaste.cohort import Cohort
from phenotaste.studies import evidence, evidence_page
from phenotaste.studies.methods import synpuf_heart_failure
from phenotaste.studies.study import Cell, CellContext, Options, Row

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAME = "claims"
TITLE = "Phenotypes of claims"
QUESTION = (
    "Every method is fitted to two random halves of the patients of a cohort of claims: which definitions are "
    "found in both, and how well do the scores predict heart failure in the other half?"
)
TIMED = False
ACCEPTS = evidence.ACCEPTS | {"synpuf"}
SIMULATED, SYNPUF = "simulated", "DE-SynPUF"
PATIENTS, QUICK_PATIENTS = 4000, 300

ABOUT = {
    SIMULATED: evidence_page.About(
        outcome="heart failure",
        rows="patients",
        description="`simulate.heart_failure`: patients with the paper's five phenotypes planted, on whom the "
        "risk of heart failure depends, with diagnoses and medications as codes.",
        kinds="The methods that factorise pairs of codes have diagnoses as one kind, and medications as the "
        "other.",
    ),
    SYNPUF: evidence_page.About(
        outcome="incident heart failure",
        rows="patients",
        description="Synthetic Medicare claims of CMS. The codes are diagnoses (CCS categories) of the year "
        "before; controls have the same sex and age as the cases, as in the study `prediction`. The records "
        "are drawn from a model of claims, so that phenotypes in them are not those of patients.",
        kinds="The methods that factorise pairs of codes were left out: diagnoses are the only kind here.",
        two_kinds=False,
    ),
}
DATA = """
DE-SynPUF is published by the Centers for Medicare & Medicaid Services; `phenotaste study claims --synpuf DIR` adds the
files of the folder to the simulated patients, and without it the study needs no data.
""".strip()


def cells(options: Options) -> list[Cell]:
    patients = QUICK_PATIENTS if options.quick else PATIENTS
    found = evidence.cells(options, SIMULATED, patients, kinds=True, sets=False)
    if options.synpuf is not None:
        drawn = QUICK_PATIENTS if options.quick else None
        found += evidence.cells(options, SYNPUF, drawn, kinds=False, sets=False)
    return evidence.checked(found)


def cost(cell: Cell) -> float:
    return evidence.cost(cell)


def run(cell: Cell, context: CellContext) -> list[Row]:
    cohort = load_cohort(cell["cohort"], cell["patients"], cell["seed"], context.options.synpuf)
    sides = evidence.halves(cohort, cell["split"], cell["seed"], None)
    return evidence.run(cell, sides, context.threads, context.options.device)


@lru_cache(maxsize=1)  # cells of one cohort follow each other
def load_cohort(name: str, patients: int | None, seed: int, synpuf: str | None) -> Cohort:
    if name == SIMULATED:
        return simulate.heart_failure(patients or PATIENTS, seed)[0]
    return evidence.some(synpuf_heart_failure(str(synpuf)), patients, seed)


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    return evidence.table(results)


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    return evidence_page.figure(results, table, ABOUT)


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    return evidence_page.text(results, table, ABOUT, DATA)
