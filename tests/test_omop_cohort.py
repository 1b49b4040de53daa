"""One CDM, four places to keep it, one cohort: the whole way through the build, row for row."""

import numpy as np
import pytest

import made_up_cdm as made
from phenotaste import build
from phenotaste.build.settings import Index, Settings
from phenotaste.sources import omop
from phenotaste.sources.workspace import Workspace
from postgres import load

WAYS = {
    "encounters": (Settings(min_visits=2, min_patients=5), {}),
    "days and source codes": (Settings(visit="day", min_patients=5), {"codes": "source"}),
    "a window before an ATLAS cohort": (
        Settings(visit="day", index=Index(window_months=60, gap_months=1, covered=False)),
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


def built(place, settings, options):
    location, schema = place
    with Workspace(threads=1) as workspace:
        records = omop.read(workspace, location, schema=schema, kinds=settings.kinds, **options)
        return build.cohort(workspace, records, settings)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_cohort_from_every_place(places, way):
    settings, options = WAYS[way]
    made_of = {name: built(place, settings, options) for name, place in places.items()}
    first = made_of.pop("parquet")
    assert len(first.cohort) >= 30
    assert first.cohort.visits.nnz > 50
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
