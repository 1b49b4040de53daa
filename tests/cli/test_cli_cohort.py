"""`phenotaste cohort` from every source: the lines of the manual, the settings, what is printed, and refusals."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import postgres, simulated_cdm
from helpers.cli import COMMAND, error_line, succeeded
from helpers.cohorts import SHARED
from helpers.fhir_files import write_fhir
from helpers.hospital_files import write_eicu, write_mimic4
from helpers.source_files import source_tables, write_meds, write_omop, write_synpuf, write_synthea
from phenotaste import TASTE, Cohort, build
from phenotaste.build import toml
from phenotaste.build.settings import Groups, Index, Match, Settings, Static
from phenotaste.cli import cohort_flags
from phenotaste.cli.cohort_flags import Flags, settings_of
from phenotaste.sources import tables
from phenotaste.sources.workspace import Workspace

SOURCES = ("synpuf", "omop", "meds", "synthea", "tables", "mimic4", "eicu", "fhir")


def refused(result, *words):
    """The error message, without the identifier of a patient in it or in the steps."""
    assert "secret-patient" not in result.stderr
    return error_line(result, *words)


@pytest.fixture
def files(tmp_path):
    events, static = source_tables()
    events.assign(vocabulary="ICD9CM", kind="diagnosis").to_parquet(tmp_path / "E.parquet", index=False)
    static.to_csv(tmp_path / "S.csv", index=False)
    return tmp_path


TABLES = ("cohort", "tables", "--events", "E.parquet", "--static", "S.csv")


# --- the lines of the manual -------------------------------------------------------------------------------


def test_synpuf(call, tmp_path):
    write_synpuf(tmp_path / "claims")
    line = ("cohort", "synpuf", "claims", "--min-visits", 5, "--min-patients", 5, "--out", "COHORT")
    text = succeeded(call(*line)).stdout
    cohort = Cohort.load(tmp_path / "COHORT")
    events, _ = source_tables()
    days = events[events.code != "nonsense"].groupby("patient").time.nunique()
    assert cohort.shape == ((days >= 5).sum(), 4)
    assert cohort.n_visits == days[days >= 5].sum()
    assert "Dx_Essential hypertension [98.]" in cohort.feature_names
    assert {"sex=female", "sex=male", "sp_chf=yes"} <= set(cohort.static_names)
    assert {name for name in cohort.static_names if name.startswith("age=")} <= {
        "age=<65", "age=65-69", "age=70-74", "age=75-79", "age=80-84", "age=85+",
    }  # fmt: skip
    for words in ("Attrition", "at least 5 visits", "features in at least 5 patients", "Codes in no group"):
        assert words in text
    assert "secret-patient" not in text


@pytest.mark.skipif(not SHARED.is_dir(), reason="the DE-SynPUF slice is not available")
def test_the_synpuf_slice_has_the_size_of_the_independent_build(call, tmp_path):
    (tmp_path / "slice").mkdir()
    for name in ("slice1_beneficiary_2008", "slice1_inpatient", "slice1_outpatient"):
        (tmp_path / "slice" / f"{name}.csv.gz").symlink_to(SHARED / "data" / "desynpuf" / f"{name}.csv.gz")
    line = ("cohort", "synpuf", "slice", "--min-visits", 5, "--min-patients", 5, "--out", "COHORT", "--json")
    record = json.loads(succeeded(call(*line)).stdout)
    assert (record["patients"], record["features"]) == (812, 223)
    assert (record["visits"], record["nonzeros"]) == (10_876, 31_964)


@pytest.mark.parametrize("form", ["folder", "duckdb"])
def test_omop(call, tmp_path, form):
    write_omop(tmp_path / "cdm")
    place = "cdm"
    if form == "duckdb":
        import duckdb

        place = "cdm.duckdb"
        with duckdb.connect(tmp_path / place) as link:
            for file in sorted((tmp_path / "cdm").iterdir()):
                link.execute(f"create table {file.stem} as from '{file}'")
    line = (
        "cohort",
        "omop",
        place,
        "--visit",
        "day",
        "--min-visits",
        5,
        "--min-patients",
        5,
        "--out",
        "COHORT",
    )
    succeeded(call(*line))
    cohort = Cohort.load(tmp_path / "COHORT")
    assert cohort.visit_counts.min() >= 5
    assert "Dx_Condition 201 [201]" in cohort.feature_names
    assert not any("[0]" in name for name in cohort.feature_names)
    assert cohort.origin["source"] == "omop"
    assert cohort.origin["options"] == {"codes": "standard", "drugs": "auto"}


def test_a_missing_vocabulary_is_the_first_thing_said(call, tmp_path):
    clinical, _ = simulated_cdm.without_vocabulary(simulated_cdm.cdm(n_persons=60, n_events=800))
    write_omop(tmp_path / "cdm", clinical)
    printed = succeeded(call("cohort", "omop", "cdm", "--out", "COHORT")).stdout
    assert "cdm has no concept table" in printed
    assert printed.index("Features") < printed.index("Warnings") < printed.index("Attrition")
    record = json.loads(succeeded(call("cohort", "omop", "cdm", "--json", "--out", "AGAIN")).stdout)
    assert [sentence.partition(":")[0] for sentence in record["warnings"][:1]] == ["cdm has no concept table"]
    assert "diagnosis events have an OMOP concept that the vocabulary does not name" in record["warnings"][1]
    refused(
        call("cohort", "omop", "cdm", "--ccs", "single", "--out", "CCS"),
        "diagnosis events are in a code group",
    )
    unknown = ("--codes", "source", "--source-vocabulary", "ICD-11")
    refused(
        call("cohort", "omop", "cdm", *unknown, "--out", "CCS"), "ICD-11 is unknown; use one of ICD, ICD9CM"
    )


def test_omop_groups_select_the_options_of_the_source(call, tmp_path):
    write_omop(tmp_path / "cdm")
    succeeded(call("cohort", "omop", "cdm", "--ccs", "single", "--atc", 4, "--allow-loss", "--out", "COHORT"))
    cohort = Cohort.load(tmp_path / "COHORT")
    assert cohort.origin["options"] == {"codes": "source", "drugs": "atc4"}
    assert "Dx_Congestive heart failure; nonhypertensive [108.]" in cohort.feature_names
    assert "Rx_Class C09AA [C09AA]" in cohort.feature_names


def test_omop_with_an_atlas_cohort(call, tmp_path):
    cdm = simulated_cdm.cdm(n_persons=60, n_events=3000) | {"cohort": simulated_cdm.cohort()}
    write_omop(tmp_path / "cdm", cdm)
    population = ("--cohort-table", "cohort", "--cohort-id", 7)
    line = ("cohort", "omop", "cdm", *population, "--window", 240, "--short-history", "--out", "COHORT")
    succeeded(call(*line))
    settings = toml.from_toml(tmp_path / "COHORT" / "settings.toml")
    assert settings.index == Index(window=240, covered=False)
    cohort = Cohort.load(tmp_path / "COHORT")
    assert len(set(cohort.groups)) <= 40 < len(cohort)  # a subject is twice in the ATLAS cohort


def test_omop_index_codes_may_be_of_a_kind_without_features(call, tmp_path):
    write_omop(tmp_path / "cdm")
    window = ("--index", "OMOP:8001", "--window", 240, "--gap", 0, "--short-history")
    succeeded(call("cohort", "omop", "cdm", *window, "--out", "COHORT"))
    assert not any(name.startswith("Px_") for name in Cohort.load(tmp_path / "COHORT").feature_names)


def test_meds(call, tmp_path):
    write_meds(tmp_path / "meds")
    succeeded(call("cohort", "meds", "meds", "--out", "COHORT"))
    assert Cohort.load(tmp_path / "COHORT").shape == (12, 5)


def test_meds_labels_end_the_window(call, tmp_path):
    write_meds(tmp_path / "meds")
    succeeded(call("cohort", "meds", "meds", "--labels", "meds/labels.parquet", "--out", "COHORT"))
    cohort = Cohort.load(tmp_path / "COHORT")
    assert set(cohort.labels) == {0.0, 1.0}
    assert cohort.visit_times.max() < np.datetime64("2010-06-01")
    assert cohort.visit_times.min() >= np.datetime64("2008-06-01")
    assert toml.from_toml(tmp_path / "COHORT" / "settings.toml").index.gap == "0mo"


def test_mimic4(call, tmp_path):
    write_mimic4(tmp_path / "mimic4")
    line = ("cohort", "mimic4", "mimic4", "--kinds", "diagnosis,medication,procedure", "--drugs", "ndc")
    succeeded(call(*line, "--out", "COHORT"))
    cohort = Cohort.load(tmp_path / "COHORT")
    assert (len(cohort), cohort.n_visits) == (2, 3)
    assert "Dx_Essential (primary) hypertension [I10]" in cohort.feature_names
    assert "Rx_00409610204 [NDC]" in cohort.feature_names
    assert {"race=white", "sex=male"} <= set(cohort.static_names)
    assert cohort.origin["options"] == {"drugs": "ndc"}


def test_eicu(call, tmp_path):
    write_eicu(tmp_path / "eicu")
    line = ("cohort", "eicu", "eicu", "--stays", "unit", "--codes", "icd10", "--ccs", "single")
    succeeded(call(*line, "--out", "COHORT"))
    cohort = Cohort.load(tmp_path / "COHORT")
    assert len(cohort) == 18
    assert {"Dx_Congestive heart failure; nonhypertensive [108.]", "Rx_heparin"} <= set(cohort.feature_names)
    assert cohort.origin["options"] == {"stays": "unit", "codes": "icd10"}


def test_fhir(call, tmp_path):
    write_fhir(tmp_path / "bulk")
    line = ("cohort", "fhir", "bulk", "--medications", "request,statement", "--condition-date", "onset")
    succeeded(call(*line, "--kinds", "diagnosis,medication,measurement", "--out", "COHORT"))
    cohort = Cohort.load(tmp_path / "COHORT")
    assert len(cohort) == 8
    assert {"Rx_lisinopril 10 MG Oral Tablet [314076]", "Lab_Glucose high [2345-7]"} <= set(
        cohort.feature_names
    )
    assert not any("vancomycin" in name for name in cohort.feature_names)


def test_synthea(call, tmp_path):
    write_synthea(tmp_path / "csv")
    succeeded(call("cohort", "synthea", "csv", "--min-visits", 3, "--out", "COHORT"))
    cohort = Cohort.load(tmp_path / "COHORT")
    assert cohort.shape == (12, 5)
    assert cohort.n_visits == 96
    assert "Dx_Finding 401.9 [401.9]" in cohort.feature_names


def test_tables(call, files):
    succeeded(call(*TABLES, "--ccs", "single", "--out", "COHORT"))
    cohort = Cohort.load(files / "COHORT")
    assert cohort.shape == (12, 4)
    assert set(cohort.static_names) >= {"sex=female", "sex=male"}


def test_tables_under_other_names(call, tmp_path):
    events, _ = source_tables()
    events.columns = ["pid", "day", "icd"]
    events.to_csv(tmp_path / "E.csv", index=False)
    line = ("cohort", "tables", "--events", "E.csv", "--column", "patient=pid", "--column", "time=day")
    succeeded(
        call(*line, "--column", "code=icd", "--vocabulary", "ICD9CM", "--ccs", "single", "--out", "COHORT")
    )
    assert "Dx_Essential hypertension [98.]" in Cohort.load(tmp_path / "COHORT").feature_names


def test_the_python_interface_builds_the_same_cohort(call, files):
    succeeded(call(*TABLES, "--ccs", "single", "--min-visits", 6, "--out", "COHORT"))
    with Workspace() as workspace:
        records = tables.read(workspace, files / "E.parquet", files / "S.csv")
        built = build.cohort(workspace, records, Settings(groups=Groups(ccs="single"), min_visits=6))
    built.save(files / "again")
    one, two = Cohort.load(files / "COHORT"), Cohort.load(files / "again")
    assert (one.visits != two.visits).nnz == 0
    np.testing.assert_array_equal(one.static, two.static)
    np.testing.assert_array_equal(one.patient_ids, two.patient_ids)
    for name in ("attrition.csv", "quality.json"):
        assert (files / "COHORT" / name).read_text() == (files / "again" / name).read_text()
    settings = (files / "COHORT" / "settings.toml").read_text()
    assert settings.startswith((files / "again" / "settings.toml").read_text())
    assert settings.count("[source]") == 1  # Python does not know how the records were read


# --- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [None, *SOURCES])
def test_the_template_is_the_only_output(call, source):
    result = succeeded(call("cohort", *([source] if source else []), "--template"))
    assert result.stdout == toml.template(source)
    assert result.stderr == ""


def test_flags_override_the_file_and_the_file_the_defaults(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(
        'min_visits = 3\nmin_patients = 2\n[groups]\nccs = "none"\n[index]\ncodes = ["CCS:108"]\n'
    )
    settings = settings_of(
        Flags(settings=file, min_visits=7, window=12, match=4, match_same=["sex,race"]), "synpuf"
    )
    assert settings == Settings(
        visit="day",
        kinds=("diagnosis",),
        min_visits=7,
        min_patients=2,
        index=Index(codes=("CCS:108",), window=12),
        match=Match(ratio=4, same=("sex", "race")),
        static=Static(age_bands=(65, 70, 75, 80, 85)),
    )


def test_every_flag_reaches_its_setting(tmp_path):
    flags = Flags(
        visit="week",
        values=cohort_flags.ValuesChoice.LOG,
        kinds=["diagnosis,procedure", "medication"],
        ccs=cohort_flags.CcsChoice.MULTI3,
        atc=4,
        groups=tmp_path / "g.csv",
        multi3=tmp_path / "m.csv",
        keep_unmapped=True,
        allow_loss=True,
        min_patients=3,
        index=["CCS:108", "ICD9CM:428*"],
        labels=tmp_path / "l.csv",
        window=12,
        gap=1,
        washout=24,
        short_history=True,
        match=2,
        match_same=["sex"],
        min_visits=4,
        static_columns="sex, race",
        age_bands="60,70",
        drop_implausible=True,
    )
    assert settings_of(flags, "omop") == Settings(
        visit="week",
        values="log",
        kinds=("diagnosis", "procedure", "medication"),
        min_visits=4,
        min_patients=3,
        implausible="drop",
        groups=Groups("multi3", 4, str(tmp_path / "g.csv"), str(tmp_path / "m.csv"), "keep", None, True),
        index=Index(
            ("CCS:108", "ICD9CM:428*"), str(tmp_path / "l.csv"), window=12, gap=1, washout=24, covered=False
        ),
        match=Match(ratio=2, same=("sex",)),
        static=Static(columns=("sex", "race"), age_bands=(60, 70)),
    )
    back = Flags(visit="auto", ccs=cohort_flags.CcsChoice.NONE, atc=0, static_columns="all")
    assert settings_of(back, "synpuf") == Settings(
        kinds=("diagnosis",), static=Static(age_bands=(65, 70, 75, 80, 85))
    )


def test_the_saved_settings_build_the_same_cohort_again(call, files):
    (files / "groups.csv").write_text("code,group\nnonsense,Other things\n")
    flags = (
        "--ccs",
        "single",
        "--groups",
        "groups.csv",
        "--min-visits",
        2,
        "--age-bands",
        "50,60",
        "--values",
        "log",
    )
    succeeded(call(*TABLES, *flags, "--out", "first"))
    succeeded(call(*TABLES, "--settings", "first/settings.toml", "--out", "second"))
    one, two = Cohort.load(files / "first"), Cohort.load(files / "second")
    assert "Dx_Other things" in one.feature_names
    assert (one.visits != two.visits).nnz == 0
    np.testing.assert_array_equal(one.static, two.static)
    assert one.static_names.tolist() == two.static_names.tolist()
    assert (files / "first" / "settings.toml").read_text() == (files / "second" / "settings.toml").read_text()


# --- what is printed and saved -----------------------------------------------------------------------------


def test_json_and_the_folder_agree(call, files):
    index = ("--index", "CCS:108", "--gap", 0, "--short-history")
    line = (*TABLES, "--ccs", "single", *index, "--out", "COHORT", "--json")
    result = succeeded(call(*line))
    record = json.loads(result.stdout)
    cohort = Cohort.load(files / "COHORT")
    assert record["cohort"] == "COHORT"
    assert (record["patients"], record["features"]) == cohort.shape
    table = pd.read_csv(files / record["files"]["attrition"])
    assert table.to_dict("records") == record["attrition"] == cohort.origin["attrition"]
    assert json.loads((files / record["files"]["quality"]).read_text()) == record["quality"]
    assert record["quality"]["unmapped_codes"] == len(pd.read_csv(files / record["files"]["unmapped"])) == 1
    assert all((files / path).exists() for path in record["files"].values())
    assert cohort.origin["location"] == record["location"] == "E.parquet"
    assert [line.endswith(" …") for line in result.stderr.splitlines()].count(False) == 0
    assert "Index dates and windows …" in result.stderr


def test_implausible_data_are_reported_and_dropped_only_on_request(call, files):
    events = pd.read_parquet(files / "E.parquet")
    odd = events.iloc[:3].assign(time=["1900-01-01", "2999-01-01", "2999-01-01"])
    pd.concat([events, odd, events.iloc[:1]]).to_parquet(files / "E.parquet", index=False)
    text = succeeded(call(*TABLES, "--out", "kept")).stdout
    assert re.search("Events before birth +1, kept", text)
    assert re.search("Events in the future +2, kept", text)
    assert re.search("Duplicate events +1, counted once", text)
    text = succeeded(call(*TABLES, "--drop-implausible", "--out", "dropped")).stdout
    assert re.search("Events before birth +1, dropped", text)
    kept, dropped = (Cohort.load(files / name).visit_times for name in ("kept", "dropped"))
    assert (kept.min() < np.datetime64("1901-01-01"), kept.max() > np.datetime64("2998-01-01")) == (
        True,
        True,
    )
    assert (dropped.min() > np.datetime64("1901-01-01"), dropped.max() < np.datetime64("2998-01-01")) == (
        True,
        True,
    )


def test_columns_of_a_model(call, files):
    succeeded(call(*TABLES, "--ccs", "single", "--out", "first"))
    TASTE(2, n_init=1, init="random", random_state=0, max_iter=3).fit(Cohort.load(files / "first")).save(
        files / "model"
    )
    events = pd.read_parquet(files / "E.parquet")
    new = events[events.code.isin(["401.9", "428.0"])].assign(patient="secret-patient-new")
    new.assign(kind="medication", code="1", vocabulary="RxNorm").iloc[:1].pipe(
        lambda drug: pd.concat([new, drug])
    ).to_parquet(files / "N.parquet", index=False)
    line = (
        "cohort",
        "tables",
        "--events",
        "N.parquet",
        "--ccs",
        "single",
        "--like",
        "model",
        "--out",
        "second",
    )
    succeeded(call(*line))
    first, second = Cohort.load(files / "first"), Cohort.load(files / "second")
    assert second.feature_names.tolist() == first.feature_names.tolist()
    assert second.static_names.tolist() == first.static_names.tolist()
    assert len(second) == 1
    assert TASTE.load(files / "model").transform(second).shape == (1, 2)


def test_help_shows_an_example_in_eighty_columns(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for source in SOURCES:
        text = succeeded(call("cohort", source, "--help")).stdout
        assert max(map(len, text.splitlines())) <= 80
        assert f"phenotaste cohort {source} " in text
        for heading in ("Visits and features:", "Index, window and controls:", "Output and resources:"):
            assert heading in text
    assert succeeded(call("cohort", "--help")).stdout.count("\n") < 25


def test_a_missing_source_is_invalid_usage(call):
    result = call("cohort")
    assert result.returncode == 2
    assert "synpuf" in result.stdout
    assert call("cohort", "tables", "--out", "COHORT").returncode == 2
    assert call("cohort", "synpuf", "x", "--values", "many", "--out", "COHORT").returncode == 2
    assert call("cohort", "tables", "--events", "E", "--column", "pid", "--out", "COHORT").returncode == 2
    assert call("cohort", "tables", "--events", "E", "--age-bands", "old", "--out", "COHORT").returncode == 2


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["synpuf", "omop", "meds", "synthea", "mimic4", "eicu", "fhir"])
def test_a_missing_location(call, source, tmp_path):
    refused(call("cohort", source, "nowhere", "--out", "COHORT"), "nowhere")
    assert os.listdir(tmp_path) == []


def test_missing_files_tables_and_columns(call, files):
    refused(call("cohort", "tables", "--events", "none.csv", "--out", "COHORT"), "none.csv")
    events = pd.read_parquet(files / "E.parquet")
    events.drop(columns="time").to_parquet(files / "E2.parquet")
    refused(call("cohort", "tables", "--events", "E2.parquet", "--out", "COHORT"), "time")
    write_omop(files / "cdm")
    (files / "cdm" / "person.parquet").unlink()
    refused(call("cohort", "omop", "cdm", "--out", "COHORT"), "person")
    write_synthea(files / "csv")
    (files / "csv" / "patients.csv").unlink()
    refused(call("cohort", "synthea", "csv", "--out", "COHORT"), "patients")
    assert not (files / "COHORT").exists()


def test_dates_that_cannot_be_read(call, files):
    events = pd.read_parquet(files / "E.parquet")
    events.loc[3, "time"] = "secret-patient-3 on the 5th"
    events.to_csv(files / "E.csv", index=False)
    refused(call("cohort", "tables", "--events", "E.csv", "--out", "COHORT"), "time", "1 value")
    assert not (files / "COHORT").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--min-visits", 100), ["at least 100 visits"]),
        (("--min-patients", 100), ["at least 100 patients"]),
        (("--kinds", "medication"), ["medication"]),
        (("--atc", 3, "--kinds", "procedure,medication"), ["medication"]),
        (("--index", "ICD9CM:999*"), ["ICD9CM:999*"]),
        (("--index", "CCS:108", "--window", 1, "--gap", 900), ["window"]),
        (("--index", "CCS:108", "--washout", 900), ["wash-out"]),
    ],
)
def test_an_empty_result_names_the_step(call, files, flags, words):
    refused(call(*TABLES, *flags, "--out", "COHORT"), *words)
    assert not (files / "COHORT").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kinds", "lab"), ["kinds", '"diagnosis"']),
        (("--min-visits", -1), ["min_visits"]),
        (("--min-patients", 0), ["min_patients"]),
        (("--ccs", "multi3"), ["groups.multi3"]),
        (("--match", 5), ["match needs an index"]),
        (("--index", "428"), ["428", "ICD9CM:428*"]),
        (("--age-bands", "70,60"), ["static.age_bands"]),
        (("--groups", "none.csv"), ["none.csv"]),
        (("--labels", "none.csv"), ["none.csv"]),
        (("--settings", "none.toml"), ["none.toml"]),
        (("--like", "S.csv"), ["S.csv"]),
        (("--like", "nowhere"), ["nowhere"]),
        (("--static-columns", "shoe_size"), ["shoe_size"]),
    ],
)
def test_settings_that_are_refused(call, files, flags, words):
    refused(call(*TABLES, *flags, "--out", "COHORT"), *words)
    assert not (files / "COHORT").exists()


def test_a_wrong_key_in_the_file(call, files):
    (files / "settings.toml").write_text("[groups]\nicd = 9\n")
    refused(
        call(*TABLES, "--settings", "settings.toml", "--out", "COHORT"),
        "settings.toml",
        "groups.icd",
        "ccs, atc",
    )


def test_the_columns_of_another_cohort_are_used_and_those_of_other_folders_refused(call, files):
    succeeded(call(*TABLES, "--min-patients", 3, "--out", "COHORT"))
    result = succeeded(call(*TABLES, "--visit", "week", "--like", "COHORT", "--out", "second"))
    assert "visit is week (model: day)" in " ".join(result.stderr.split())
    first, second = (Cohort.load(files / name) for name in ("COHORT", "second"))
    assert second.feature_names.tolist() == first.feature_names.tolist()
    assert second.static_names.tolist() == first.static_names.tolist()
    refused(call(*TABLES, "--like", ".", "--out", "third"), "is not a saved")


def test_an_existing_cohort_is_replaced_only_on_request(call, files):
    succeeded(call(*TABLES, "--out", "COHORT"))
    before = (files / "COHORT" / "manifest.json").read_bytes()
    refused(call(*TABLES, "--min-visits", 2, "--out", "COHORT"), "--overwrite")
    assert (files / "COHORT" / "manifest.json").read_bytes() == before
    refused(call(*TABLES, "--min-visits", 100, "--overwrite", "--out", "COHORT"), "100 visits")
    assert (files / "COHORT" / "manifest.json").read_bytes() == before
    succeeded(call(*TABLES, "--values", "binary", "--overwrite", "--out", "COHORT"))
    assert Cohort.load(files / "COHORT").visits.max() == 1
    (files / "mine").mkdir()
    (files / "mine" / "thesis.txt").write_text("years of work")
    refused(call(*TABLES, "--overwrite", "--out", "mine"), "mine")
    refused(call(*TABLES, "--overwrite", "--out", "S.csv"), "S.csv is a file")
    assert os.listdir(files / "mine") == ["thesis.txt"]


@pytest.mark.parametrize("message", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_no_files(tmp_path, message):
    rng = np.random.default_rng(0)
    n = 2_000_000
    events = pa.table(
        {
            "patient": rng.integers(0, 200_000, n),
            "time": pa.array(rng.integers(14_000, 18_000, n).astype(np.int32), pa.date32()),
            "code": pa.array(rng.integers(0, 3000, n).astype(str)),
        }
    )
    pq.write_table(events, tmp_path / "E.parquet")
    (tmp_path / "tmp").mkdir()
    command = [*COMMAND, "cohort", "tables", "--events", "E.parquet", "--out", "COHORT"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
    )
    with contextlib.closing(process.stderr) as steps:
        assert steps.readline().startswith("Reading E.parquet")
        time.sleep(0.5)
        process.send_signal(message)
        rest = steps.read()
    assert process.wait(timeout=60) == 130, rest
    assert rest.splitlines()[-1].startswith("Interrupted")
    assert "Traceback" not in rest
    assert not (tmp_path / "COHORT").exists()
    assert os.listdir(tmp_path / "tmp") == []


# --- PostgreSQL --------------------------------------------------------------------------------------------


def test_postgresql_and_a_folder_give_the_same_cohort(call, tmp_path, postgres_server):
    cdm = simulated_cdm.cdm(n_persons=60, n_events=800)
    postgres.load(postgres_server, cdm, "cli cohort")
    write_omop(tmp_path / "cdm", cdm)
    flags = ("--visit", "day", "--min-visits", 5, "--min-patients", 5)
    url = postgres_server.url()
    text = succeeded(
        call("cohort", "omop", url, "--schema", "cli cohort", *flags, "--out", "server", "--json")
    )
    succeeded(call("cohort", "omop", "cdm", *flags, "--out", "folder"))
    one, two = Cohort.load(tmp_path / "server"), Cohort.load(tmp_path / "folder")
    assert (one.visits != two.visits).nnz == 0
    assert one.patient_ids.tolist() == two.patient_ids.tolist()
    assert one.feature_names.tolist() == two.feature_names.tolist()
    np.testing.assert_array_equal(one.static, two.static)
    everything = text.stdout + text.stderr
    for file in (tmp_path / "server").iterdir():
        everything += file.read_bytes().decode("latin-1")
    assert postgres_server.reader_password not in everything


def test_postgresql_errors_do_not_show_the_password(call, tmp_path, postgres_server):
    def line(url, *more):
        return call("cohort", "omop", url, *more, "--out", "COHORT")

    wrong = "wr0ng-passw0rd"
    url = postgres_server.url(password=wrong)
    assert wrong not in refused(line(url), "password")
    message = refused(line(postgres_server.url(), "--schema", "no_such_schema"), "no readable schema")
    assert postgres_server.reader_password not in message
    message = refused(line(postgres_server.url(port=postgres.free_port())))
    assert postgres_server.reader_password not in message
    assert os.listdir(tmp_path) == []
