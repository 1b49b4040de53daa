"""A cohort rebuilt from its own settings.toml is the same to the bit, for every source and every flag."""

import json
import os
import shutil
import sys
from random import Random

import numpy as np
import pytest

from helpers import simulated_cdm
from helpers.fhir_files import write_fhir
from helpers.hospital_files import write_eicu, write_mimic4
from helpers.source_files import source_tables, write_meds, write_omop, write_synpuf, write_synthea
from phenotaste import TASTE, Cohort
from phenotaste.cli.app import main
from phenotaste.cli.cohort_flags import OPTIONS, OWN_OPTIONS
from phenotaste.cohort.origin import IGNORED

INDEX = ("--index=ICD9CM:428*", "--gap=0", "--short-history")
SHARED = {  # values of the flags that all sources share; None stands for a flag that is not given
    "visit": (None, "day", "week", "month", "encounter", "auto", "6h", "2d"),
    "place_within": (None, "0", "48"),
    "values": (None, "counts", "binary", "log"),
    "kinds": (None, "diagnosis", "medication,diagnosis", "diagnosis,procedure"),
    "measurements": (None, "abnormal", "all", "counts"),
    "ranges": (None, "ranges.csv"),
    "quantiles": (None, "none", "0.2,0.8"),
    "learn_from": (None, "S.csv"),
    "weight": (None, ("lab=0.5", "diagnosis=2")),
    "ccs": (None, "single", "none"),
    "atc": (None, "0", "3"),
    "groups": (None, "groups.csv"),
    "multi3": (None, "groups.csv"),
    "names": (None, "names.csv"),
    "keep_unmapped": (None, True, False),
    "allow_loss": (True, True, True, None, False),  # most tables of groups lack most codes
    "min_patients": (None, "2"),
    "min_visits": (None, "2"),
    "static_columns": (None, "sex", "all"),
    "age_bands": (None, "50,60,70"),
    "bands": (None, ("weight=60,80", "height=150")),
    "drop_implausible": (None, True, False),
    "threads": (None, "1"),
    "memory": (None, "0.5"),
    "json_": (None, True),
}
WINDOWED = {  # flags that need index codes
    "gap": (None, "0", "1", "12h", "3d"),
    "window": (None, "12", "60", "4000d", "90000h"),
    "washout": (None, "0", "1", "36h"),
    "label_rows": (None, "all", "first"),
    "short_history": (None, True, False),
    "match": (None, "0", "2"),
    "match_same": (None, "sex", "none"),
    "match_age": (None, "40"),
    "match_days": (None, "900"),
    "match_seed": (None, "3"),
    "match_by": ("history", "history", None, "calendar"),  # mimic4 has no other
}
STARTING = {"first": ("48h", "400d", "12mo"), "short_history": (None, True)}  # windows without an index
ELSEWHERE = {"index", "labels", "like", "settings", "overwrite"}  # given below, or not part of what is built
NAMES = {"multi3": "--ccs-table", "json_": "--json"}
NEGATIVE = {
    "keep_unmapped": "--drop-unmapped",
    "allow_loss": "--refuse-loss",
    "short_history": "--full-history",
    "drop_implausible": "--keep-implausible",
}
OWN = {
    "synpuf": {"claims": (None, ("outpatient",), ("outpatient,inpatient",))},
    "omop": {
        "codes": (None, "standard", "source"),
        "drugs": (None, "auto", "era", "exposure", "ingredient", "atc2"),
        "source_vocabulary": (None, "ICD9CM"),
        "condition_level": (None, "2"),
        "cohort": (None, ("--cohort-table=cohort", "--cohort-id=7", "--window=240", "--short-history")),
        "index_concepts": (None,),
        "schema": (None,),
        "vocabulary": (None, ("--vocabulary-schema=vocab",), ("--vocabulary-folder=athena",)),
        "type_concepts": (None, ("32817,32821,32838", "lab=32856"), ("dx=32817",)),
    },
    "meds": {"split": (None, "train"), "drugs": (None, "ndc"), "labels": (None, "meds/labels.parquet")},
    "synthea": {"column": (None, ("conditions.DESCRIPTION=CODE",))},
    "eicu": {"stays": (None, "unit"), "codes": (None, "icd10", "text")},
    "fhir": {
        "medications": (None, ("request",), ("administration,request",)),
        "condition_date": (None, "recorded", "onset"),
    },
    "mimic4": {"drugs": (None, "ndc"), "drug_types": (None, ("MAIN",), ("MAIN", "BASE"))},
    "tables": {
        "static": (None, "S.csv"),
        "column": (("patient=pid",), ("patient=pid", "time=day")),
        "kind": (None, "medication"),
        "vocabulary": (None, ("ICD9CM",), ("diagnosis=ICD9CM", "medication=NDC")),
        "split_codes": (None, ",;"),
        "time_unit": (
            None,
            ("--time-unit=minutes", "--column=events.time=minute"),
            ("--time-unit=hours", "--column=events.time=minute"),
            ("--time-unit=days", "--column=events.time=minute"),
            ("--time-unit=order", "--column=events.time=minute"),
        ),
        "missing": (None, ("-1",), ("-1", "0.5")),
        "label": (None, ("--column=label=died",)),
        "labels": (None, "labels.csv"),
    },
}
OMOP_PAIRS = {"cohort_table", "cohort_id", "vocabulary_schema", "vocabulary_folder"}  # tried together above
LOCATION = {
    "synpuf": ["claims"],
    "omop": ["cdm"],
    "meds": ["meds"],
    "synthea": ["csv"],
    "eicu": ["eicu"],
    "fhir": ["bulk"],
    "mimic4": ["mimic"],
    "tables": [],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import pandas as pd

    folder = tmp_path_factory.mktemp("sources")
    write_synpuf(folder / "claims")
    write_meds(folder / "meds")
    subjects = pd.DataFrame({"subject_id": range(12), "split": ["train"] * 8 + ["held_out"] * 4})
    (folder / "meds" / "metadata").mkdir()
    subjects.to_parquet(folder / "meds" / "metadata" / "subject_splits.parquet", index=False)
    write_synthea(folder / "csv")
    write_mimic4(folder / "mimic")
    write_eicu(folder / "eicu")
    write_fhir(folder / "bulk")
    cdm = simulated_cdm.cdm(n_persons=60, n_events=1500) | {"cohort": simulated_cdm.cohort()}
    write_omop(folder / "cdm", cdm)
    vocabulary = {name: cdm[name] for name in ("concept", "concept_ancestor", "concept_relationship")}
    for second in (folder / "cdm" / "vocab", folder / "athena"):
        write_omop(second, vocabulary)
    events, static = source_tables()
    events.columns = ["pid", "day", "code"]
    since = pd.to_datetime(events.day) - pd.to_datetime(events.day).min()
    events.assign(time=events.day, minute=since // pd.Timedelta(hours=1)).to_csv(
        folder / "E.csv", index=False
    )
    static = static.rename(columns={"patient": "pid"}).assign(died=np.arange(len(static)) % 2)
    static.to_csv(folder / "S.csv", index=False)
    labelled = events[["pid", "day"]].drop_duplicates().groupby("pid").tail(3)  # several of each patient
    labelled = labelled.assign(value=np.arange(len(labelled)) % 2).rename(
        columns={"pid": "patient", "day": "time"}
    )
    labelled.to_csv(folder / "labels.csv", index=False)
    (folder / "ranges.csv").write_text("code,low,high\n401.9,1,2\n")
    (folder / "names.csv").write_text("code,name\n401.9,Hypertension\nE119,Diabetes\n")
    (folder / "groups.csv").write_text("code,group\nnonsense,Other things\n428.0,Heart\n")
    return folder


@pytest.fixture
def cohort_command(folder, monkeypatch, capsys):
    """Runs `phenotaste cohort` in the folder of the sources."""
    monkeypatch.chdir(folder)

    def run(*arguments):
        shutil.rmtree(folder / arguments[-1].removeprefix("--out="), ignore_errors=True)
        monkeypatch.setattr(sys, "argv", ["phenotaste", "cohort", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr()

    return run


def as_arguments(values):
    line = []
    for name, value in values.items():
        flag = NAMES.get(name, "--" + name.replace("_", "-"))
        if value is True or value is False:
            line.append(flag if value else NEGATIVE.get(name, flag))
        elif isinstance(value, tuple):
            line += [item if item.startswith("--") else f"{flag}={item}" for item in value]
        elif value is not None:
            line.append(f"{flag}={value}")
    return line


def assert_equal_folders(one, two):
    assert sorted(file.name for file in one.iterdir()) == sorted(file.name for file in two.iterdir())
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes(), file.name


def drawn(random, choices):
    return as_arguments({name: random.choice(values) for name, values in choices.items()})


def drawn_flags(random, source):
    """A value for every flag, without an index, with one, or with windows that need none."""
    line = [*drawn(random, SHARED), *drawn(random, OWN[source])]
    window = random.choice([None, WINDOWED, STARTING])
    if window is not None:
        line += [*(INDEX if window is WINDOWED else ()), *drawn(random, window)]
    return line


def test_every_flag_is_tried():
    assert {option.name for option in OPTIONS} == {*SHARED, *WINDOWED, *STARTING} | ELSEWHERE
    for source, own in OWN_OPTIONS.items():
        tried = {*OWN[source]} | (OMOP_PAIRS if source == "omop" else set())
        assert set(own) - {"events"} <= tried, source


@pytest.mark.parametrize(
    ("source", "accepted"),
    [
        *((source, 1) for source in OWN),
        *(pytest.param(source, 8, marks=pytest.mark.slow) for source in OWN),
    ],
)
def test_a_cohort_is_rebuilt_from_its_own_settings(cohort_command, folder, source, accepted):
    """Flags are drawn until so many combinations were accepted; the others are refused with a sentence."""
    tables = [f"--events={folder / 'E.csv'}"] if source == "tables" else []
    # With this seed most sources accept one of their first combinations.
    random, rebuilt = Random(f"{os.environ.get('PYTEST_SEED', 1)} {source}"), 0
    for _ in range(20 * accepted):
        line = drawn_flags(random, source)
        status, printed = cohort_command(source, *LOCATION[source], *tables, *line, "--out=one")
        if status:
            assert printed.err.splitlines()[-1].startswith("Error: ")
            continue
        again = ("--settings=one/settings.toml", "--out=two")
        status, printed = cohort_command(source, *LOCATION[source], *again)
        assert status == 0, printed.err
        assert_equal_folders(folder / "one", folder / "two")
        rebuilt += 1
        if rebuilt == accepted:
            return
    raise AssertionError(f"{rebuilt} of {20 * accepted} combinations were accepted")


def test_options_that_the_reader_derives_are_saved_in_order(cohort_command, folder):
    given = ("--source-vocabulary=ICD9CM", "--drugs=exposure", "--ccs=none")  # codes are derived from --ccs
    assert cohort_command("omop", "cdm", *given, "--out=one")[0] == 0
    assert cohort_command("omop", "cdm", "--settings=one/settings.toml", "--out=two")[0] == 0
    assert_equal_folders(folder / "one", folder / "two")


def test_flags_override_the_section_of_the_source(cohort_command, folder):
    assert cohort_command("omop", "cdm", "--ccs=single", "--drugs=era", "--out=one")[0] == 0
    text = (folder / "one" / "settings.toml").read_text()
    assert '[source]\nname = "omop"\ncodes = "source"\ndrugs = "era"\n' in text
    again = ("--settings=one/settings.toml", "--ccs=none", "--drugs=exposure", "--out=two")
    assert cohort_command("omop", "cdm", *again)[0] == 0
    # Codes follow the grouper that was given, not the file.
    assert Cohort.load(folder / "two").origin["options"] == {"codes": "standard", "drugs": "exposure"}


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ('name = "meds"', "has settings of the source meds: use phenotaste cohort meds"),
        ('name = "omop"\ncolour = "red"', "source.colour is not an option of the source; its options are: schema"),
        ('name = "shoes"', 'source.name must be "synpuf"'),
        ('name = "omop"\ncodes = "red"', "--codes"),
    ],
)  # fmt: skip
def test_an_invalid_section_of_the_source_is_refused(cohort_command, folder, section, complaint):
    (folder / "wrong.toml").write_text(f"[source]\n{section}\n")
    status, printed = cohort_command("omop", "cdm", "--settings=wrong.toml", "--out=three")
    assert status in (1, 2)
    assert complaint in printed.err


def test_paths_of_the_section_are_relative_to_its_file(cohort_command, folder):
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub" / "study.toml").write_text(
        '[source]\nname = "tables"\nevents = "../E.csv"\nstatic = "../S.csv"\ncolumn = ["patient=pid"]\n'
    )
    status, printed = cohort_command("tables", "--settings=sub/study.toml", "--out=four")
    assert status == 0, printed.err
    assert "sex=female" in Cohort.load(folder / "four").static_names


def test_other_settings_than_the_models_are_reported(cohort_command, folder, monkeypatch, capsys):
    assert cohort_command("synpuf", "claims", "--min-visits=2", "--out=five")[0] == 0
    TASTE(2, n_init=1, init="random", random_state=0, max_iter=3).fit(Cohort.load(folder / "five")).save(
        folder / "model"
    )
    assert str(folder) not in json.dumps(TASTE.load(folder / "model").cohort_settings_)
    like = ("synpuf", "claims", "--settings=five/settings.toml", "--like=model")
    status, printed = cohort_command(*like, "--min-visits=1", "--out=tonight")
    assert status == 0
    assert "not comparable" not in printed.err + printed.out
    status, printed = cohort_command(*like, "--visit=week", "--claims=outpatient", "--out=tonight")
    assert status == 0
    assert "source.claims is outpatient (model: not set); visit is week (model: day)" in " ".join(
        printed.err.split()
    )
    assert "not comparable" in Cohort.load(folder / "tonight").origin["notes"][-1]
    monkeypatch.setattr(
        sys, "argv", ["phenotaste", "score", "model", "tonight", "--out", "s.parquet", "--json"]
    )
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr()
    assert "visit is week (model: day)" in json.loads(printed.out)["warnings"][0]
    # What was built for a model is rebuilt for it, too.
    rebuilt = ("--settings=tonight/settings.toml", "--out=two")
    assert cohort_command("synpuf", "claims", *rebuilt)[0] == 0
    assert_equal_folders(folder / "tonight", folder / "two")


def test_settings_that_are_not_compared_exist():
    from dataclasses import fields

    from phenotaste.build.settings import Groups, Index, Measurements, Settings

    names = {field.name for field in fields(Settings)}
    for section, record in (("groups", Groups), ("index", Index), ("measurements", Measurements)):
        names |= {f"{section}.{field.name}" for field in fields(record)}
    names |= {f"source.options.{name}" for own in OWN_OPTIONS.values() for name in own}
    assert set(IGNORED) <= names
