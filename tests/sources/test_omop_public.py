"""Public CDMs, where they lie beside the project: another's build of GiBleed, and 50 SynPUF persons in every form."""

import numpy as np
import pandas as pd
import pytest

from helpers import simulated_cdm as made
from helpers.cohorts import SHARED
from helpers.omop import read
from helpers.postgres import load
from phenotaste import build
from phenotaste.build.settings import Groups, Settings
from phenotaste.sources import mimic4, omop
from phenotaste.sources.workspace import Workspace

GIBLEED = SHARED / "data" / "eunomia_gibleed"
SYNPUF = SHARED / "data" / "synpuf50_omop"
MIMIC, NATIVE = SHARED / "data" / "mimic4demo_omop", SHARED / "data" / "mimic4demo"
needs_mimic = pytest.mark.skipif(
    not (MIMIC.is_dir() and NATIVE.is_dir()), reason="the MIMIC-IV demo is not available"
)
OPTIONS = [{}, {"codes": "source", "source_vocabulary": "ICD9CM"}, {"drugs": "exposure"}]


@pytest.mark.skipif(not GIBLEED.is_dir(), reason="GiBleed is not available")
def test_gibleed_matches_the_independent_build():
    """Conditions and drug eras by person, date and concept: theirs lack features of fewer than 5 patients."""
    with Workspace(threads=1) as workspace:
        records = omop.read(workspace, str(GIBLEED))
        ours, persons = records.events.to_pandas(), records.persons.count().to_pyarrow().as_py()
        notes = records.notes
        assert records.visits is None
    theirs = pd.read_csv(GIBLEED / "independent_build" / "events.csv.gz")
    ours["feature"] = ours.kind.map({"diagnosis": "dx:", "medication": "rx:"}) + ours.code
    ours["date"] = ours.time.dt.strftime("%Y-%m-%d")
    keys = ["patient", "date", "feature"]
    mine, other = (set(table[keys].itertuples(index=False, name=None)) for table in (ours, theirs))
    assert not other - mine
    patients = ours.groupby("feature").patient.nunique()
    more = mine - other
    assert {patients[feature] for *_, feature in more} == {1, 3, 4}
    assert len(more) == 20
    assert set(theirs.feature) == set(patients.index[patients >= 5])
    assert persons == 2694
    assert ours.visit.isna().all()
    assert any("visits are by date" in note for note in notes)
    assert any("drug_era" in note for note in notes)  # there is no concept_ancestor to roll exposures up with


@pytest.fixture(scope="module")
def fifty():
    """The 50 persons as Arrow tables, typed as a database would have them, codes of the source as text."""
    if not SYNPUF.is_dir():
        pytest.skip("the 50 SynPUF persons are not available")
    return {path.name.split(".")[0]: made.typed_csv(path) for path in sorted(SYNPUF.glob("*.csv.gz"))}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fifty_persons_in_every_form(fifty, fifty_in_postgres, tmp_path, options):
    expected = read(SYNPUF, **options)
    assert len(expected["events"][1]) == 5121 + 2140
    assert len(expected["persons"][1]) == 50
    assert len(expected["visits"][1]) == 1847
    for place in (
        made.write_parquet(fifty, tmp_path / "parquet"),
        made.write_duckdb(fifty, tmp_path / "fifty.duckdb"),
        fifty_in_postgres,
    ):
        found = read(place, **options)
        for name, part in expected.items():
            assert found[name] == part, name


@pytest.fixture(scope="module")
def fifty_in_postgres(postgres_server, fifty):
    server = postgres_server.fresh("fifty")
    load(server, fifty, "cdm")
    return server.url()


@pytest.mark.skipif(not SYNPUF.is_dir(), reason="the 50 SynPUF persons are not available")
def test_codes_of_the_source_are_those_of_the_claims():
    """Every source concept is known, so codes are the vocabulary's, with a dot; the claims wrote them without."""
    with Workspace(threads=1) as workspace:
        held = omop.read(
            workspace, str(SYNPUF), codes="source", source_vocabulary="ICD9CM"
        ).events.to_pandas()
    written = pd.read_csv(SYNPUF / "condition_occurrence.csv.gz", dtype=str).condition_source_value
    diagnoses = held[held.kind == "diagnosis"]
    assert set(diagnoses.vocabulary) == {"ICD9CM"}
    assert diagnoses.code.str.contains(".", regex=False).any()
    assert sorted(diagnoses.code.str.replace(".", "")) == sorted(written)


def visits_with(cohort, *prefixes):
    """For each prefix of features, which visits have one."""
    names = cohort.feature_names.astype(str)
    return [
        np.asarray(cohort.visits[:, np.char.startswith(names, prefix)].sum(axis=1)).ravel() > 0
        for prefix in prefixes
    ]


@needs_mimic
def test_mimic_in_omop_has_the_admissions_of_its_native_tables():
    """Diagnoses and drugs are in the same visits, which are the native tables' 275 admissions."""
    with Workspace(threads=1) as workspace:
        built = build.cohort(workspace, omop.read(workspace, str(MIMIC)), Settings())
        native = build.cohort(workspace, mimic4.read(workspace, NATIVE), Settings()).cohort
    diagnosed, treated = visits_with(built.cohort, "Dx_", "Rx_")
    conditions = pd.read_csv(MIMIC / "condition_occurrence.csv.gz", low_memory=False)
    assert diagnosed.sum() == conditions.visit_occurrence_id.nunique() == 275
    assert (diagnosed & treated).sum() == 251  # 91 %; the other 24 have no exposure in the source
    assert (
        (len(native), native.visits.shape[0])
        == (len(built.cohort), built.cohort.visits.shape[0])
        == (100, 275)
    )
    assert visits_with(native, "Rx_")[0].sum() == 250
    assert [sentence.partition(" events have")[0] for sentence in built.warnings[1:]] == [
        "16,406 of 16,406 diagnosis",
        "15,654 of 16,094 medication",
    ]


@needs_mimic
def test_billed_codes_of_mimic_in_omop_are_those_of_its_native_tables():
    """Source codes by form, billing records only; OMOP keeps codes of history and external causes elsewhere."""
    options = {"codes": "source", "source_vocabulary": "ICD", "type_concepts": ("diagnosis=32821",)}
    settings = Settings(kinds=("diagnosis",), groups=Groups(ccs="single"))
    with Workspace(threads=1) as workspace:
        records = omop.read(workspace, str(MIMIC), kinds=("diagnosis",), **options)
        found = build.cohort(workspace, records, settings)
        native = build.cohort(
            workspace, mimic4.read(workspace, NATIVE, kinds=("diagnosis",)), settings
        ).cohort
    assert found.quality["coverage"]["diagnosis"]["events_grouped"] == 3609
    assert set(found.cohort.feature_names) <= set(native.feature_names)
    shared = np.isin(native.feature_names, found.cohort.feature_names)
    assert found.cohort.visits.sum() / native.visits[:, shared].sum() > 0.8
