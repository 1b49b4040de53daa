"""Phenotype membership as MEDS labels: a Parquet file for each phenotype, in the schema of meds 0.4."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.ecosystem.membership import Exported, Membership, Rule, definition, exported, membership
from phenotaste.ecosystem.writing import check_place, whole_folder, write_definition

if TYPE_CHECKING:
    import pyarrow as pa

DATES = "prediction_time is the patient's last visit: the score knows everything up to and including it."


def write_meds_labels(
    model: Any,
    cohort: Cohort,
    path: str | os.PathLike[str],
    rule: Rule | None = None,
    *,
    overwrite: bool = False,
) -> Exported:
    """Write who has each phenotype into a folder: `phenotype_1.parquet`, ... and `definition.json`.

    A row for each patient with visits: subject_id, prediction_time (the last visit), boolean_value (whether the
    patient has the phenotype) and float_value (the measure that the rule compares). Patient-level.

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

    check_place(path, overwrite)
    found = membership(model, cohort, rule or Rule())
    with whole_folder(path, overwrite) as folder:
        for column, phenotype in enumerate(found.phenotypes):
            pq.write_table(labels_table(found, column), folder / f"phenotype_{phenotype.number}.parquet")
        write_definition(folder, definition(model, found, DATES))
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
