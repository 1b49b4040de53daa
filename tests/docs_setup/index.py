"""A made-up OMOP database."""

from helpers import simulated_cdm


def prepare(folder):
    simulated_cdm.write_duckdb(simulated_cdm.cdm(n_persons=120), folder / "cdm.duckdb")
