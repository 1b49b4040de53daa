"""Phenotype membership as rows of OMOP's cohort and cohort_definition (CDM 5.4), in CSV that any database loads."""

import json
import os
from typing import Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.ecosystem.membership import Exported, Membership, Rule, definition, exported, membership
from phenotaste.ecosystem.writing import check_place, whole_folder, write_definition
from phenotaste.errors import InputError

ROWS, DEFINITIONS = "cohort.csv", "cohort_definition.csv"
LONGEST_NAME = 255
LARGEST_ID = 2**31 - 1
NO_CONCEPT = 0  # OMOP's word for: no standard concept says this
DATES = (
    "cohort_start_date is the patient's first visit and cohort_end_date the last one of the history that was scored. "
    "Membership was known on the last day only: count follow-up from there."
)


def write_omop_cohort(
    model: Any,
    cohort: Cohort,
    path: str | os.PathLike[str],
    rule: Rule | None = None,
    *,
    first_id: int = 1,
    overwrite: bool = False,
) -> Exported:
    """Write members of each phenotype into a folder: `cohort.csv`, `cohort_definition.csv` and `definition.json`.

    Phenotypes get the ids first_id, first_id + 1, ... in their order. Patient-level.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.ecosystem import Rule, write_omop_cohort
    >>> cohort, truth = simulate.heart_failure(50, random_state=0)
    >>> model = TASTE(rank=2, random_state=0, max_iter=5).fit(cohort)
    >>> written = write_omop_cohort(model, cohort[5:], "omop", Rule("share", 0.6))
    >>> written.files
    ['cohort.csv', 'cohort_definition.csv', 'definition.json']
    """
    check_place(path, overwrite)
    found = membership(model, cohort, rule or Rule())
    if not 0 < first_id <= LARGEST_ID - len(found.phenotypes):
        raise InputError(f"The first id {first_id} leaves no room for cohort ids from 1 to {LARGEST_ID:,}.")
    with whole_folder(path, overwrite) as folder:
        record = definition(model, found, DATES)
        for place, phenotype in enumerate(record["phenotypes"]):
            phenotype["cohort_definition_id"] = first_id + place
        cohort_rows(found, first_id).to_csv(folder / ROWS, index=False)
        definition_rows(record).to_csv(folder / DEFINITIONS, index=False)
        write_definition(folder, record)
        files = sorted(file.name for file in folder.iterdir())
    return exported(found, files)


def cohort_rows(found: Membership, first_id: int) -> Any:
    import pandas as pd

    place, patient = np.nonzero(found.members.T)
    days = {"cohort_start_date": found.first, "cohort_end_date": found.last}
    return pd.DataFrame(
        {
            "cohort_definition_id": first_id + place,
            "subject_id": found.subjects[patient],
            **{name: np.datetime_as_string(days[name].astype("M8[D]"))[patient] for name in days},
        }
    )


def definition_rows(record: dict[str, Any]) -> Any:
    """The table whose syntax column holds the rule and the phenotype, so that a database remembers both."""
    import pandas as pd

    rule, model = record["rule"], record["model"]
    common = {name: value for name, value in record.items() if name != "phenotypes"}
    return pd.DataFrame(
        [
            {
                "cohort_definition_id": each["cohort_definition_id"],
                "cohort_definition_name": each["name"][:LONGEST_NAME],
                "cohort_definition_description": (
                    f"Patients whose {rule['measure']} of phenotype {each['number']} is at least "
                    f"{rule['threshold']:g} under the {model['method']} model {model['fingerprint'][:12]}. "
                    f"{record['dates']}"
                ),
                "definition_type_concept_id": NO_CONCEPT,
                "cohort_definition_syntax": json.dumps({**common, "phenotype": each}, ensure_ascii=False),
                "subject_concept_id": NO_CONCEPT,
                "cohort_initiation_date": None,
            }
            for each in record["phenotypes"]
        ]
    )
