"""One CDM, four places to keep it, one cohort: the whole way through the build, row for row."""

import numpy as np
import pytest

from helpers import simulated_cdm as made
from helpers.cohorts import SHARED
from helpers.postgres import load
from phenotaste import build
from phenotaste.build.settings import Groups, Index, Settings
from phenotaste.sources import omop
from phenotaste.sources.workspace import Workspace

SYNPUF50 = SHARED / "data" / "synpuf50_omop"
WAYS = {
    "encounters": (Settings(min_visits=2, min_patients=5), {}),
    "days and source codes": (Settings(visit="day", min_patients=5), {"codes": "source"}),
    "a window before an ATLAS cohort": (
        Settings(
            visit="day",
            index=Index(window=60, gap=1, covered=False),
            groups=Groups(allow_loss=True),
        ),
        {"drugs": "atc4", "cohort_table": "results.cohort", "cohort_id": 7},
    ),
}


@pytest.fixture(scope="module")
def places(postgres_server, tmp_path_factory):
    """Parquet, CSV, DuckDB and PostgreSQL; the folder `results` beside the tables is a schema of its own."""
    tables, results = made.cdm(seed=1), {"cohort": made.cohort()}
    folder = tmp_path_factory.mktemp("places")
    parquet, csv = made.write_parquet(tables, folder / "parquet"), made.write_csv(tables, folder / "csv")
    made.write_parquet(results, parquet / "results")
    made.write_csv(results, csv / "results")
    database = made.write_duckdb(tables, folder / "hospital.duckdb", "one", {"results": results})
    server = postgres_server.fresh("omop_cohort")
    load(server, tables, "one")
    load(server, results, "results")
    return {
        "parquet": (str(parquet), None),
        "csv": (str(csv), None),
        "duckdb": (str(database), "one"),
        "postgres": (server.url(), "one"),
    }


@pytest.fixture(scope="module")
def fifty_places(postgres_server, tmp_path_factory):
    """The fifty persons of a public CDM, as they came and in three more places."""
    if not SYNPUF50.is_dir():
        pytest.skip("the CDM of fifty persons is not available")
    folder = tmp_path_factory.mktemp("fifty")
    tables = {path.name.removesuffix(".csv.gz"): made.typed_csv(path) for path in SYNPUF50.glob("*.csv.gz")}
    server = postgres_server.fresh("omop_fifty")
    load(server, tables, "cdm")
    return {
        "parquet": (str(made.write_parquet(tables, folder / "parquet")), None),
        "csv": (str(SYNPUF50), None),
        "duckdb": (str(made.write_duckdb(tables, folder / "fifty.duckdb")), None),
        "postgres": (server.url(), "cdm"),
    }


def built(place, settings, options):
    location, schema = place
    with Workspace(threads=1) as workspace:
        records = omop.read(workspace, location, schema=schema, kinds=settings.kinds, **options)
        return build.cohort(workspace, records, settings)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_cohort_from_every_backend(places, way):
    settings, options = WAYS[way]
    first = the_same({name: built(place, settings, options) for name, place in places.items()})
    assert len(first.cohort) >= 30
    assert first.cohort.visits.nnz > 50


def test_fifty_persons_are_the_same_cohort_from_every_backend(fifty_places):
    settings = Settings(visit="day", min_visits=5, min_patients=5, groups=Groups(ccs="single"))
    options = {"codes": "source", "source_vocabulary": "ICD9CM"}
    first = the_same({name: built(place, settings, options) for name, place in fifty_places.items()})
    assert len(first.cohort) >= 30
    assert "Dx_Congestive heart failure; nonhypertensive [108.]" in first.cohort.feature_names


def the_same(made_of):
    """All are the same cohort with the same files beside it; returns one of them."""
    first = made_of.pop("parquet")
    for name, other in made_of.items():
        for part in (
            "offsets",
            "static",
            "patient_ids",
            "visit_times",
            "feature_names",
            "static_names",
            "labels",
        ):
            np.testing.assert_array_equal(
                getattr(first.cohort, part), getattr(other.cohort, part), f"{name} {part}"
            )
        assert (first.cohort.visits != other.cohort.visits).nnz == 0, name
        assert first.cohort.visits.shape == other.cohort.visits.shape
        assert first.files() == other.files(), name
    return first
