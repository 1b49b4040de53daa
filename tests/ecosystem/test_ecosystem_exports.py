"""Who has which phenotype, as MEDS labels and as OMOP cohort rows: what is written, and what other tools make of it."""

import json
import os
import re
import stat
from dataclasses import replace

import meds
import numpy as np
import pandas as pd
import psycopg
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phenotaste import TASTE, Cohort, __version__, baselines, simulate
from phenotaste.ecosystem import Rule, write_meds_labels, write_omop_cohort
from phenotaste.ecosystem.exports import export_folder
from phenotaste.ecosystem.membership import find_members
from phenotaste.errors import InputError
from phenotaste.patients import Patients
from phenotaste.review import Review, fingerprint

# As CDM 5.4 has them (CommonDataModel, inst/ddl/5.4/postgresql).
DDL = """
create table cohort (cohort_definition_id integer not null, subject_id integer not null,
    cohort_start_date date not null, cohort_end_date date not null);
create table cohort_definition (cohort_definition_id integer not null,
    cohort_definition_name varchar(255) not null, cohort_definition_description text null,
    definition_type_concept_id integer not null, cohort_definition_syntax text null,
    subject_concept_id integer not null, cohort_initiation_date date null);
"""
WRITERS = {"meds": write_meds_labels, "omop": write_omop_cohort}


def made(**changes):
    """Sixty patients, the first without visits, with ids as a database has them."""
    found, _ = simulate.heart_failure(60, random_state=4)
    kept = found.offsets[1]
    parts = {
        "visits": found.visits[kept:],
        "offsets": np.maximum(found.offsets - kept, 0),
        "static": found.static,
        "patient_ids": 90_000 + 7 * np.arange(60),
        "visit_times": found.visit_times[kept:],
        "feature_names": found.feature_names,
        "static_names": found.static_names,
    }
    return Cohort(**parts | changes)


@pytest.fixture(scope="module")
def cohort():
    return made()


@pytest.fixture(scope="module")
def model(cohort):
    return TASTE(3, n_init=1, init="random", random_state=0, max_iter=15).fit(cohort)


def measures(model, cohort):
    found = model.project(cohort)
    patients = Patients.of(found)
    return {"score": found.W, "share": patients.shares(), "amount": patients.amounts()}


def reviewed(model):
    """2 is merged into 1, which has a name; 3 is left open."""
    blank = Review.blank(model, names={1: 'Heart "failure", chronic'})
    first, second, third = blank.decisions
    return model.apply_review(
        replace(blank, decisions=(first, replace(second, status="merged", merge_with=1), third))
    )


# --- MEDS --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", [Rule(), Rule("share", 0.3), Rule("score", 2.0), Rule("amount", 1.0)], ids=str
)
def test_labels_have_the_schema_of_meds(cohort, model, tmp_path, rule):
    found = write_meds_labels(model, cohort, tmp_path / "labels", rule)
    values = measures(model, cohort)[rule.measure][1:]  # the first has no visits, so no time to stand under
    last = [cohort[k].visit_times[-1] for k in range(1, 60)]
    for r in range(3):
        table = pq.read_table(tmp_path / "labels" / f"phenotype_{r + 1}.parquet")
        meds.LabelSchema.validate(table)
        assert table.schema.names == ["subject_id", "prediction_time", "boolean_value", "float_value"]
        assert table["subject_id"].to_pylist() == cohort.patient_ids[1:].tolist()
        assert table["prediction_time"].to_numpy().tolist() == np.array(last, "M8[us]").tolist()
        np.testing.assert_array_equal(table["boolean_value"].to_numpy(), values[:, r] >= rule.threshold)
        np.testing.assert_array_equal(table["float_value"].to_numpy(), values[:, r].astype(np.float32))
    assert found.patients in (55, 60)  # 59, rounded
    assert found.without_visits is None  # 1


def test_the_meds_source_reads_the_labels(cohort, model, tmp_path):
    from phenotaste.sources import meds as source
    from phenotaste.sources.workspace import Workspace

    write_meds_labels(model, cohort, tmp_path / "labels", Rule("share", 0.3))
    with Workspace() as workspace:
        read = source.read_labels(workspace, tmp_path / "labels" / "phenotype_2.parquet").to_pandas()
    assert read["patient"].tolist() == cohort.patient_ids[1:].tolist()
    np.testing.assert_array_equal(read["value"], measures(model, cohort)["share"][1:, 1] >= 0.3)


# --- OMOP --------------------------------------------------------------------------------------------------


def rows_of(model, cohort, rule, first_id=1):
    """What cohort.csv must hold, worked out patient by patient."""
    values, rows = measures(model, cohort)[rule.measure], []
    for r in range(values.shape[1]):
        for k in range(len(cohort)):
            if len(cohort[k].visit_times) and values[k, r] >= rule.threshold:
                days = cohort[k].visit_times.astype("M8[D]").astype(str)
                rows.append((first_id + r, int(cohort.patient_ids[k]), days[0], days[-1]))
    return rows


@pytest.mark.parametrize("rule", [Rule("share", 0.3), Rule("amount", 1.0)], ids=str)
def test_the_rows_fit_the_omop_tables(cohort, model, tmp_path, postgres_server, rule):
    found = write_omop_cohort(reviewed(model), cohort, tmp_path / "out", rule, first_id=40)
    assert found.files == ["cohort.csv", "cohort_definition.csv", "definition.json"]
    server = postgres_server.fresh(f"exports_{rule.measure}")
    with psycopg.connect(server.url(user="owner")) as link:
        link.execute(DDL)
        for table in ("cohort", "cohort_definition"):
            with link.cursor().copy(f"copy {table} from stdin with (format csv, header match)") as copy:
                copy.write((tmp_path / "out" / f"{table}.csv").read_bytes())
        rows = link.execute("select * from cohort").fetchall()
        defined = link.execute("select * from cohort_definition order by 1").fetchall()
    plain = [(one, two, str(three), str(four)) for one, two, three, four in rows]
    assert plain == rows_of(reviewed(model), cohort, rule, 40)
    assert {row[0] for row in rows} == {40, 41}
    assert [row[:2] for row in defined] == [(40, 'Heart "failure", chronic'), (41, "Phenotype 3")]
    assert f"{rule.measure} of phenotype 1 is at least {rule.threshold:g}" in defined[0][2]
    syntax = json.loads(defined[0][4])
    assert syntax["rule"] == {"measure": rule.measure, "comparison": ">=", "threshold": rule.threshold}
    assert syntax["phenotype"]["merged"] == [1, 2]


def test_a_patient_on_the_threshold_is_a_member(cohort, model, tmp_path):
    shares = measures(model, cohort)["share"]
    exact = float(np.sort(shares[:, 0])[30])
    write_omop_cohort(model, cohort, tmp_path / "out", Rule("share", exact))
    rows = pd.read_csv(tmp_path / "out" / "cohort.csv").query("cohort_definition_id == 1")
    assert cohort.patient_ids[shares[:, 0] == exact][0] in rows["subject_id"].to_numpy()


def test_without_members_the_table_is_empty_with_a_header(cohort, model, tmp_path):
    write_omop_cohort(model, cohort, tmp_path / "out", Rule("score", 1e9))
    text = (tmp_path / "out" / "cohort.csv").read_text()
    assert text == "cohort_definition_id,subject_id,cohort_start_date,cohort_end_date\n"


def test_the_omop_source_reads_the_rows_as_a_population(tmp_path):
    """From a CDM to phenotypes, to a cohort table in that CDM, to the cohort of its members."""
    from helpers import simulated_cdm
    from phenotaste import build
    from phenotaste.build.settings import Settings
    from phenotaste.sources import omop
    from phenotaste.sources.workspace import Workspace

    place = simulated_cdm.write_parquet(simulated_cdm.cdm(seed=1), tmp_path / "cdm")
    settings = Settings(visit="day")
    with Workspace() as workspace:
        whole = build.cohort(workspace, omop.read(workspace, str(place)), settings).cohort
    fitted = TASTE(2, n_init=1, init="random", random_state=0, max_iter=5).fit(whole)
    write_omop_cohort(fitted, whole, place / "results", Rule("share", 0.6))
    rows = pd.read_csv(place / "results" / "cohort.csv").query("cohort_definition_id == 2")
    asked = {"cohort_table": "results.cohort", "cohort_id": 2}
    with Workspace() as workspace:
        members = omop.read(workspace, str(place), **asked).persons.to_pandas()["patient"]
    assert sorted(members) == sorted(rows["subject_id"])
    assert 0 < len(rows) < len(whole)


# --- both --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WRITERS)
def test_the_definition_file_holds_no_patients(cohort, model, tmp_path, kind):
    WRITERS[kind](reviewed(model), cohort, tmp_path / "out", Rule("share", 0.4))
    record = json.loads((tmp_path / "out" / "definition.json").read_text())
    assert record["rule"] == {"measure": "share", "comparison": ">=", "threshold": 0.4}
    assert record["phenotaste"] == __version__
    assert record["model"] == {"method": "TASTE", "fingerprint": fingerprint(model), "phenotypes": 3}
    assert [(each["number"], each["name"], each["merged"]) for each in record["phenotypes"]] == [
        (1, 'Heart "failure", chronic', [1, 2]),
        (3, "Phenotype 3", [3]),
    ]
    table = model.phenotypes().query("phenotype == 3")
    heaviest = record["phenotypes"][1]["heaviest_features"]
    assert [each["feature"] for each in heaviest] == table["feature"].tolist()
    assert record["dates"]
    review = reviewed(model).review
    assert record["review"] == {**review.provenance()._asdict(), "based_on": []}
    assert [each["status"] for each in record["phenotypes"]] == ["open", "open"]
    assert record["phenotypes"][0]["decided_by"] == [{"reviewer": review.reviewer, "date": review.date}]
    words = set(
        re.findall(r"(?<![\w.])\d+(?![\w.])", json.dumps(record))
    )  # no digits of a longer number or of a hash
    assert not words & {str(number) for number in cohort.patient_ids}


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.sampled_from(["share", "score", "amount"]))
@settings(max_examples=20)
def test_a_higher_threshold_never_adds_a_member(cohort, model, one, other, measure):
    low, high = sorted((one, other))
    few = cohort[:15]
    more = find_members(model, few, Rule(measure, low)).members
    fewer = find_members(model, few, Rule(measure, high)).members
    assert not (fewer & ~more).any()


def test_more_than_half_is_one_phenotype_at_most(cohort, model):
    assert find_members(model, cohort, Rule("share", 0.501)).members.sum(axis=1).max() == 1


def test_small_counts_are_suppressed(cohort, model, tmp_path):
    shares = measures(model, cohort)["share"][1:]
    counts = (shares >= 0.3).sum(axis=0)
    found = write_meds_labels(model, cohort, tmp_path / "out", Rule("share", 0.3))
    for shown, n in zip(found.members, counts, strict=True):
        assert (11 <= n <= 48 and shown % 5 == 0 and abs(shown - n) < 5) if shown else n < 20 or n > 40
    seldom = float(np.sort(shares[:, 0])[-5])
    assert write_meds_labels(model, cohort, tmp_path / "few", Rule("share", seldom)).members[0] is None
    common = int(np.argmax((shares > 0).sum(axis=0)))
    often = float(shares[shares[:, common] > 0, common].min())
    assert 0 < (shares[:, common] < often).sum() < 11  # few are not members, which says as much
    assert write_meds_labels(model, cohort, tmp_path / "many", Rule("share", often)).members[common] is None


def test_integer_strings_are_ids(cohort, model, tmp_path):
    found = find_members(model, made(patient_ids=[str(n) for n in cohort.patient_ids]), Rule())
    assert found.subjects.tolist() == cohort.patient_ids[1:].tolist()


def test_rows_of_one_patient_have_its_id_and_count_once(cohort, model, tmp_path):
    ids, groups = [f"{k}@2020" for k in range(60)], 70_000 + np.arange(60) // 3
    several = made(patient_ids=ids, groups=groups)
    assert find_members(model, several, Rule()).subjects.tolist() == groups[1:].tolist()
    written = write_meds_labels(model, several, tmp_path / "labels", Rule("share", 0.01))
    assert written.patients == 20
    table = pq.read_table(tmp_path / "labels" / "phenotype_1.parquet")
    assert table["subject_id"].to_pylist() == groups[1:].tolist()


def test_a_cohort_without_ids_is_reported(cohort, model):
    with pytest.warns(UserWarning, match="count from 0"):
        find_members(model, made(patient_ids=None), Rule())


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("changes", "rule", "words"),
    [
        ({"patient_ids": [f"secret-{k}" for k in range(60)]}, Rule(), "ids are text"),
        ({"patient_ids": [f"{k:03d}" for k in range(60)]}, Rule(), "ids are text"),
        ({"patient_ids": [str(2**70 + k) for k in range(60)]}, Rule(), "ids are text"),
        ({"patient_ids": np.arange(60, dtype=np.uint64) + 2**63}, Rule(), "more than 64 bits"),
        ({"visit_times": None}, Rule(), "have no times"),
        ({"visit_times": "numbers"}, Rule(), "have numbers for times"),
        ({}, Rule("share", 1.5), "no share exceeds 1"),
        ({}, Rule("score", 0.0), "above zero"),
        ({}, Rule("score", float("nan")), "above zero"),
        ({}, Rule("leading"), "must be one of 'share', 'score', 'amount'"),
    ],
)
def test_refused_exports_leave_no_files(model, tmp_path, kind, changes, rule, words):
    if isinstance(changes.get("visit_times"), str):
        changes = {"visit_times": made().visit_times.astype("M8[D]").astype(float)}
    with pytest.raises(InputError, match=words) as refusal:
        WRITERS[kind](model, made(**changes), tmp_path / "out", rule)
    assert "secret" not in str(refusal.value)
    assert str(refusal.value).count(". ") == 0
    assert not os.listdir(tmp_path)


def test_ids_of_cohorts_must_fit(cohort, model, tmp_path):
    for first in (0, 2**31 - 2):
        with pytest.raises(InputError, match="first_id"):
            write_omop_cohort(model, cohort, tmp_path / "out", first_id=first)
    assert not os.listdir(tmp_path)


def test_scores_that_may_be_negative_have_no_members(cohort, tmp_path):
    signed = baselines.Spartan(2, nonnegative=False, random_state=0, max_iter=3).fit(cohort)
    with pytest.raises(InputError, match="may be negative"):
        write_meds_labels(signed, cohort, tmp_path / "out")
    with pytest.raises(InputError, match="not fitted"):
        write_meds_labels(TASTE(2), cohort, tmp_path / "out")


def test_files_are_private(cohort, model, tmp_path):
    for kind, write in WRITERS.items():
        write(model, cohort, tmp_path / kind)
        assert stat.S_IMODE((tmp_path / kind).stat().st_mode) == 0o700
        for file in (tmp_path / kind).iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_existing_export_is_replaced_atomically_and_on_request_only(cohort, model, tmp_path):
    out = tmp_path / "out"
    write_meds_labels(model, cohort, out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(InputError, match="exists already"):
        write_omop_cohort(model, cohort, out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    write_meds_labels(reviewed(model), cohort, out, overwrite=True)
    assert sorted(os.listdir(out)) == ["definition.json", "phenotype_1.parquet", "phenotype_3.parquet"]
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not part of an export"):
        write_meds_labels(model, cohort, out, overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["out"]


def interrupted(out):
    with export_folder(out, overwrite=True) as folder:
        (folder / "cohort.csv").write_text("new")
        raise KeyboardInterrupt


def test_a_failed_export_leaves_the_previous_one(tmp_path):
    out = tmp_path / "out"
    for old in (None, "old"):
        if old:
            out.mkdir()
            (out / "cohort.csv").write_text(old)
        with pytest.raises(KeyboardInterrupt):
            interrupted(out)
        assert os.listdir(tmp_path) == (["out"] if old else [])
    assert (out / "cohort.csv").read_text() == "old"
