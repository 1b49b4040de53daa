"""The OMOP source on a simulated CDM, in every file format."""

import datetime as dt
import shutil
import subprocess
import sys

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as pa_csv

from helpers import simulated_cdm as made
from helpers.omop import COLUMNS, OPTIONS, concept_set, expected, read, refusal
from phenotaste.build.patient_facts import label_columns
from phenotaste.sources import omop
from phenotaste.sources.omop.backends import open_cdm
from phenotaste.sources.omop.vocabulary import index_codes
from phenotaste.sources.workspace import Workspace


def events(location, kind=None, **options):
    """The events as a list of dicts."""
    with Workspace(threads=1) as workspace:
        table = omop.read(workspace, str(location), **options).events.to_pyarrow()
    return [row for row in table.to_pylist() if kind in (None, row["kind"])]


def copy_of(parquet, folder, without=()):
    shutil.copytree(parquet, folder, dirs_exist_ok=True)
    for name in without:
        (folder / f"{name}.parquet").unlink()
    return folder


@pytest.fixture(scope="module")
def forms(tables, parquet, tmp_path_factory):
    """The same CDM as CSV and as a DuckDB file."""
    folder = tmp_path_factory.mktemp("forms")
    held = tables | {"cohort": made.cohort()}
    return [
        made.write_csv(held, folder / "csv"),
        made.write_duckdb(held, folder / "it's a cdm.duckdb", "cdm"),
    ]


# CSV needs every column converted, DuckDB none, whatever the options: each choice is quick with one of the two.
FROM_CSV = OPTIONS[1], OPTIONS[4], OPTIONS[5], OPTIONS[6]


@pytest.mark.parametrize(
    ("form", "options"),
    [
        pytest.param(form, options, marks=[] if quick else pytest.mark.slow, id=f"{name}-{options}")
        for options in OPTIONS
        for form, name, quick in ((0, "csv", options in FROM_CSV), (1, "duckdb", options not in FROM_CSV))
    ],
)
def test_every_form_gives_the_same_rows(parquet, forms, form, options):
    wanted = expected(parquet, **options)
    assert len(wanted["events"][1]) > 300
    found = read(forms[form], **options)
    for name, part in wanted.items():
        assert found[name] == part, name


def test_concepts_as_they_are(tables, parquet):
    held = tables["condition_occurrence"]
    found = events(parquet, "diagnosis")
    wanted = [
        (
            p,
            moment if moment and moment.date() == d else dt.datetime.combine(d, dt.time()),
            str(v) if v else None,
            str(c or 0),
        )
        for p, d, moment, v, c in zip(
            *(held[n].to_pylist() for n in ("person_id", "condition_start_date", "condition_start_datetime")),
            held["visit_occurrence_id"].to_pylist(),
            held["condition_concept_id"].to_pylist(),
            strict=True,
        )
    ]
    as_text = sorted([(r["patient"], r["time"], r["visit"], r["code"]) for r in found], key=repr)
    assert as_text == sorted(wanted, key=repr)
    assert {r["vocabulary"] for r in found} == {"OMOP"}
    assert "0" in {r["code"] for r in found}  # unmapped ones are there to be counted


def test_results_have_the_range_the_unit_and_the_interpretation_of_their_row(tables, parquet):
    with Workspace(threads=1) as workspace:
        records = omop.read(workspace, str(parquet), kinds=("measurement",))
        found = records.measurements.to_pyarrow().to_pylist()
        assert records.events.count().execute() == 0
        names = {row["code"]: row["name"] for row in records.names.to_pyarrow().to_pylist()}
    meaning = {0: None, 4328749: "high", 4267416: "low", 4069590: "normal", 4135493: "abnormal"}
    wanted = [
        (
            row["person_id"],
            str(row["measurement_concept_id"]),
            row["value_as_number"],
            row["range_low"],
            row["range_high"],
            row["unit_source_value"] or ("8840" if row["unit_concept_id"] else None),
            meaning[row["value_as_concept_id"]],
            None if row["visit_occurrence_id"] is None else str(row["visit_occurrence_id"]),
        )
        for row in tables["measurement"].to_pylist()
    ]
    columns = ("patient", "code", "value", "low", "high", "unit", "flag", "visit")
    assert sorted(repr([row[name] for name in columns]) for row in found) == sorted(
        repr(list(row)) for row in wanted
    )
    assert names[str(made.BMI)] == "BMI"


def drug_counts(tables, classes):
    """How many events each class must get, from the generator's own tree."""
    wanted = {}
    for drug in tables["drug_exposure"]["drug_concept_id"].to_pylist():
        for code in classes(drug) or {"0"}:
            wanted[code] = wanted.get(code, 0) + 1
    return wanted


def counted(found, *keys):
    counts = {}
    for row in found:
        key = tuple(row[k] for k in keys)
        counts[key if len(keys) > 1 else key[0]] = counts.get(key if len(keys) > 1 else key[0], 0) + 1
    return counts


def test_drugs_roll_up_to_ingredients_by_default(tables, parquet):
    wanted = drug_counts(
        tables, lambda drug: {str(i) for i in made.DRUGS.get(drug, {drug} & {*made.INGREDIENTS})}
    )
    found = events(parquet, "medication")
    assert counted(found, "code") == wanted
    assert wanted["1102"] > 0
    assert wanted["0"] > 0


@pytest.mark.parametrize("level", [1, 2, 4, 5])
def test_drugs_roll_up_to_atc(tables, parquet, level):
    tree, klass = made.parents(), ("ATC 1st", "ATC 2nd", "ATC 3rd", "ATC 4th", "ATC 5th")[level - 1]

    def classes(drug):
        above = made.ancestors(drug, tree)
        return {made.ATC[a][0] for a in above if a in made.ATC and made.ATC[a][1] == klass}

    found = events(parquet, "medication", drugs=f"atc{level}")
    assert counted(found, "code") == drug_counts(tables, classes)
    assert {(r["vocabulary"], r["code"] == "0") for r in found} == {("ATC", False), ("OMOP", True)}


def test_an_ingredient_without_a_line_about_itself_is_its_own_class(tables, parquet, tmp_path):
    folder = copy_of(parquet, tmp_path, ["drug_era"])
    ancestor = tables["concept_ancestor"]
    held = ancestor.filter(pc.greater(ancestor["min_levels_of_separation"], 0))
    exposure = tables["drug_exposure"]
    place = exposure.schema.get_field_index("drug_concept_id")
    exposure = exposure.set_column(place, "drug_concept_id", pa.array([1101] * len(exposure)))
    made.write_parquet({"concept_ancestor": held, "drug_exposure": exposure}, folder)
    assert set(counted(events(folder, "medication"), "code")) == {"1101"}


@pytest.mark.parametrize("level", [1, 2, 3])
def test_conditions_roll_up_to_a_level(tables, parquet, level):
    tree = made.CONDITION_TREE
    wanted = {}
    for concept in tables["condition_occurrence"]["condition_concept_id"].to_pylist():
        concept = concept or 0
        above = made.ancestors(concept, tree)
        depth = {a: made.ancestors(a, tree).get(made.ROOT) for a in above}
        for target in [a for a, d in depth.items() if d == level] or [concept]:
            wanted[str(target)] = wanted.get(str(target), 0) + 1
    assert counted(events(parquet, "diagnosis", condition_level=level), "code") == wanted


def test_source_codes(tables, parquet):
    held = tables["condition_occurrence"]
    wanted = {}
    for concept, written in zip(
        held["condition_source_concept_id"].to_pylist(),
        held["condition_source_value"].to_pylist(),
        strict=True,
    ):
        text = (written or "").strip()
        key = made.ICD[concept][:2] if concept else ("ICD10CM", text) if text else ("OMOP", "0")
        wanted[key] = wanted.get(key, 0) + 1
    found = events(parquet, codes="source", source_vocabulary="ICD10CM")
    diagnoses = [r for r in found if r["kind"] == "diagnosis"]
    assert counted(diagnoses, "vocabulary", "code") == wanted
    drugs = {r["vocabulary"] for r in found if r["kind"] == "medication"}
    assert drugs == {"source"}  # source codes of drugs too, and the option speaks of diagnoses


def test_names_of_the_codes_that_occur(parquet):
    with Workspace(threads=1) as workspace:
        records = omop.read(workspace, str(parquet), drugs="atc4", condition_level=2)
        names = {(r["vocabulary"], r["code"]): r["name"] for r in records.names.to_pyarrow().to_pylist()}
        used = {(r["vocabulary"], r["code"]) for r in records.events.to_pyarrow().to_pylist()}
    assert names[("ATC", "C09AA")] == "Class C09AA"
    assert names[("OMOP", "201")] == "Condition 201"
    assert used - set(names) <= {("OMOP", "0")}
    assert set(names) <= used


def test_persons(tables, parquet):
    with Workspace(threads=1) as workspace:
        records = omop.read(workspace, str(parquet))
        found = {r["patient"]: r for r in records.persons.to_pyarrow().to_pylist()}
        notes = records.notes
    raw = {r["person_id"]: r for r in tables["person"].to_pylist()}
    assert set(found) == set(raw)
    races = {8527: "white", 8515: "asian", 8516: "black or african american"}  # the last is not in `concept`
    for person, r in raw.items():
        f = found[person]
        born = r["birth_datetime"] and r["birth_datetime"].date()
        y, m, d = r["year_of_birth"], r["month_of_birth"], r["day_of_birth"]
        assert f["birth"] == (born or dt.date(y, m or 7, (d or 1) if m else 1))
        assert f["sex"] == {8507: "male", 8532: "female", 0: "female"}[r["gender_concept_id"]]
        written = r["race_source_value"] and r["race_source_value"].lower()
        assert f["race"] == (races.get(r["race_concept_id"]) or written)
        assert f["ethnicity"] in ("not hispanic or latino", "other", None)
    assert found[1000]["death"] == dt.date(2018, 5, 5)
    assert sum(f["death"] is not None for f in found.values()) == 34
    assert any("1 July" in note for note in notes)
    assert any("first of the month" in note for note in notes)


def test_facts(tables, parquet):
    with Workspace(threads=1) as workspace:
        found = omop.read(workspace, str(parquet)).facts.to_pyarrow().to_pylist()
    answers = {made.NEVER: "no", 6002: "quit", 6003: "yes"}
    words = {"unknown if ever smoked": None, "ex-smoker": "quit", "Non-smoker": "no", None: None}
    wanted = []
    for r in tables["observation"].to_pylist():
        asked = r["observation_concept_id"]
        if asked == made.SMOKING:
            value = answers.get(r["value_as_concept_id"]) or words[r["value_as_string"]]
            wanted.append((r["person_id"], r["observation_date"], "smoking", value, None))
        elif asked == made.EX_SMOKER:
            wanted.append((r["person_id"], r["observation_date"], "smoking", "quit", None))
        elif asked == made.DRINKER:
            wanted.append((r["person_id"], r["observation_date"], "alcohol", "yes", None))
    wanted = [w for w in wanted if w[3]]
    for r in tables["measurement"].to_pylist():
        if r["measurement_concept_id"] in (made.BMI, 6020) and r["value_as_number"]:
            wanted.append((r["person_id"], r["measurement_date"], "bmi", None, r["value_as_number"]))
    as_rows = [(f["patient"], f["time"].date(), f["name"], f["value"], f["number"]) for f in found]
    assert sorted(as_rows, key=repr) == sorted(wanted, key=repr)
    assert len({w[2:4] for w in wanted}) == 5


def test_a_cohort_is_the_population_and_the_index(parquet):
    with Workspace(threads=1) as workspace:
        records = omop.read(workspace, str(parquet), cohort_table="cohort", cohort_id=7)
        held = {
            name: getattr(records, name).to_pyarrow()
            for name in COLUMNS
            if name not in ("names", "measurements")
        }
    for name, table in held.items():
        assert set(table["patient"].to_pylist()) <= set(range(1000, 1040)), name
    assert len(held["persons"]) == 40
    assert len(held["labels"]) == 41
    assert set(held["labels"]["value"].to_pylist()) == {1}
    assert dt.datetime(2015, 1, 1) in held["labels"]["time"].to_pylist()


def test_a_cohort_in_another_schema(tables, tmp_path):
    place = made.write_duckdb(
        tables, tmp_path / "hospital.duckdb", "cdm", {"results": {"cohort": made.cohort()}}
    )
    held = read(place, cohort_table="Results.COHORT", cohort_id=8)
    assert len(held["persons"][1]) == 1
    assert "no readable cohort table" in refusal(place, cohort_table="cohort", cohort_id=8)
    assert "definition id 9" in refusal(place, cohort_table="results.cohort", cohort_id=9)
    assert "both" in refusal(place, cohort_table="results.cohort")


def test_concept_sets(parquet, tmp_path):
    def codes(*items, codes="standard"):
        chosen = concept_set(tmp_path / "set.json", *items)
        with Workspace(threads=1) as workspace, open_cdm(workspace, str(parquet), None) as cdm:
            return set(index_codes(cdm, chosen, codes))

    assert codes((101, False, False, False)) == {"OMOP:101"}
    assert codes((101, False, True, False)) == {"OMOP:101", "OMOP:201", "OMOP:301", "OMOP:302"}
    assert codes((101, False, True, False), (302, True, False, False)) == {"OMOP:101", "OMOP:201", "OMOP:301"}
    assert codes((101, False, True, False), (201, True, True, False)) == {"OMOP:101"}
    assert codes((303, False, False, True)) == {"OMOP:303", "OMOP:7002"}
    deep = {"OMOP:201", "OMOP:301", "OMOP:302", "OMOP:7001", "OMOP:7003"}  # what maps to descendants too
    assert codes((201, False, True, True)) == deep
    # An invalid mapping, 7002 to 201, is none.
    assert codes((201, False, True, False), codes="source") == {
        "SNOMED:S201",
        "SNOMED:S301",
        "SNOMED:S302",
        "ICD9CM:428.0",
        "ICD10CM:I50.1",
    }


def test_concept_sets_that_cannot_be_used(parquet, tmp_path):
    chosen = concept_set(tmp_path / "set.json", (101, False, True, False))
    bare = copy_of(parquet, tmp_path / "bare", ["concept_relationship", "concept_ancestor"])
    assert "concept_ancestor" in refusal(bare, index_concepts=chosen)
    plain = concept_set(tmp_path / "plain.json", (101, False, False, False))
    assert "concept_relationship" in refusal(bare, index_concepts=plain, codes="source")
    assert "is empty" in refusal(
        parquet, index_concepts=concept_set(tmp_path / "none.json", (101, True, True, False))
    )
    for text in ("{", "[1]", '{"items": [{}]}', "3"):
        (tmp_path / "bad.json").write_text(text)
        assert "bad.json" in refusal(parquet, index_concepts=tmp_path / "bad.json")
    assert "does not exist" in refusal(parquet, index_concepts=tmp_path / "absent.json")
    assert "omit one of them" in refusal(parquet, index_concepts=chosen, condition_level=2)


def test_upper_case_names_and_ids_as_text(tables, parquet, tmp_path):
    """Ids that are whole numbers stay numbers, however they are held: patients keep their order."""
    loud = {}
    for name, table in (tables | {"cohort": made.cohort()}).items():
        text = [f for f in table.column_names if f in ("person_id", "visit_occurrence_id", "subject_id")]
        for field in text:
            table = table.set_column(
                table.schema.get_field_index(field), field, table[field].cast(pa.string())
            )
        loud[name.upper()] = table.rename_columns([f.upper() for f in table.column_names])
    place = made.write_duckdb(loud, tmp_path / "loud.duckdb", "CDM")
    options = {"cohort_table": "cohort", "cohort_id": 7}
    assert read(place, schema="cdm") == expected(parquet)
    assert read(place, **options)["events"] == expected(parquet, **options)["events"]


def test_ids_stored_as_floats(tables, parquet, tmp_path):
    """A column of integers with gaps, written as 12.0 and nothing."""
    half = {}
    for name, table in tables.items():
        for field in ("person_id", "visit_occurrence_id"):
            if field in table.column_names:
                texts = [None if v is None else f"{v}.0" for v in table[field].to_pylist()]
                table = table.set_column(
                    table.schema.get_field_index(field), field, pa.array(texts, pa.string())
                )
        half[name] = table
    assert read(made.write_csv(half, tmp_path)) == expected(parquet)


def test_ids_that_are_no_numbers(tables, parquet, tmp_path):
    """A letter before each id: the same records, with a letter before each patient."""
    lettered = {}
    for name, table in tables.items():
        if "person_id" in table.column_names:
            at = table.schema.get_field_index("person_id")
            ids = pa.array([f"p{i}" for i in table["person_id"].to_pylist()])
            table = table.set_column(at, "person_id", ids)
        lettered[name] = table
    made.write_csv(lettered, tmp_path)
    found, wanted = events(tmp_path), events(parquet)
    assert sorted(r["patient"] for r in found) == sorted(f"p{r['patient']}" for r in wanted)


def test_only_eras(tables, tmp_path):
    made.write_csv({name: tables[name] for name in ("person", "condition_era", "drug_era")}, tmp_path)
    found = events(tmp_path)
    assert len(found) == 4000
    assert {r["visit"] for r in found} == {None}
    assert {r["kind"] for r in found} == {"diagnosis", "medication"}
    assert "eras only" in refusal(tmp_path, codes="source")
    assert "drug_exposure" in refusal(tmp_path, drugs="exposure")
    assert "concept" in refusal(tmp_path, drugs="atc3")


def test_part_files_in_a_folder_for_each_table(tables, parquet, tmp_path):
    copy_of(parquet, tmp_path, ["condition_occurrence"])
    parts = tmp_path / "Condition_Occurrence"
    parts.mkdir()
    whole = tables["condition_occurrence"]
    pa.parquet.write_table(whole.slice(0, 1500), parts / "part-0.parquet")
    pa.parquet.write_table(whole.slice(1500).drop(["site_column"]), parts / "part-1.parquet")
    (parts / "_SUCCESS").touch()
    assert read(tmp_path)["events"] == expected(parquet)["events"]


def test_visits_by_date_where_few_events_name_one(tables, parquet, tmp_path):
    folder = copy_of(parquet, tmp_path)
    some = tables["visit_occurrence"].slice(0, 300)
    made.write_parquet({"visit_occurrence": some}, folder)
    held = read(folder)
    assert held["visits"] is None
    assert {r["visit"] for r in events(folder)} == {None}
    assert any("visits are by date" in note for note in held["notes"])
    assert expected(parquet)["visits"] is not None
    assert not any("visits are by date" in note for note in expected(parquet)["notes"])


def test_a_time_where_there_is_no_date(tables, parquet, tmp_path):
    folder = copy_of(parquet, tmp_path)
    held = tables["condition_occurrence"]
    made.write_parquet({"condition_occurrence": held.drop(["condition_start_date"])}, folder)
    times = [row["time"] for row in events(folder, "diagnosis")]
    assert sorted(times, key=repr) == sorted(held["condition_start_datetime"].to_pylist(), key=repr)


def test_visits_have_their_end(tables, parquet):
    with Workspace(threads=1) as workspace:
        found = omop.read(workspace, str(parquet)).visits.to_pyarrow().to_pylist()
    wanted = {}
    for row in tables["visit_occurrence"].to_pylist():
        day, moment = row["visit_end_date"], row["visit_end_datetime"]
        end = (
            moment
            if day is None or (moment and moment.date() == day)
            else dt.datetime.combine(day, dt.time())
        )
        wanted[str(row["visit_occurrence_id"])] = row["visit_start_datetime"], end
    assert {row["visit"]: (row["time"], row["end_time"]) for row in found} == wanted


def test_eras_only_where_they_do_not_part_drugs_from_diagnoses(tables, parquet, tmp_path):
    """Without a vocabulary to roll up with, eras have the ingredients, but exposures have the visits."""
    folder = copy_of(parquet, tmp_path, without=("concept_ancestor",))
    drugs = events(folder, "medication")
    assert {int(row["code"]) for row in drugs} == {*made.DRUGS, 1101, 0}
    assert sum(row["visit"] is not None for row in drugs) > len(drugs) / 2
    held = tables["drug_exposure"]
    made.write_parquet({"drug_exposure": held.drop(["visit_occurrence_id"])}, folder)
    assert {int(row["code"]) for row in events(folder, "medication")} == set(made.INGREDIENTS)


def test_missing_tables_and_columns(tables, parquet, tmp_path):
    folder = copy_of(parquet, tmp_path / "a")
    held = tables["condition_occurrence"]
    for column, others in (
        ("condition_concept_id", []),
        ("person_id", []),
        ("condition_start_date", ["condition_start_datetime"]),
    ):
        made.write_parquet({"condition_occurrence": held.drop([column, *others])}, folder)
        said = refusal(folder)
        assert column in said
        assert "condition_occurrence" in said
    made.write_parquet({"observation": tables["observation"].drop(["observation_date"])}, folder)
    made.write_parquet({"condition_occurrence": held}, folder)
    assert "observation_date" in refusal(folder)
    (tmp_path / "empty").mkdir()
    assert "no readable person table" in refusal(tmp_path / "empty")
    alone = made.write_parquet({"person": tables["person"]}, tmp_path / "alone")
    assert "no event table" in refusal(alone)
    assert "does not exist" in refusal(tmp_path / "nowhere")
    (tmp_path / "file.duckdb").write_text("no database")
    assert "DuckDB" in refusal(tmp_path / "file.duckdb")


def test_values_that_cannot_be_read(tables, tmp_path):
    made.write_csv(tables, tmp_path)
    held = tables["condition_occurrence"]
    for column, bad in (("condition_start_date", "31/12/2010"), ("condition_concept_id", "E11")):
        at = held.schema.get_field_index(column)
        texts = [str(v) for v in held[column].to_pylist()]
        texts[17] = bad
        made.write_csv({"condition_occurrence": held.set_column(at, column, pa.array(texts))}, tmp_path)
        said = refusal(tmp_path)
        assert column in said
        assert bad not in said


def test_a_few_bad_dates_of_birth_or_death_are_missing_and_counted(tables, tmp_path):
    folder = made.write_csv(tables, tmp_path)
    for name, column in (("person", "birth_datetime"), ("death", "death_date")):
        held = tables[name]
        texts = [None if value is None else str(value) for value in held[column].to_pylist()]
        texts[0] = "31/12/1950"
        at = held.schema.get_field_index(column)
        made.write_csv({name: held.set_column(at, column, pa.array(texts))}, folder)
    notes = read(folder)["notes"]
    assert "Column birth_datetime of person has 1 value that is not a date, counted as missing." in notes
    assert "Column death_date of death has 1 value that is not a date, counted as missing." in notes
    texts = ["31/12/1950"] * len(held)
    made.write_csv({name: held.set_column(at, column, pa.array(texts))}, folder)
    assert "column death_date of death has" in refusal(folder)


@pytest.mark.parametrize("column", ["person_id", "condition_concept_id", "condition_start_date"])
def test_columns_of_the_wrong_type(tables, parquet, tmp_path, column):
    folder = copy_of(parquet, tmp_path)
    held = tables["condition_occurrence"]
    at = held.schema.get_field_index(column)
    for wrong in (pa.array([[1]] * len(held)), pa.array([True] * len(held))):
        made.write_parquet({"condition_occurrence": held.set_column(at, column, wrong)}, folder)
        said = refusal(folder)
        assert column in said
        assert "condition_occurrence" in said


def test_a_file_that_is_cut_off(parquet, tmp_path):
    folder = copy_of(parquet, tmp_path)
    whole = (folder / "death.parquet").read_bytes()
    (folder / "death.parquet").write_bytes(whole[: len(whole) // 2])
    assert "death" in refusal(folder)


def test_persons_twice(tables, parquet, tmp_path):
    folder = copy_of(parquet, tmp_path)
    person = tables["person"]
    made.write_parquet({"person": pa.concat_tables([person, person.slice(0, 2)])}, folder)
    assert "2 rows" in refusal(folder)


def test_schemas(tables, tmp_path):
    two = made.write_duckdb(tables, tmp_path / "two.duckdb", "first", {"second": tables})
    assert "first, second" in refusal(two)
    assert "first, second" in refusal(two, schema="third")
    assert "first, second" in refusal(two, schema="main")
    assert read(two, schema="SECOND") == read(two, schema="first")


@pytest.mark.parametrize(
    "options",
    [
        {"codes": "icd"},
        {"drugs": "atc6"},
        {"kinds": ("lab",)},
        {"kinds": ()},
        {"condition_level": 0},
        {"condition_level": 2, "codes": "source"},
    ],
    ids=str,
)
def test_invalid_options_are_refused(parquet, options):
    refusal(parquet, **options)


def test_a_database_file_that_others_read_too(tables, parquet, tmp_path):
    """It is opened for reading only: beside another reader it could not be opened otherwise."""
    place = made.write_duckdb(tables, tmp_path / "cdm.duckdb")
    before = place.read_bytes()
    script = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "open\n"
        found = read(place)
        other.communicate("\n")
    assert found == expected(parquet)
    assert place.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["cdm.duckdb"]


VIEWS = {
    "read_csv": "select * from read_csv('{secret}', all_varchar=true)",
    "a file name": "select * from '{secret}'",
    "glob": "select file as condition_concept_id from glob('{folder}/*')",
    "a Python variable": "select * from secret_rows",
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_database_file_reads_no_other_file(tables, tmp_path, view):
    held = tables["condition_occurrence"]
    (secret,) = made.write_csv({"condition_occurrence": held}, tmp_path / "elsewhere").iterdir()
    secret_rows = held  # noqa: F841 - DuckDB would find it by its name
    path = made.write_duckdb(
        {n: t for n, t in tables.items() if n != "condition_occurrence"}, tmp_path / "cdm.duckdb"
    )
    query = VIEWS[view].format(secret=secret, folder=secret.parent)
    with duckdb.connect(path) as database:
        database.register("secret_rows", held)
        database.execute(f"create view condition_occurrence as {query}")
    message = refusal(path)
    assert "condition_occurrence" in message
    assert "view" in message
    assert str(secret.parent) not in message


def test_a_view_of_tables_of_its_own_database_is_read(tables, parquet, tmp_path):
    path = made.write_duckdb(tables, tmp_path / "cdm.duckdb")
    with duckdb.connect(path) as database:
        database.execute("alter table condition_occurrence rename to stored")
        database.execute("create view condition_occurrence as select * from stored")
    assert read(path)["events"] == expected(parquet)["events"]


def test_files_of_the_user_are_read_beside_a_database_file(tmp_path):
    table = pa.table({"patient": ["1", "2"], "time": ["2010-01-01", "2011-02-03"]})
    pa_csv.write_csv(table, tmp_path / "labels.csv")
    pq.write_table(table, tmp_path / "labels.parquet")
    with Workspace(threads=1) as workspace:
        workspace.confine()
        for file in ("labels.csv", "labels.parquet"):
            found = label_columns(workspace, tmp_path / file, None, True).order_by("patient").to_pyarrow()
            assert found["patient"].to_pylist() == ["1", "2"]
            assert [moment.year for moment in found["time"].to_pylist()] == [2010, 2011]


def test_locations_are_shown_without_secrets():
    shown = {
        "postgresql://ann:s3cret@db:5432/cdm?sslmode=require": "postgresql://db:5432/cdm",
        "postgres://ann:s3cret@[::1]:5432/cdm": "postgres://[::1]:5432/cdm",
        "postgresql://ann@a:1,b:2/cdm": "postgresql://a:1,b:2/cdm",
        "postgresql:///cdm?host=/run&password=s3cret": "postgresql:///cdm",
        "postgresql://db?password=s3cret": "postgresql://db",
        "postgresql://ann:s3/cret@db/cdm": "postgresql://…",
        "postgresql://ann:s3cret/cdm": "postgresql://…",
        "postgresql://ann:s3@cret@db/cdm": "postgresql://db/cdm",
        "postgresql://ann:s3#cret@db/cdm": "postgresql://…",
        "postgresql://db/cdm?user=a@b&password=s3cret": "postgresql://…",
        "postgresql+psycopg://ann:s3cret@db/cdm": "postgresql+psycopg://db/cdm",
        "host=db password=s3cret": "…",
        "data/cdm.duckdb": "data/cdm.duckdb",
    }
    for location, wanted in shown.items():
        assert omop.redacted(location) == wanted


@pytest.fixture(scope="module")
def apart(tables, tmp_path_factory):
    """A CDM without a vocabulary, which is in a subfolder, in a second schema and in a folder of its own."""
    folder = tmp_path_factory.mktemp("apart")
    clinical, vocabulary = made.without_vocabulary(tables)
    made.write_parquet(clinical, folder / "cdm")
    made.write_parquet(vocabulary, folder / "cdm" / "Vocab")
    made.write_csv(vocabulary, folder / "download")
    made.write_duckdb(clinical, folder / "apart.duckdb", "cdm", {"Vocab": vocabulary})
    return folder


@pytest.mark.parametrize("options", [OPTIONS[3], OPTIONS[5]], ids=str)
def test_a_vocabulary_elsewhere_gives_the_same_rows(parquet, apart, options):
    wanted = expected(parquet, **options)
    assert not wanted["warnings"]
    assert read(apart / "cdm", vocabulary_schema="vocab", **options) == wanted
    assert read(apart / "apart.duckdb", vocabulary_schema="Vocab", **options) == wanted
    assert read(apart / "cdm", vocabulary_folder=apart / "download", **options) == wanted


def test_a_missing_or_empty_vocabulary_is_a_warning(tables, apart, tmp_path):
    (said,) = read(apart / "cdm")["warnings"]
    assert said.startswith("cdm has no concept table: concepts have no names")
    assert said.endswith("(--vocabulary-schema, --vocabulary-folder) (schemas with a concept table: Vocab).")
    clinical, vocabulary = made.without_vocabulary(tables)
    made.write_parquet(clinical | {"concept": vocabulary["concept"].slice(0, 0)}, tmp_path)
    (said,) = read(tmp_path)["warnings"]
    assert "has an empty concept table" in said


def test_a_place_without_a_vocabulary_is_refused(parquet, apart):
    said = refusal(apart / "cdm", vocabulary_schema="nowhere")
    assert said.endswith("those with a concept table are: Vocab.")
    assert "no concept table in the schema" in refusal(apart / "cdm", vocabulary_schema="")
    assert "has no concept table" in refusal(parquet, vocabulary_folder=apart / "cdm")
    assert "is not a folder" in refusal(parquet, vocabulary_folder=apart / "absent")
    both = {"vocabulary_schema": "Vocab", "vocabulary_folder": apart / "download"}
    assert "give one of them" in refusal(apart / "cdm", **both)


def test_athenas_files_have_tabs_and_plain_quotes(tables, apart, tmp_path):
    clinical, _ = made.without_vocabulary(tables)
    made.write_parquet(clinical, tmp_path / "cdm")
    rows = tables["concept"].to_pylist()
    names = ("concept_id", "concept_name", "vocabulary_id", "concept_class_id", "concept_code")
    rows[1]["concept_name"] = '"Clinical finding'
    lines = ["\t".join(str(row[name]) for name in names) for row in rows]
    (tmp_path / "athena").mkdir()
    (tmp_path / "athena" / "CONCEPT.csv").write_text("\n".join(["\t".join(names), *lines]) + "\n")
    options = {"drugs": "exposure", "vocabulary_folder": tmp_path / "athena"}
    assert read(tmp_path / "cdm", **options)["names"] == expected_names(apart)


def expected_names(apart):
    return read(apart / "cdm", drugs="exposure", vocabulary_schema="vocab")["names"]


def test_local_concepts_of_mimic_are_part_of_the_vocabulary(tables, parquet, tmp_path):
    """Its export has concepts from two billion on in 2b_concept, and no others."""
    local = tables["concept"].filter(pc.equal(tables["concept"]["concept_id"], 201))
    folder = copy_of(parquet, tmp_path / "both")
    others = tables["concept"].filter(pc.not_equal(tables["concept"]["concept_id"], 201))
    made.write_parquet({"concept": others}, folder)
    made.write_csv({"2b_concept": local}, folder)
    assert read(folder) == expected(parquet)
    (folder / "concept.parquet").unlink()
    (said,) = read(folder, drugs="exposure")["warnings"]
    assert "has local concepts only" in said


@pytest.mark.parametrize("name", ["icd-10-cm", "ICD10CM", "icd10cm"])
def test_a_source_vocabulary_may_be_spelt_in_any_way(parquet, name):
    assert read(parquet, codes="source", source_vocabulary=name) == expected(
        parquet, codes="source", source_vocabulary="ICD10CM"
    )


def test_an_unknown_source_vocabulary_is_refused(tables, parquet, tmp_path):
    said = refusal(parquet, codes="source", source_vocabulary="ICD11")
    assert said.startswith("the source vocabulary ICD11 is unknown; use one of ICD, ICD9CM, ICD10CM")
    folder = copy_of(parquet, tmp_path)
    made.write_parquet({"vocabulary": pa.table({"vocabulary_id": ["ICD11", None]})}, folder)
    found = events(folder, "diagnosis", codes="source", source_vocabulary="icd11")
    assert "ICD11" in {row["vocabulary"] for row in found}


def test_source_codes_are_icd_by_their_form(tables, parquet, tmp_path):
    held = tables["condition_occurrence"].slice(0, 4)
    values = ["4280", "I50.9", "local thing", "V45.81"]
    for column, new in (("condition_source_value", values), ("condition_source_concept_id", [0] * 4)):
        held = held.set_column(held.schema.get_field_index(column), column, pa.array(new))
    folder = copy_of(parquet, tmp_path)
    made.write_parquet({"condition_occurrence": held}, folder)
    found = events(folder, "diagnosis", codes="source", source_vocabulary="ICD")
    assert {row["code"]: row["vocabulary"] for row in found} == dict(
        zip(values, ("ICD9CM", "ICD10CM", "source", "ICD9CM"), strict=True)
    )


def test_rows_of_some_types(tables, parquet):
    held = tables["condition_occurrence"]
    billed = held.filter(pc.equal(held["condition_type_concept_id"], 32821))
    options = {"type_concepts": ("diagnosis=32821",)}
    found = expected(parquet, **options)
    assert sum("'diagnosis'" in row for row in found["events"][1]) == len(billed) == len(held) / 2
    assert (
        f"Rows of condition_occurrence with other type concepts than those asked for, left out: {len(billed):,}."
        in found["notes"]
    )
    said = refusal(parquet, type_concepts=("32821",))
    assert said == "no row of drug_exposure has the type concepts asked for; it has: 32838."
    assert "drug_era has no type concepts" in refusal(parquet, drugs="era", type_concepts=("rx=32838",))
    for wrong in ("EHR", "shoes=32821", "dx=", "1.5"):
        assert f"{wrong} is not a type concept" in refusal(parquet, type_concepts=(wrong,))


def test_fields_of_cdm_5_5_do_not_matter(tables, parquet, tmp_path):
    """It adds optional fields and tables of metadata on the vocabulary, and removes none."""
    folder = copy_of(parquet, tmp_path)
    added = {
        "measurement": {"value_as_source_concept_id": pa.int64()},
        "observation": {
            "value_as_date": pa.date32(),
            "unit_source_concept_id": pa.int64(),
            "value_as_source_concept_id": pa.int64(),
        },
    }
    for name, columns in added.items():
        table = tables[name]
        for column, kind in columns.items():
            table = table.append_column(column, pa.nulls(len(table), kind))
        made.write_parquet({name: table}, folder)
    metadata = pa.table({"concept_id": [201], "concept_category": ["A"], "reuse_status": [None]})
    made.write_parquet(
        {"concept_metadata": metadata, "pack_content": pa.table({"pack_concept_id": [1]})}, folder
    )
    for options in ({}, OPTIONS[1]):
        assert read(folder, **options) == expected(parquet, **options)
