"""Static features of a build, the columns of a model, and what a saved build leaves on disk."""

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from helpers.records import event, person, records
from phenotaste import Cohort, build
from phenotaste.build.settings import Index, Match, Settings, Static
from phenotaste.build.toml import from_toml
from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


def at(day):
    return pd.Timestamp(day)


def fact(patient, time, name, value=None, number=None):
    moment = None if time is None else at(time)
    return {"patient": patient, "time": moment, "name": name, "value": value, "number": number}


def made(workspace, persons, chosen=None, like=None, last="2010-06-15", **others):
    """A build where everybody has two visits, the last on a given day."""
    ids = [row["patient"] for row in persons]
    events = [event(p, day) for p in ids for day in ("2009-01-01", last)]
    return build.cohort(
        workspace, records(workspace, events, persons, **others), chosen or Settings(), model_columns=like
    )


def levels(built, column):
    """The level of each patient, read back from the one-hot columns; there is always exactly one."""
    names = built.cohort.static_names
    mine = [j for j, name in enumerate(names) if name.startswith(f"{column}=")]
    block = built.cohort.static[:, mine]
    assert (block.sum(axis=1) == 1).all()
    return [names[mine[j]].split("=", 1)[1] for j in block.argmax(axis=1)]


def test_ages_are_completed_years_at_the_last_visit(workspace):
    births = [
        "2010-06-15",
        "1992-06-15",
        "1992-06-16",
        "1950-06-15",
        "1950-06-16",
        "1920-06-16",
        "1900-01-01",
    ]
    people = [person(str(k), birth) for k, birth in enumerate([*births, None, "2011-01-01"])]
    expected = ["<18", "18-29", "<18", "60-69", "50-59", "80-89", "90+", "missing", "missing"]
    assert levels(made(workspace, people), "age") == expected


def test_a_leap_day_counts_on_the_first_of_march(workspace):
    people = [person("a", "1992-02-29")]
    assert levels(made(workspace, people, last="2010-02-28"), "age") == ["<18"]
    assert levels(made(workspace, people, last="2010-03-01"), "age") == ["18-29"]


def test_ages_may_be_taken_at_a_date_or_at_the_source_s(workspace):
    people = [person("a", "1950-06-15"), person("b", "1940-06-15")]
    bands = Static(age_bands=(60, 65, 70))
    assert levels(made(workspace, people, Settings(static=bands)), "age") == ["60-64", "70+"]
    built = made(workspace, people, Settings(static=bands), as_of=at("2008-01-01").date())
    assert levels(built, "age") == ["<60", "65-69"]
    fixed = Settings(static=Static(age_bands=(60, 65, 70), age_at="2016-06-14"))
    built = made(workspace, people, fixed, as_of=at("2008-01-01").date())
    assert levels(built, "age") == ["65-69", "70+"]


def test_missing_is_a_level_only_if_a_value_is_missing(workspace):
    people = [person("a", sex="female", race="white"), person("b", sex="male", race=None, region="north")]
    names = made(workspace, people).cohort.static_names.tolist()
    assert names == ["sex=female", "sex=male", "race=white", "race=missing", "region=north", "region=missing"]


def test_without_static_columns_there_is_no_static_matrix(workspace):
    assert made(workspace, [person("a"), person("b")]).cohort.static is None


def test_the_last_fact_counts_and_the_spelling_does_not(workspace):
    people = [person(p) for p in "abcde"]
    facts = [
        fact("a", "2009-01-01", "smoking", "Current every day smoker"),
        fact("a", "2010-01-01", "smoking", "Former smoker"),
        fact("b", None, "smoking", "never"),
        fact("c", "2009-05-05", "smoking", "Yes"),
        fact("c", None, "smoking", "No"),  # without a date it is older than anything
        fact("d", "2009-05-05", "smoking", "unknown if ever smoked"),
        fact("a", "2009-01-01", "alcohol", "Social drinker"),
        fact("b", "2009-01-01", "alcohol", "does not drink"),
        fact("a", "2009-01-01", "marital", "married"),
    ]
    built = made(workspace, people, facts=facts)
    assert levels(built, "smoking") == ["quit", "no", "yes", "missing", "missing"]
    assert levels(built, "alcohol") == ["yes", "no", "missing", "missing", "missing"]
    assert levels(built, "marital") == ["married"] + ["missing"] * 4


def test_a_binary_fact_has_one_column(workspace):
    persons = [person(p, smoking=answer) for p, answer in zip("abc", ("yes", "no", "no"), strict=True)]
    facts = [fact("a", "2009-01-01", "esrd", "yes"), fact("b", "2009-01-01", "esrd", "no")]
    built = made(workspace, persons, facts=facts)
    assert built.cohort.static_names.tolist() == ["smoking=no", "smoking=yes", "esrd=yes", "esrd=missing"]
    assert built.cohort.static.tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 1]]


def test_bmi_has_the_bands_of_the_paper(workspace):
    numbers = [18.4, 18.5, 25, 30, 35, 35.1, 900, None]
    people = [person(str(k)) for k in range(len(numbers))]
    facts = [fact(str(k), "2009-01-01", "bmi", None, number) for k, number in enumerate(numbers)]
    facts.append(fact("7", "2009-01-01", "bmi", "22.5"))  # a number written as text
    built = made(workspace, people, facts=facts)
    assert levels(built, "bmi") == [
        "underweight (<18.5)",
        "normal (18.5-25)",
        "overweight (25-30)",
        "moderately obese (30-35)",
        "moderately obese (30-35)",
        "severely obese (>35)",
        "missing",
        "normal (18.5-25)",
    ]
    without = made(workspace, people, Settings(static=Static(bmi_bands=False)), facts=facts)
    assert without.cohort.static is None


def test_a_fact_is_newer_than_the_persons_table(workspace):
    people = [person("a", smoking="smoker"), person("b", smoking="never smoker")]
    built = made(workspace, people, facts=[fact("a", "2009-01-01", "smoking", "quit in 2008")])
    assert levels(built, "smoking") == ["quit", "no"]


def test_identifiers_are_excluded_with_a_note_and_refused_on_request(workspace):
    people = [person(f"{k:03}", sex="female", record=f"number {k}") for k in range(101)]
    built = made(workspace, people)
    assert built.cohort.static_names.tolist() == ["sex=female"]
    assert any("record has 101 different values" in note for note in built.notes)
    with pytest.raises(InputError, match="record has 101 different values"):
        made(workspace, people, Settings(static=Static(columns=("record",))))
    with pytest.raises(
        InputError, match=r"static\.columns includes income, which no patient of the cohort has"
    ):
        made(workspace, people, Settings(static=Static(columns=("income",))))
    built = made(workspace, people, Settings(static=Static(columns=())))
    assert built.cohort.static is None


def test_no_record_after_the_window_is_used(workspace):
    """An index on 2010-07-01, a gap of 6 months and a window of 12: 2009-01-01 up to, not including, 2010-01-01."""
    inside = ["2009-01-01 00:00", "2009-06-01", "2009-12-31 23:59:59"]
    outside = ["2008-12-31 23:59:59", "2010-01-01", "2010-06-30", "2011-01-01"]
    events = [event("a", day, "in") for day in inside] + [event("a", day, "out") for day in outside]
    events += [event("a", "2010-07-01", "index"), event("b", "2009-03-01", "in")]
    facts = [
        fact("a", "2009-12-31", "smoking", "never"),
        fact("a", "2010-01-01", "smoking", "current"),
    ]
    chosen = Settings(index=Index(codes=("X:index",), window=12, gap=6, covered=False))
    people = [person("a", "1950-01-01"), person("b", "1950-01-01")]
    built = build.cohort(workspace, records(workspace, events, people, facts=facts), chosen)
    assert built.cohort.feature_names.tolist() == ["Dx_in [X]"]
    assert built.cohort.visit_times.tolist() == [at(day).to_pydatetime() for day in inside]
    assert levels(built, "smoking") == ["no"]
    assert levels(built, "age") == ["60-69"]  # 60 on the day that the window ends
    assert built.cohort.labels.tolist() == [1.0]
    row = built.patients.to_pylist()[0]
    assert (row["patient"], str(row["index_date"])) == ("a", "2010-07-01")
    assert (row["window_start"], row["window_end"]) == (at("2009-01-01"), at("2010-01-01"))
    assert built.attrition["step"].tolist()[-1] == "in the window"
    assert built.attrition["events"].tolist()[-1] == 3


def test_an_encounter_that_began_before_the_window_is_dated_by_what_lies_inside(workspace):
    events = [event("a", "2009-01-05", "in", visit="v"), event("a", "2010-07-01", "index", visit="w")]
    starts = [{"patient": "a", "visit": "v", "time": at("2008-12-01")}]
    chosen = Settings(visit="encounter", index=Index(codes=("X:index",), window=12, gap=6, covered=False))
    built = build.cohort(workspace, records(workspace, events, [person("a")], visits=starts), chosen)
    assert built.cohort.visit_times.tolist() == [at("2009-01-05").to_pydatetime()]


def test_matched_sets_that_the_filters_break_are_counted(workspace):
    """Case a and its control c have visits in the window; case b has none, which leaves its control d alone."""
    index, early, late = "2010-06-01", "2009-03-01", "2009-04-01"
    days = {"a": (early, late), "b": ("2010-05-01",), "c": (early, late, index), "d": (early, late, index)}
    events = [event(p, day) for p, listed in days.items() for day in listed]
    events += [event(p, index, code="428") for p in "ab"]
    persons = [person(p, "1940-01-01", sex="female" if p in "ac" else "male") for p in "abcd"]
    periods = [
        {"patient": p, "start": at("2000-01-01").date(), "end": at("2012-01-01").date()} for p in "abcd"
    ]
    chosen = Settings(index=Index(codes=("X:428",)), match=Match(ratio=1, same=("sex",)), min_visits=2)
    built = build.cohort(workspace, records(workspace, events, persons, periods=periods), chosen)
    assert built.cohort.patient_ids.tolist() == ["a", "c", "d"]
    assert [note for note in built.notes if "matched sets" in note] == [
        "1 matched sets have lost their case or all their controls to the filters; "
        "match_set in patients.parquet identifies the sets."
    ]


def test_like_gives_the_model_s_columns_in_its_order(workspace):
    events = [event("a", "2009-01-01", "z"), event("a", "2009-01-01", "x"), event("a", "2009-01-02", "new")]
    events += [event("b", "2009-01-01", "new"), event("c", "2009-01-01", "x"), event("c", "2009-01-03", "x")]
    people = [person("a", sex="female"), person("b", sex="male"), person("c", sex=None), person("d")]
    like = build.ModelColumns(
        ("Dx_z [X]", "Dx_absent [X]", "Dx_x [X]"), ("sex=male", "sex=female", "race=white")
    )
    source = records(workspace, events, people)
    built = build.cohort(workspace, source, Settings(min_patients=99), model_columns=like)
    cohort = built.cohort
    assert cohort.patient_ids.tolist() == ["a", "c"]
    assert cohort.feature_names.tolist() == list(like.features)
    assert cohort.visits.toarray().tolist() == [[1, 0, 1], [0, 0, 1], [0, 0, 1]]
    assert cohort.static_names.tolist() == list(like.static)
    assert cohort.static.tolist() == [[0, 1, 0], [0, 0, 0]]
    assert built.attrition.iloc[-1].tolist()[:4] == ["features of the model", 2, 3, 4]
    assert any("sex=missing" in note for note in built.notes)
    again = build.cohort(
        workspace, source, Settings(min_visits=2), model_columns=build.ModelColumns(like.features, None)
    )
    assert again.cohort.patient_ids.tolist() == ["c"]
    assert again.cohort.static is None
    with pytest.raises(InputError, match="no feature of the data is one of the model's"):
        build.cohort(workspace, source, Settings(), model_columns=build.ModelColumns(("Dx_other",), None))


def test_a_cohort_built_to_its_own_columns_is_unchanged(workspace):
    built = made(workspace, [person("a", "1950-01-01", sex="female"), person("b", sex="male")])
    like = build.ModelColumns(tuple(built.cohort.feature_names), tuple(built.cohort.static_names))
    again = made(workspace, [person("a", "1950-01-01", sex="female"), person("b", sex="male")], like=like)
    assert np.array_equal(again.cohort.visits.toarray(), built.cohort.visits.toarray())
    assert np.array_equal(again.cohort.static, built.cohort.static)


def test_a_saved_build_holds_what_a_publication_needs(workspace, tmp_path):
    built = made(workspace, [person("a", "1950-01-01"), person("b")], Settings(min_visits=2))
    built.save(tmp_path / "cohort")
    folder = tmp_path / "cohort"
    assert pd.read_csv(folder / "attrition.csv").equals(built.attrition)
    assert json.loads((folder / "quality.json").read_text()) == built.quality
    assert list(pd.read_csv(folder / "unmapped.csv").columns) == [
        "vocabulary",
        "code",
        "kind",
        "name",
        "events",
    ]
    assert from_toml(folder / "settings.toml") == built.settings
    assert not (folder / "patients.parquet").exists()
    loaded = Cohort.load(folder)
    assert loaded.origin["attrition"] == built.attrition.to_dict("records")
    assert loaded.origin["settings"]["min_visits"] == 2
    assert loaded.origin["quality"]["patients"] == 2
    events = [event("a", "2009-06-01"), event("a", "2010-07-01", "index")]
    chosen = Settings(index=Index(codes=("X:index",), window=24, gap=0, covered=False))
    with_index = build.cohort(workspace, records(workspace, events, [person("a")]), chosen)
    with_index.save(tmp_path / "index")
    assert pq.read_table(tmp_path / "index" / "patients.parquet").num_rows == 1
    assert "24 months" in (tmp_path / "index" / "windows.svg").read_text()


def test_a_column_of_many_numbers_is_in_bands_by_its_quartiles(workspace):
    people = [person(f"{k:03}", weight=f"{k / 2 + 50}", unit=str(k % 4)) for k in range(40)]
    people.append(person("040", weight=None, unit="1"))
    built = made(workspace, people)
    bounds = [float(f"{bound:.4g}") for bound in np.quantile(np.arange(40) / 2 + 50, [0.25, 0.5, 0.75])]
    expected = [np.digitize(k / 2 + 50, bounds) for k in range(40)]
    names = [f"<{bounds[0]:g}", *(f"{a:g} to {b:g}" for a, b in pairwise(bounds)), f"{bounds[-1]:g}+"]
    assert levels(built, "weight") == [*(names[band] for band in expected), "missing"]
    assert set(levels(built, "unit")) == {"0", "1", "2", "3"}  # few numbers are categories
    assert any(note.startswith("Static column weight is in bands by its quartiles") for note in built.notes)
    assert built.cohort.origin["learnt"]["static"] == ["weight"]


def test_bands_may_be_stated_and_are_those_of_a_model_for_new_patients(workspace):
    people = [person(f"{k:03}", weight=str(k)) for k in range(40)]
    stated = made(workspace, people, Settings(static=Static(bands=("weight=10,20.5",))))
    assert stated.cohort.static_names.tolist() == ["weight=<10", "weight=10 to 20.5", "weight=20.5+"]
    assert stated.cohort.static.sum(axis=0).tolist() == [10, 11, 19]
    assert stated.cohort.origin["learnt"]["static"] == []
    others = [person(f"{k:03}", weight=str(3 * k)) for k in range(40)]
    model = build.ModelColumns(("Dx_401 [X]",), tuple(stated.cohort.static_names.tolist()))
    new = made(workspace, others, like=model)
    assert new.cohort.static.sum(axis=0).tolist() == [4, 3, 33]
    for bad in ("weight", "weight=", "weight=2,1", "=1", "weight=nan"):
        with pytest.raises(InputError, match=r"static\.bands"):
            Static(bands=(bad,))


def test_placeholders_of_missing_numbers_and_identifiers_are_not_values(workspace):
    people = [person(f"{k:03}", height="-1" if k % 2 else str(150 + k), record=str(k)) for k in range(102)]
    built = made(workspace, people)
    assert levels(built, "height").count("missing") == 51
    assert any("record has 102 different values" in note for note in built.notes)


def test_ages_in_years_have_the_bands_of_ages(workspace):
    people = [person("a", age="64.9"), person("b", age="65"), person("c", "1949-01-01"), person("d")]
    built = made(workspace, people, Settings(static=Static(age_bands=(50, 65))))
    assert levels(built, "age") == ["50-64", "65+", "50-64", "missing"]
