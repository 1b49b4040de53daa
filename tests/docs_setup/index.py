"""A made-up OMOP database."""

import made_up_cdm


def prepare(folder):
    made_up_cdm.write_duckdb(made_up_cdm.cdm(n_persons=120), folder / "cdm.duckdb")
