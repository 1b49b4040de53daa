"""A made-up source of every kind, under the names on the page."""

import numpy as np
import pyarrow as pa

from helpers import simulated_cdm
from helpers.source_files import source_tables, write_meds, write_synpuf, write_synthea

HEART_FAILURE, DIABETES = (7001, 7003), 7002


def prepare(folder):
    write_synpuf(folder / "claims")
    write_meds(folder / "meds")
    write_synthea(folder / "csv")
    simulated_cdm.write_duckdb(with_controls(simulated_cdm.cdm(n_persons=120)), folder / "cdm.duckdb")
    events, static = source_tables()
    events.assign(vocabulary="ICD9CM", kind="diagnosis").to_parquet(folder / "E.parquet", index=False)
    static.to_csv(folder / "S.csv", index=False)


def with_controls(cdm):
    """Codes are made up at random, so that everybody has heart failure sooner or later: of most, take that away."""
    conditions = cdm["condition_occurrence"]
    person, code = (conditions[name].to_numpy() for name in ("person_id", "condition_source_concept_id"))
    code = np.where((person % 4 > 0) & np.isin(code, HEART_FAILURE), DIABETES, code)
    place = conditions.schema.get_field_index("condition_source_concept_id")
    changed = conditions.set_column(place, "condition_source_concept_id", pa.array(code))
    return cdm | {"condition_occurrence": changed}
