"""Phenotype membership as files: labels of MEDS 0.4 in Parquet, and rows of OMOP's cohort tables (CDM 5.4) in CSV."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.ecosystem.membership import Exported, Membership, Rule, exported, find_members, rule_record
from phenotaste.errors import InputError
from phenotaste.storage.atomic import check_output_folder, write_folder

if TYPE_CHECKING:
    import pyarrow as pa

DEFINITION, COHORT, COHORT_DEFINITION = "definition.json", "cohort.csv", "cohort_definition.csv"
EXPORT_FILES = re.compile(r"phenotype_\d+\.parquet|cohort\.csv|cohort_definition\.csv|definition\.json")
MAX_NAME_LENGTH = 255
MAX_ID = 2**31 - 1
NO_CONCEPT = 0  # OMOP's id for: no standard concept applies
MEDS_DATES = (
    "prediction_time is the time of the patient's last event that the score uses, with all data up to it."
)
OMOP_DATES = (
    "cohort_start_date is the patient's first visit and cohort_end_date the day of the last event of the history that "
    "was scored. Membership is known on the last day only: count follow-up from there."
)


def write_meds_labels(
    model: Any,
    cohort: Cohort,
    path: str | os.PathLike[str],
    rule: Rule | None = None,
    *,
    overwrite: bool = False,
) -> Exported:
    """Write MEDS labels to a folder: `phenotype_1.parquet`, ... and `definition.json`.

    A row for each patient with visits: subject_id, prediction_time (that of the last event used), boolean_value
    (membership) and float_value (the measure of the rule). Patient-level.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.ecosystem import Rule, write_meds_labels
    >>> cohort, truth = simulate.heart_failure(50, random_state=0)
    >>> model = TASTE(rank=2, random_state=0, max_iter=5).fit(cohort)
    >>> written = write_meds_labels(model, cohort[5:], "labels", Rule("share", 0.6))
    >>> written.files
    ['definition.json', 'phenotype_1.parquet', 'phenotype_2.parquet']
    """
    import pyarrow.parquet as pq

    check_export_folder(path, overwrite)
    found = find_members(model, cohort, rule or Rule())
    with export_folder(path, overwrite) as folder:
        for column, phenotype in enumerate(found.phenotypes):
            pq.write_table(labels_table(found, column), folder / f"phenotype_{phenotype.number}.parquet")
        write_definition(folder, rule_record(model, found, MEDS_DATES))
        files = sorted(file.name for file in folder.iterdir())
    return exported(found, files)


def labels_table(found: Membership, column: int) -> "pa.Table":
    import pyarrow as pa

    fields = [
        ("subject_id", pa.int64(), found.subjects),
        ("prediction_time", pa.timestamp("us"), found.last.astype("M8[us]")),
        ("boolean_value", pa.bool_(), found.members[:, column]),
        ("float_value", pa.float32(), found.values[:, column].astype(np.float32)),
    ]
    arrays = [pa.array(np.ascontiguousarray(values), kind) for _, kind, values in fields]
    return pa.table(arrays, schema=pa.schema([(name, kind) for name, kind, _ in fields]))


def write_omop_cohort(
    model: Any,
    cohort: Cohort,
    path: str | os.PathLike[str],
    rule: Rule | None = None,
    *,
    first_id: int = 1,
    overwrite: bool = False,
) -> Exported:
    """Write OMOP cohort rows to a folder: `cohort.csv`, `cohort_definition.csv` and `definition.json`.

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
    check_export_folder(path, overwrite)
    found = find_members(model, cohort, rule or Rule())
    if not 0 < first_id <= MAX_ID - len(found.phenotypes):
        raise InputError(f"first_id={first_id} must leave all cohort ids within 1 and {MAX_ID:,}.")
    with export_folder(path, overwrite) as folder:
        record = rule_record(model, found, OMOP_DATES)
        for position, phenotype in enumerate(record["phenotypes"]):
            phenotype["cohort_definition_id"] = first_id + position
        cohort_rows(found, first_id).to_csv(folder / COHORT, index=False)
        definition_rows(record).to_csv(folder / COHORT_DEFINITION, index=False)
        write_definition(folder, record)
        files = sorted(file.name for file in folder.iterdir())
    return exported(found, files)


def cohort_rows(found: Membership, first_id: int) -> Any:
    import pandas as pd

    phenotype, patient = np.nonzero(found.members.T)
    days = {"cohort_start_date": found.first, "cohort_end_date": found.last}
    return pd.DataFrame(
        {
            "cohort_definition_id": first_id + phenotype,
            "subject_id": found.subjects[patient],
            **{name: np.datetime_as_string(days[name].astype("M8[D]"))[patient] for name in days},
        }
    )


def definition_rows(record: dict[str, Any]) -> Any:
    """The cohort definitions, with the rule and the phenotype as JSON in the syntax column."""
    import pandas as pd

    rule, model = record["rule"], record["model"]
    common = {name: value for name, value in record.items() if name != "phenotypes"}
    return pd.DataFrame(
        [
            {
                "cohort_definition_id": each["cohort_definition_id"],
                "cohort_definition_name": each["name"][:MAX_NAME_LENGTH],
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


def check_export_folder(path: str | os.PathLike[str], overwrite: bool, inputs: tuple[Path, ...] = ()) -> Path:
    """Check the target folder; an existing one is replaced only on request, and only if it is an export."""
    target = check_output_folder(path, inputs)
    existing = sorted(entry.name for entry in os.scandir(target)) if target.is_dir() else []
    if existing and not overwrite:
        raise InputError(f"{path} exists already: choose another folder, or allow it to be overwritten.")
    if not all(EXPORT_FILES.fullmatch(name) for name in existing):
        raise InputError(f"{path} contains files that are not part of an export: choose another folder.")
    return target


def export_folder(path: str | os.PathLike[str], overwrite: bool) -> AbstractContextManager[Path]:
    """Open a folder that only its owner can read and that replaces an earlier export if the block succeeds."""
    return write_folder(check_export_folder(path, overwrite), private=True, existing="replace")


def write_definition(folder: Path, record: Mapping[str, Any]) -> None:
    (folder / DEFINITION).write_text(
        json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
