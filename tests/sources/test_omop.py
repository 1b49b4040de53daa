"""The OMOP source on a simulated CDM, in every file format."""

import datetime as dt
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers import simulated_cdm as made
from helpers.omop import COLUMNS, OPTIONS, concept_set, expected, read, refusal
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


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_form_gives_the_same_rows(parquet, forms, options):
    wanted = expected(parquet, **options)
    assert len(wanted["events"][1]) > 300
    for form in forms:
        found = read(form, **options)
        for name, part in wanted.items():
            assert found[name] == part, name


def test_concepts_as_they_are(tables, parquet):
    held = tables["condition_occurrence"]
    found = events(parquet, "diagnosis")
    wanted = [
        (p, dt.datetime.combine(d, dt.time()), str(v) if v else None, str(c or 0))
        for p, d, v, c in zip(
            *(held[n].to_pylist() for n in ("person_id", "condition_start_date", "visit_occurrence_id")),
            held["condition_concept_id"].to_pylist(),
            strict=True,
        )
    ]
    as_text = sorted([(r["patient"], r["time"], r["visit"], r["code"]) for r in found], key=repr)
    assert as_text == sorted(wanted, key=repr)
    assert {r["vocabulary"] for r in found} == {"OMOP"}
    assert "0" in {r["code"] for r in found}  # unmapped ones are there to be counted


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
        held = {name: getattr(records, name).to_pyarrow() for name in COLUMNS if name != "names"}
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
    assert "could not be read" in refusal(parquet, index_concepts=tmp_path / "absent.json")
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
    assert read(folder)["events"] == expected(parquet)["events"]  # the day of 23:59


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
