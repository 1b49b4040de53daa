"""A build against the same rules in plain pandas, on small random records with degenerate cases."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.records import event, person, records
from phenotaste import build
from phenotaste.build import matrix
from phenotaste.build.settings import Groups, Settings
from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace

PREFIX = {"diagnosis": "Dx_", "medication": "Rx_", "procedure": "Px_"}
PEOPLE = ["a", "b", "c", "d"]
TIMES = [
    "1969-12-28 23:59",
    "1969-12-29 00:00",
    "2008-01-01",
    "2008-01-01",
    "2008-01-01 12:30",
    "2008-01-06 23:00",
    "2008-01-07",
    "2008-01-31",
    "2008-02-01",
    "2150-01-01",
]


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


def often(value, *others):
    return st.sampled_from([value] * 6 + list(others))


some_events = st.lists(
    st.builds(
        event,
        patient=st.sampled_from([*PEOPLE * 2, "stranger", None]),
        time=st.sampled_from([*TIMES, None]),
        code=st.sampled_from(["401", "402", "403", None]),
        visit=st.sampled_from([None, "v1", "v2", "v3"]),
        kind=often("diagnosis", "medication", "procedure"),
        vocabulary=often("X", "Y", None),
    ),
    max_size=40,
)
some_starts = st.one_of(
    st.none(),
    st.lists(
        st.fixed_dictionaries(
            {
                "patient": st.sampled_from(PEOPLE),
                "visit": st.sampled_from(["v1", "v2", "v9"]),
                "time": st.sampled_from(TIMES).map(pd.Timestamp),
            }
        ),
        max_size=5,
    ),
)
some_settings = st.builds(
    Settings,
    visit=st.sampled_from(["encounter", "day", "week", "month"]),
    values=st.sampled_from(["counts", "binary", "log"]),
    kinds=st.sampled_from([("diagnosis",), ("diagnosis", "medication"), ("procedure",)]),
    min_visits=st.integers(1, 3),
    min_patients=st.integers(1, 3),
    implausible=st.sampled_from(["keep", "drop"]),
)
PERSONS = [
    person("a", "1950-05-05", None, sex="female"),
    person("b", "2008-01-02", None, sex="male"),
    person("c", None, "2008-01-06", sex=None),
    person("d", None, None, sex="female"),
    person("z", "1950-01-01", None, sex="male"),
]


def slowly(events, starts, chosen):
    """The same build, a row at a time where that is plainest: the cohort's visits and the attrition."""
    table = pd.DataFrame(events, columns=["patient", "time", "visit", "code", "vocabulary", "kind"])
    table["time"] = table["time"].astype("datetime64[us]")
    table["vocabulary"] = table["vocabulary"].fillna("")
    table["unit"] = [
        visit_key(chosen.visit, *pair) for pair in zip(table["time"], table["visit"], strict=True)
    ]
    strangers = {"stranger"} & set(table["patient"])
    steps = [(len(PERSONS) + len(strangers), *size(table)[1:])]
    table = table[table["time"].notna() & table["code"].notna() & table["patient"].isin([*PEOPLE, "z"])]
    table = table.drop_duplicates(["patient", "time", "visit", "code", "vocabulary", "kind"])
    steps.append(size(table))
    table = table[table["kind"].isin(chosen.kinds)]
    steps.append(size(table))
    if chosen.implausible == "drop":
        sound = [plausible(*pair) for pair in zip(table["patient"], table["time"], strict=True)]
        table = table[np.array(sound, bool)]
        steps.append(size(table))
    table = table.assign(
        feature=[named(*row) for row in zip(table["kind"], table["code"], table["vocabulary"], strict=True)]
    )
    steps.append(size(table))
    times = visit_times(table, starts if chosen.visit == "encounter" else None)
    removed = np.zeros(3, int)
    while True:
        visits = table.groupby("patient")["unit"].nunique()
        enough = table[table["patient"].map(visits).ge(chosen.min_visits)]
        removed += np.array(size(table)) - size(enough)
        patients = enough.groupby("feature")["patient"].nunique()
        common = enough[enough["feature"].map(patients).ge(chosen.min_patients)]
        if len(common) == len(table):
            break
        table = common
    if chosen.min_visits > 1:
        steps.append(tuple(np.array(steps[-1]) - removed))
    if chosen.min_patients > 1:
        steps.append(size(table))
    return table, times, steps


def size(table):
    known = table[table["patient"].notna()]
    visits = known[known["unit"].notna()]
    return known["patient"].nunique(), len(visits[["patient", "unit"]].drop_duplicates()), len(table)


def visit_key(unit, time, visit):
    if unit == "encounter" and not pd.isna(visit):
        return visit
    if pd.isna(time):
        return None
    if unit == "month":
        return time.strftime("%Y-%m")
    day = time.normalize()
    return str((day - pd.Timedelta(days=day.day_of_week) if unit == "week" else day).date())


def plausible(patient, time):
    known = next(row for row in PERSONS if row["patient"] == patient)
    return not (
        (known["birth"] is not None and time.date() < known["birth"])
        or (known["death"] is not None and time.date() > known["death"])
        or time.date() > pd.Timestamp.today().date()
    )


def named(kind, code, vocabulary):
    return f"{PREFIX[kind]}{code} [{vocabulary}]" if vocabulary else f"{PREFIX[kind]}{code}"


def visit_times(table, starts):
    times = table.groupby(["patient", "unit"])["time"].min().to_dict()
    for row in starts or ():
        key = row["patient"], row["visit"]
        if key in times and row["time"] < times[key]:
            times[key] = row["time"]
    return times


def visits_of(cohort):
    """For each patient the visits as (time, entries), in an order that does not depend on ties."""
    found = {}
    for k, patient in enumerate(cohort.patient_ids):
        rows = range(cohort.offsets[k], cohort.offsets[k + 1])
        dense = cohort.visits.toarray()
        entries = [
            (
                pd.Timestamp(cohort.visit_times[row]),
                tuple((cohort.feature_names[j], dense[row, j]) for j in np.flatnonzero(dense[row])),
            )
            for row in rows
        ]
        found[str(patient)] = sorted(entries)
    return found


def expected_visits(table, times, values):
    found = {}
    for (patient, unit), rows in table.groupby(["patient", "unit"]):
        counts = rows.groupby("feature").size().sort_index()
        amounts = {"counts": counts, "binary": counts * 0 + 1, "log": np.log1p(counts)}[values]
        entries = tuple((name, float(amount)) for name, amount in amounts.items())
        found.setdefault(patient, []).append((times[patient, unit], entries))
    return {patient: sorted(visits) for patient, visits in sorted(found.items())}


def check_against_pandas(workspace, events, starts, chosen):
    # Placement in encounters has tests of its own: here, who has encounters has no event without one.
    with_encounter = {row["patient"] for row in [*events, *(starts or ())] if row["visit"] is not None}
    events = [
        row | {"visit": row["visit"] or ("v9" if row["patient"] in with_encounter else None)}
        for row in events
    ]
    table, times, steps = slowly(events, starts, chosen)
    others = {} if starts is None else {"visits": starts}
    source = records(workspace, events, PERSONS, **others)
    if not len(table):
        with pytest.raises(InputError):
            build.cohort(workspace, source, chosen)
        return
    built = build.cohort(workspace, source, chosen)
    assert visits_of(built.cohort) == expected_visits(table, times, chosen.values)
    assert sorted(set(table["feature"])) == built.cohort.feature_names.tolist()
    left = built.attrition[["patients", "visits", "events"]]
    assert left.to_numpy().tolist() == [list(map(int, step)) for step in steps]
    gone = built.attrition[["patients_removed", "visits_removed", "events_removed"]].to_numpy()
    assert np.array_equal(left.to_numpy()[:-1] - gone[1:], left.to_numpy()[1:])
    assert left.iloc[-1].tolist()[:2] == [len(built.cohort), built.cohort.n_visits]
    if chosen.values == "counts":
        assert left.iloc[-1]["events"] == built.cohort.visits.sum()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=some_events, starts=some_starts, chosen=some_settings)
def test_cohort_matches_the_same_rules_in_pandas(workspace, events, starts, chosen):
    check_against_pandas(workspace, events, starts, chosen)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=some_events, starts=some_starts, chosen=some_settings)
def test_more_cohorts_match_the_same_rules_in_pandas(workspace, events, starts, chosen):
    check_against_pandas(workspace, events, starts, chosen)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=some_events, chosen=some_settings, order=st.randoms(use_true_random=False))
def test_order_of_the_source_does_not_matter(workspace, events, chosen, order):
    shuffled, people = order.sample(events, len(events)), order.sample(PERSONS, len(PERSONS))
    try:
        first = build.cohort(workspace, records(workspace, events, PERSONS), chosen)
    except InputError:
        return
    again = build.cohort(workspace, records(workspace, shuffled, people), chosen)
    for name in ("offsets", "patient_ids", "visit_times", "feature_names", "static", "static_names"):
        assert np.array_equal(getattr(first.cohort, name), getattr(again.cohort, name))
    assert np.array_equal(first.cohort.visits.toarray(), again.cohort.visits.toarray())
    assert first.attrition.equals(again.attrition)
    assert first.quality == again.quality


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"min_visits": 5}, "no patient has at least 5 visits; lower --min-visits."),
        ({"min_patients": 3}, "no feature occurs in at least 3 patients"),
        ({"kinds": ("procedure",)}, "no event is a procedure"),
        ({"groups": Groups(ccs="single")}, "events are in a code group, and the others would be dropped"),
        ({"groups": Groups(ccs="single", allow_loss=True)}, "no code belongs to a group"),
    ],
)
def test_an_empty_cohort_names_the_step(workspace, change, sentence):
    events = [event("a", "2008-01-01"), event("b", "2008-01-02")]
    with pytest.raises(InputError, match=sentence):
        build.cohort(workspace, records(workspace, events, PERSONS), Settings(**change))


def test_empty_sources_and_unknown_patients_are_refused(workspace):
    with pytest.raises(InputError, match="the source has no events"):
        build.cohort(workspace, records(workspace, [], PERSONS), Settings())
    with pytest.raises(InputError, match="patient listed in the persons table"):
        build.cohort(workspace, records(workspace, [event("x", "2008-01-01")], PERSONS), Settings())
    late = [event("a", "2150-01-01")]
    with pytest.raises(InputError, match="before birth, after death or in the future"):
        build.cohort(workspace, records(workspace, late, PERSONS), Settings(implausible="drop"))


def test_a_patient_listed_twice_is_refused_without_being_named(workspace):
    twice = [*PERSONS, person("a")]
    with pytest.raises(InputError, match="1 repeated patients") as refusal:
        build.cohort(workspace, records(workspace, [event("a", "2008-01-01")], twice), Settings())
    assert "'a'" not in str(refusal.value)


def test_visit_unit_follows_the_source_when_not_chosen(workspace):
    with_ids = [event("a", "2008-01-01", visit="v1"), event("a", "2008-01-02", visit="v1")]
    without = [event("a", "2008-01-01 08:00"), event("a", "2008-01-01 12:00")]
    built = build.cohort(workspace, records(workspace, with_ids, PERSONS), Settings())
    assert (built.settings.visit, built.cohort.n_visits) == ("encounter", 1)
    built = build.cohort(workspace, records(workspace, without, PERSONS), Settings())
    assert (built.settings.visit, built.cohort.n_visits) == ("day", 1)


def test_quality_counts_implausible_records(workspace):
    events = [
        event("a", "1950-05-04", visit="v1"),  # before birth
        event("a", "1950-05-05", visit="v1"),
        event("c", "2008-01-06 20:00"),
        event("c", "2008-01-07"),  # after death
        event("d", "2150-01-01"),  # in the future
        event("d", "2008-01-01", visit="v7"),
        event("d", "2008-01-01", visit="v7"),  # a duplicate
        event("d", "2008-01-01", visit="v8"),  # the same code in another encounter is none
        event("d", None),
        event("d", "2008-01-01", code=None),
        event("d", None, code=None),
        event("stranger", "2008-01-01"),
        event(None, "2008-01-01"),
    ]
    starts = [
        {"patient": "a", "visit": "v1", "time": pd.Timestamp("1950-05-05")},
        {"patient": "b", "visit": "v1", "time": pd.Timestamp("2008-01-01")},  # another patient's v1 has codes
        {"patient": "d", "visit": "v9", "time": pd.Timestamp("2008-01-01")},
    ]
    for unit in ("encounter", "day"):
        source = records(workspace, events, PERSONS, visits=starts)
        built = build.cohort(workspace, source, Settings(visit=unit))
        assert built.quality == {
            "events": 13,
            "events_without_code": 2,
            "events_without_date": 1,
            "events_of_unknown_patients": 2,
            "duplicate_events": 1,
            "events_before_birth": 1,
            "events_after_death": 1,
            "events_in_the_future": 1,
            "visits_without_codes": 2,
            "events_with_encounter": 4 if unit == "encounter" else None,
            "events_covered_by_encounter": 0 if unit == "encounter" else None,
            "events_near_encounter": 0 if unit == "encounter" else None,
            "events_by_day": 3 if unit == "encounter" else None,
            "patients": 5,
            "patients_without_events": 2,
            "codes": 1,
            "unmapped_codes": 0,
            "unmapped_events": 0,
            "coverage": {"diagnosis": {"events": 7, "events_grouped": 7, "codes": 1, "codes_grouped": 1}},
        }


def test_unmapped_codes_are_listed_and_kept_on_request(workspace):
    events = [
        event("a", "2008-01-01", "4019", vocabulary="ICD9CM"),
        *[event("a", day, "nonsense", vocabulary="ICD9CM") for day in ("2008-01-02", "2008-01-03")],
        event("b", "2008-01-01", "odd", vocabulary="ICD9CM"),
    ]
    source = records(workspace, events, PERSONS)
    with pytest.raises(InputError, match=r"only 1 of 4 diagnosis events .* \(their vocabularies: ICD9CM\)"):
        build.cohort(workspace, source, Settings(groups=Groups(ccs="single")))
    built = build.cohort(workspace, source, Settings(groups=Groups(ccs="single", allow_loss=True)))
    assert built.cohort.feature_names.tolist() == ["Dx_Essential hypertension [98.]"]
    assert built.unmapped[["code", "events"]].to_numpy().tolist() == [["nonsense", 2], ["odd", 1]]
    assert built.quality["unmapped_codes"] == 2
    assert built.attrition.iloc[-1]["events_removed"] == 3
    built = build.cohort(workspace, source, Settings(groups=Groups(ccs="single", unmapped="keep")))
    assert built.cohort.n_features == 3
    assert len(built.unmapped) == 2


def test_a_group_of_drugs_is_called_the_same_whether_or_not_its_own_code_occurs(workspace):
    names = [
        {"vocabulary": "ATC", "code": "C09AA", "name": "ACE inhibitors, plain"},
        {"vocabulary": "ATC", "code": "C09AA02", "name": "enalapril"},
    ]

    def features(*codes):
        events = [event("a", "2008-01-01", code, kind="medication", vocabulary="ATC") for code in codes]
        given = records(workspace, events, PERSONS, names=names)
        built = build.cohort(workspace, given, Settings(groups=Groups(atc=4)))
        return built.cohort.feature_names.tolist()

    assert features("C09AA02") == features("C09AA", "C09AA02") == ["Rx_ACE inhibitors, plain [C09AA]"]


def test_integer_ids_are_kept(workspace):
    import pyarrow as pa

    from phenotaste.sources.records import Records

    source = records(workspace, [event(p, "2008-01-01") for p in ("10", "9")], [person("9"), person("10")])
    events = source.events.mutate(patient=source.events.patient.cast("int64"))
    persons = source.persons.mutate(patient=source.persons.patient.cast("int64"))
    built = build.cohort(workspace, Records(events, persons), Settings())
    assert built.cohort.patient_ids.tolist() == [9, 10]
    assert pa.array(built.cohort.patient_ids).type == pa.int64()


def test_an_encounter_begins_with_its_start_but_never_after_its_first_event(workspace):
    events = [event("a", "2008-01-05", visit="early"), event("a", "2008-02-05", visit="late")]
    starts = [
        {"patient": "a", "visit": "early", "time": pd.Timestamp("2008-01-03")},
        {"patient": "a", "visit": "late", "time": pd.Timestamp("2008-02-07")},
        {"patient": "b", "visit": "early", "time": pd.Timestamp("2007-01-01")},
    ]
    source = records(workspace, events, PERSONS, visits=starts)
    for unit, days in (("encounter", ["2008-01-03", "2008-02-05"]), ("day", ["2008-01-05", "2008-02-05"])):
        built = build.cohort(workspace, source, Settings(visit=unit))
        assert built.cohort.visit_times.astype("M8[D]").astype(str).tolist() == days


def test_a_kind_that_loses_half_of_its_events_is_built_and_one_that_loses_more_is_not(workspace):
    def source(lost):
        codes = ["4019"] * 2 + ["nonsense"] * lost
        events = [event("a", f"2008-01-{n + 1:02}", c, vocabulary="ICD9CM") for n, c in enumerate(codes)]
        return records(workspace, events, PERSONS)

    settings = Settings(groups=Groups(ccs="single"))
    assert build.cohort(workspace, source(2), settings).quality["unmapped_events"] == 2
    with pytest.raises(InputError, match="only 2 of 5 diagnosis events"):
        build.cohort(workspace, source(3), settings)
    kept = Settings(groups=Groups(ccs="single", unmapped="keep"))
    assert build.cohort(workspace, source(3), kept).cohort.n_features == 2


def test_concepts_without_a_name_are_a_warning_if_they_are_many(workspace):
    events = [event("a", f"2008-01-{n + 1:02}", "132397", vocabulary="OMOP") for n in range(2)]
    built = build.cohort(workspace, records(workspace, events, PERSONS), Settings())
    assert built.warnings == (
        "2 of 2 diagnosis events have an OMOP concept that the vocabulary does not name; their features are called by "
        "its id, such as Dx_132397 [OMOP].",
    )
    assert built.cohort.origin["notes"][0] == built.warnings[0]
    named = [event("a", f"2008-01-{n + 1:02}", "1", vocabulary="X") for n in range(28)]
    built = build.cohort(workspace, records(workspace, events + named, PERSONS), Settings())
    assert not built.warnings
    assert built.notes[-1].startswith("2 of 30 diagnosis events")


def test_concept_0_counts_as_lost_also_where_ungrouped_codes_are_kept(workspace):
    events = [event("a", f"2008-01-{n + 1:02}", "0" if n else "201", vocabulary="OMOP") for n in range(4)]
    source = records(workspace, events, PERSONS)
    with pytest.raises(InputError, match=r"only 1 of 4 .*OMOP's concept 0"):
        build.cohort(workspace, source, Settings(groups=Groups(unmapped="keep")))


def test_an_event_counts_once_for_every_group_of_its_code(workspace, tmp_path):
    table = tmp_path / "groups.csv"
    table.write_text("code,group\n401,A\n401,B\n402,B\n")
    events = [
        event("a", "2008-01-01", "401"),
        event("a", "2008-01-02", "402"),
        event("a", "2008-01-02", "403"),
    ]
    events.append(event("a", "2008-01-02", "404", kind="medication"))
    source = records(workspace, events, [person("a")])
    built = build.cohort(
        workspace, source, Settings(visit="day", groups=Groups(table=str(table), allow_loss=True))
    )
    assert built.cohort.feature_names.tolist() == ["Dx_A", "Dx_B"]
    assert built.cohort.visits.toarray().tolist() == [[1, 1], [0, 1]]
    steps = dict(zip(built.attrition["step"], built.attrition["events"], strict=True))
    assert list(steps.items())[-2:] == [
        ("in a code group (diagnosis 66.6%, medication 0% of the events)", 2),
        ("each event once for every group of its code", 3),
    ]
    assert built.quality["coverage"] == {
        "diagnosis": {"events": 3, "events_grouped": 2, "codes": 3, "codes_grouped": 2},
        "medication": {"events": 1, "events_grouped": 0, "codes": 1, "codes_grouped": 0},
    }


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=4), min_size=1),
    st.integers(1, 9),
)
def test_visits_are_sorted_in_blocks_of_whole_patients(patients, at_once):
    """Each visit is (time, number of entries); entries are numbered, so that they are found again."""
    visits = [(k, time, n) for k, own in enumerate(patients) for time, n in own]
    indptr = np.concatenate([[0], np.cumsum([n for _, _, n in visits])])
    entries = np.arange(indptr[-1], dtype=np.int32)
    times = np.array([time for _, time, _ in visits], "datetime64[us]")
    owners = np.array([k for k, _, _ in visits], np.int32)
    order = sorted(range(len(visits)), key=lambda row: visits[row][:2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix, "VISITS_PER_SORT", at_once)
        rows = matrix._sorted_by_time(
            matrix.Rows(owners, times.copy(), times + 1, indptr.copy(), entries.copy(), 2 * entries)
        )
    assert rows.patient.tolist() == owners.tolist()
    assert rows.time.tolist() == times[order].tolist()
    assert rows.last.tolist() == (times + 1)[order].tolist()
    found = [rows.feature[a:b].tolist() for a, b in zip(rows.indptr, rows.indptr[1:], strict=False)]
    assert found == [list(range(indptr[row], indptr[row + 1])) for row in order]
    assert (rows.amount == 2 * rows.feature).all()
