"""A simulated CDM that the tests of the OMOP source share; they copy what they change."""

import pytest

from helpers import simulated_cdm as made


@pytest.fixture(scope="session")
def tables():
    return made.cdm()


@pytest.fixture(scope="session")
def parquet(tables, tmp_path_factory):
    return made.write_parquet(tables | {"cohort": made.cohort()}, tmp_path_factory.mktemp("parquet"))
