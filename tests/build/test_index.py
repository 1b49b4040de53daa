"""Index dates, new onset, label tables and controls on random timelines, and the code sets that name the index."""

import calendar
from dataclasses import replace
from datetime import date, datetime, timedelta
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from phenotaste.build import code_sets
from phenotaste.build.attrition import Attrition
from phenotaste.build.index import find_anchors
from phenotaste.build.normalise import Normalised
from phenotaste.build.settings import Index, Match, Settings
from phenotaste.build.windows import inside
from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace

CODES = pa.table(
    {
        "vocabulary": ["ICD9CM", "ICD9CM", "ICD10CM", "ATC", "ICD9CM"],
        "code": ["428.0", "4019", "I50.9", "C09AA", "42"],
        "kind": ["diagnosis", "diagnosis", "diagnosis", "medication", "diagnosis"],
        "name": [None] * 5,
        "events": [1] * 5,
    },
    schema=pa.schema(
        [
            ("vocabulary", "string"),
            ("code", "string"),
            ("kind", "string"),
            ("name", "string"),
            ("events", "int64"),
        ]
    ),
)
HEART_FAILURE = ("ICD9CM:428*", "ICD10CM:I50*")
INDEX_ROWS = (0, 2)
MIDNIGHT = datetime.min.time()
N = 12  # patients
EXAMPLES = 25  # each asks a database a dozen questions


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


class Source:
    """Plain rows, and the same as compact tables."""

    def __init__(
        self, n=N, events=(), births=None, deaths=None, sexes=None, periods=None, labels=None, visits=None
    ):
        self.n, self.events = n, list(events)  # (patient, time, code)
        self.births = births or [date(1950, 1, 1)] * n
        self.deaths = deaths or [None] * n
        self.sexes = sexes or ["f"] * n
        self.periods, self.labels, self.visits = periods, labels, visits

    def compact(self, workspace):
        def table(name, rows, **types):
            columns = list(zip(*rows, strict=True)) or [()] * len(types)
            arrays = {
                key: pa.array(list(column), kind)
                for (key, kind), column in zip(types.items(), columns, strict=True)
            }
            return workspace.ingest(pa.table(arrays).to_reader(), name)

        moment, day = pa.timestamp("us"), pa.date32()
        people = [(k, f"p{k:03}", self.births[k], self.deaths[k], self.sexes[k]) for k in range(self.n)]
        events = [(p, t, p, c, None) for p, t, c in self.events]
        optional = {
            "periods": (self.periods, {"patient": pa.int32(), "start": day, "end": day}),
            "labels": (self.labels, {"patient": pa.int32(), "time": moment, "value": pa.float64()}),
            "visits": (self.visits, {"patient": pa.int32(), "time": moment}),
        }
        return Normalised(
            people=table(
                "people", people, patient=pa.int32(), id=pa.string(), birth=day, death=day, sex=pa.string()
            ),
            events=table(
                "events",
                events,
                patient=pa.int32(),
                time=moment,
                visit=pa.int64(),
                code=pa.int32(),
                value=pa.float64(),
            ),
            codes=CODES,
            facts=None,
            **{
                name: None if rows is None else table(name, rows, **types)
                for name, (rows, types) in optional.items()
            },
        )


def anchored(workspace, source, index, match=None, notes=None, steps=None, use_labels=True):
    compact = source.compact(workspace)
    attrition = Attrition()
    events = compact.events
    attrition.tally = events.group_by("patient").aggregate(
        visits=events.visit.nunique(), events=events.count()
    )
    labels = compact.labels if use_labels else None
    try:
        table = find_anchors(
            workspace, compact, Settings(index=index, match=match), attrition, labels, notes=notes
        )
    finally:
        if steps is not None:
            steps.extend(attrition.steps)
    rows = table.order_by("row").to_pyarrow().to_pylist()
    patient_of = {row["row"]: row["patient"] for row in rows}
    events = inside(compact.events, table).to_pyarrow().to_pylist()
    return rows, [event | {"patient": patient_of[event["patient"]]} for event in events]


def rows_or_none(*arguments, **options):
    try:
        return anchored(*arguments, **options)[0]
    except InputError:
        return []


def months_earlier(day, months):
    month = day.year * 12 + day.month - 1 - months
    year, month = divmod(month, 12)
    return date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))


def history_reaches(source, patient, first, last):
    if source.periods:
        stretches = [(s, e or date.max) for p, s, e in source.periods if p == patient]
        days = [first + timedelta(n) for n in range((last - first).days + 1)]
        return all(any(s <= day <= e for s, e in stretches) for day in days)
    seen = [t.date() for p, t, _ in source.events if p == patient]
    seen += [t.date() for p, t in source.visits or [] if p == patient]
    return bool(seen) and min(seen) <= first


def index_days(source, patient):
    return sorted(t.date() for p, t, c in source.events if p == patient and c in INDEX_ROWS)


def is_new_case(source, patient, day, index):
    start = months_earlier(day, index.lengths[1].number + index.lengths[0].number)
    washout = months_earlier(day, index.lengths[2].number)
    if index.lengths[2].number and not history_reaches(source, patient, washout, day):
        return False
    return not index.covered or history_reaches(source, patient, start, day)


SPECIAL = [date(2020, 2, 29), date(2020, 8, 31), date(2020, 8, 29), date(2018, 2, 28), date(2019, 12, 31)]
CLOCK = [timedelta(0), timedelta(0), timedelta(hours=12), timedelta(hours=24) - timedelta(microseconds=1)]


def simulated(seed, n_events, with_periods, with_visits):
    """Timelines with many ties, ends of months and the leap day; every second patient never has an index code."""
    random = Random(seed)

    def some_day():
        return (
            random.choice(SPECIAL)
            if random.random() < 0.3
            else date(2017, 1, 1) + timedelta(random.randrange(1800))
        )

    def moment():
        return datetime.combine(some_day(), MIDNIGHT) + random.choice(CLOCK)

    def event(patient):
        return (
            patient,
            moment(),
            random.choice([1, 3, 4] if patient % 2 or random.random() < 0.7 else INDEX_ROWS),
        )

    def period():
        start = some_day()
        return (
            random.randrange(N),
            start,
            random.choice([None, start + timedelta(random.randrange(-5, 1500))]),
        )

    return Source(
        events=[event(random.randrange(N)) for _ in range(n_events)],
        births=[date(1950, 1, 1) + timedelta(random.randrange(1500)) for _ in range(N)],
        deaths=[some_day() if random.random() < 0.3 else None for _ in range(N)],
        sexes=[random.choice(["f", "m", None]) for _ in range(N)],
        periods=[period() for _ in range(3 * N)] if with_periods else None,
        visits=[(random.randrange(N), moment()) for _ in range(N)] if with_visits else None,
    )


sources = st.builds(
    simulated, st.integers(0, 10**6), st.sampled_from([12, 60, 150]), st.booleans(), st.booleans()
)
indexes = st.builds(
    Index,
    codes=st.just(HEART_FAILURE),
    window=st.sampled_from([1, 6, 12]),
    gap=st.sampled_from([0, 1, 6]),
    washout=st.sampled_from([0, 0, 3, 24]),
    covered=st.booleans(),
)


matches = st.builds(
    Match,
    ratio=st.integers(1, 3),
    age_years=st.sampled_from([0.5, 5.0]),
    encounter_days=st.sampled_from([5, 200, 2000]),
    same=st.sampled_from([(), ("sex",)]),
    seed=st.integers(0, 3),
)


@hypothesis_settings(max_examples=EXAMPLES)
@given(sources, indexes)
def test_cases_are_the_first_occurrences_that_meet_every_condition(workspace, source, index):
    rows = rows_or_none(workspace, source, index)
    first = {p: days[0] for p in range(N) if (days := index_days(source, p))}
    expected = {p: day for p, day in first.items() if is_new_case(source, p, day, index)}
    assert {row["patient"]: row["index"] for row in rows} == expected
    for row in rows:
        end = months_earlier(row["index"], index.lengths[1].number)
        start = months_earlier(row["index"], index.lengths[1].number + index.lengths[0].number)
        assert (row["start"].date(), row["end"].date()) == (start, end)
        assert row["start"].time() == row["end"].time() == MIDNIGHT
        assert row["label"] == 1
        assert row["set"] is None


@hypothesis_settings(max_examples=EXAMPLES)
@given(sources, indexes, st.none() | matches)
def test_no_event_outside_the_window_and_no_index_code_in_it(workspace, source, index, match):
    try:
        rows, left = anchored(workspace, source, index, match)
    except InputError:
        return
    bounds = {row["patient"]: row for row in rows}
    for row in rows:
        assert row["start"] < row["end"] <= datetime.combine(row["index"], MIDNIGHT)
    kept = sorted((event["patient"], event["time"], event["code"]) for event in left)
    assert kept == sorted(
        (p, t, c) for p, t, c in source.events if p in bounds and bounds[p]["start"] <= t < bounds[p]["end"]
    )
    for p, t, c in source.events:
        if p in bounds and c in INDEX_ROWS:
            assert t >= bounds[p]["end"]


def check_control(source, index, match, control, case):
    p, day = control["patient"], case["index"]
    assert (control["index"], control["start"], control["end"]) == (day, case["start"], case["end"])
    assert not index_days(source, p)
    apart = abs((source.births[p] - source.births[case["patient"]]).days)
    assert apart <= match.age_years * 365.25
    seen = [t.date() for who, t, _ in source.events if who == p] + [
        t.date() for who, t in source.visits or [] if who == p
    ]
    assert min(abs((other - day).days) for other in seen) <= match.encounter_days
    assert source.deaths[p] is None or source.deaths[p] >= day
    if "sex" in match.same:
        assert source.sexes[p] == source.sexes[case["patient"]]
    assert history_reaches(source, p, day, day)
    if index.covered:
        assert history_reaches(source, p, case["start"].date(), day)
    if index.lengths[2].number:
        assert history_reaches(source, p, months_earlier(day, index.lengths[2].number), day)


@hypothesis_settings(max_examples=EXAMPLES)
@given(sources, indexes, matches)
def test_controls_never_had_the_disease_and_match_their_case(workspace, source, index, match):
    rows = rows_or_none(workspace, source, index, match)
    assert len({row["patient"] for row in rows}) == len(rows)
    cases = {row["set"]: row for row in rows if row["label"] == 1}
    controls = [row for row in rows if row["label"] == 0]
    assert len(cases) + len(controls) == len(rows)
    assert set(cases) == {row["set"] for row in controls} == set(range(len(cases)))
    for control in controls:
        check_control(source, index, match, control, cases[control["set"]])
    for number, case in cases.items():
        assert case["index"] == index_days(source, case["patient"])[0]
        assert is_new_case(source, case["patient"], case["index"], index)
        assert sum(row["set"] == number for row in controls) <= match.ratio


@hypothesis_settings(max_examples=EXAMPLES)
@given(sources, indexes, st.none() | matches, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(workspace, source, index, match, random):
    one = rows_or_none(workspace, source, index, match)
    for rows in (source.events, source.periods or [], source.visits or []):
        random.shuffle(rows)
    assert rows_or_none(workspace, source, index, match) == one


def simulated_labels(seed, values):
    random = Random(seed)
    days = [date(2019, 1, 1) + timedelta(n) for n in range(900)] + 100 * SPECIAL
    times = [*(datetime.combine(day, MIDNIGHT) + random.choice(CLOCK) for day in days), *[None] * 50]
    return [(random.randrange(N), random.choice(times), random.choice(values)) for _ in range(N + 4)]


label_rows = st.builds(
    simulated_labels,
    st.integers(0, 10**6),
    st.sampled_from([[0.0, 1.0], [0.0, 0.0, 1.0, None], [1.0, None], [None]]),
)


def stated_labels(source, rows="first"):
    """(patient, day): value of the first label of each patient, or of all; a case takes precedence on a day."""
    ranks = {}
    for p, t, value in source.labels:
        if t is not None:
            rank = {1.0: 0, 0.0: 1, None: 2}[value]
            ranks[p, t.date()] = min(rank, ranks.get((p, t.date()), 9))
    first = {p: min(day for q, day in ranks if q == p) for p, _ in ranks}
    chosen = {(p, day): rank for (p, day), rank in ranks.items() if rows == "all" or day == first[p]}
    return {key: [1.0, 0.0, None][rank] for key, rank in chosen.items()}


@hypothesis_settings(max_examples=EXAMPLES)
@given(sources, indexes, label_rows, st.booleans(), st.sampled_from(["all", "first"]))
def test_a_label_table_sets_the_index_and_codes_identify_prior_disease(
    workspace, source, index, labels, coded, chosen
):
    source.labels = labels
    index = (
        index if coded and any(c in INDEX_ROWS for _, _, c in source.events) else index_without_codes(index)
    )
    index = replace(index, label_rows=chosen)
    rows = rows_or_none(workspace, source, index)
    expected = {}
    usable = {p for p, _, _ in source.events}
    for (p, day), value in stated_labels(source, chosen).items():
        days = index_days(source, p) if index.codes else []
        end = months_earlier(day, index.lengths[1].number)
        washout = months_earlier(day, index.lengths[2].number)
        if value == 0:
            dead = source.deaths[p] is not None and source.deaths[p] < day
            sound = not days and not dead and history_reaches(source, p, day, day)
        else:
            sound = not any(d < end for d in days) and not any(washout <= d < day for d in days)
        if p in usable and sound and is_new_case(source, p, day, index):
            expected[p, day] = value
    found = {
        (row["patient"], row["index"]): None if row["label"] != row["label"] else row["label"] for row in rows
    }
    assert found == expected
    assert sorted(row["row"] for row in rows) == list(range(len(rows)))


def index_without_codes(index):
    return Index(
        window=index.window,
        gap=index.gap,
        washout=index.washout,
        covered=index.covered,
    )


@hypothesis_settings(max_examples=EXAMPLES)
@given(sources, indexes, label_rows, matches)
def test_matched_controls_of_a_label_table_are_its_own(workspace, source, index, labels, match):
    source.labels = labels
    rows = rows_or_none(workspace, source, index_without_codes(index), match)
    stated = {p: value for (p, _), value in stated_labels(source).items()}
    zeros = {p for p, value in stated.items() if value == 0}
    cases = {row["set"]: row for row in rows if row["label"] == 1}
    for row in rows:
        if row["label"] == 0:
            assert not any(p == row["patient"] and value == 1 for p, _, value in labels)
            assert row["patient"] in zeros if zeros else row["patient"] not in stated
            assert row["index"] == cases[row["set"]]["index"]


def timeline(patient, *codes, start=date(2015, 1, 1)):
    return [(patient, datetime.combine(start + timedelta(30 * n), MIDNIGHT), c) for n, c in enumerate(codes)]


def test_every_condition_is_a_row_of_the_attrition_table(workspace):
    usual = [1] * 60
    source = Source(
        n=6,
        events=[
            *timeline(0, *usual, 0),  # a case with a control
            *timeline(1, *usual, 1),  # the control
            *timeline(2, *usual, 0),  # a case too old for any control
            *timeline(3, *usual[:10], 0),  # neither the wash-out nor the window is covered
            *timeline(4, *usual[:25], 0),  # the wash-out is, the window is not
            *timeline(5, *usual[:3]),  # never an index code, and not seen near any index
        ],
        births=[date(1950, 1, 1)] * 2 + [date(1910, 1, 1)] + [date(1950, 1, 1)] * 3,
    )
    steps, notes = [], []
    rows, _ = anchored(
        workspace, source, Index(HEART_FAILURE, washout=12), Match(ratio=2), steps=steps, notes=notes
    )
    assert [(step.step, step.patients, step.events) for step in steps] == [
        ("with an index code", 4, 61 + 61 + 11 + 26),
        ("12 months of history without an index code before the index", 3, 61 + 61 + 26),
        ("history covers the window", 2, 61 + 61),
        ("cases with a matched control", 1, 61),
        ("with the matched controls", 2, 61 + 61),
    ]
    assert [(row["patient"], row["label"], row["set"]) for row in rows] == [(0, 1.0, 0), (1, 0.0, 0)]
    assert "1 of 1 matched cases have fewer than 2 controls." in notes
    assert any(note.startswith("The index code ICD10CM:I50*") for note in notes) is False


@pytest.mark.parametrize(("washout", "kept"), [(0, 1), (1, 1), (3, 0)])
def test_a_code_in_the_gap_counts_against_the_wash_out_only(workspace, washout, kept):
    """Two months before the labelled index, which the window of six months' gap does not reach."""
    source = Source(
        n=2,
        events=[*timeline(0, *[1] * 60), (0, datetime(2019, 8, 15), 0), *timeline(1, *[1] * 60)],
        labels=[(0, datetime(2019, 10, 15), 1.0), (1, datetime(2019, 10, 15), 0.0)],
    )
    rows, _ = anchored(workspace, source, Index(HEART_FAILURE, washout=washout))
    assert [row["label"] for row in rows] == [1.0] * kept + [0.0]


def test_a_label_file_is_joined_by_the_sources_own_id(workspace, tmp_path):
    file = tmp_path / "labels.csv"
    file.write_text(
        "Patient,TIME,note,Value\np001,2019-06-30,x,1\np002,2019-07-01,x,0\np001,2020-01-01,x,1\nzz,2019-01-01,x,1\n"
    )
    notes = []
    source = Source(n=3, events=[*timeline(1, *[1] * 60), *timeline(2, *[1] * 60)])
    rows, _ = anchored(workspace, source, Index(labels=str(file)), notes=notes)
    expected = [(1, date(2019, 6, 30), 1.0), (1, date(2020, 1, 1), 1.0), (2, date(2019, 7, 1), 0.0)]
    assert [(row["patient"], row["index"], row["label"]) for row in rows] == expected
    assert any(note.startswith("3 index times of 2 patients: each is a row of the cohort") for note in notes)
    notes = []
    rows, _ = anchored(workspace, source, Index(labels=str(file), label_rows="first"), notes=notes)
    assert [(row["patient"], row["index"], row["label"]) for row in rows] == [expected[0], expected[2]]
    assert "1 rows of the label table belong to patients who are not in the data and are ignored." in notes
    assert "1 rows of the label table repeat a patient; the earliest row of each patient is used." in notes


@pytest.mark.parametrize(
    ("value", "labels"), [("value", [1.0]), ("LABEL", [1.0]), ("boolean_value", [1.0]), ("outcome", [None])]
)
def test_the_outcome_of_a_label_file_has_one_of_three_names(workspace, tmp_path, value, labels):
    file = tmp_path / "labels.csv"
    file.write_text(f"patient,time,{value}\np001,2019-06-30,1\n")
    notes = []
    source = Source(n=2, events=timeline(1, *[1] * 60))
    rows, _ = anchored(workspace, source, Index(labels=str(file)), notes=notes)
    assert [None if np.isnan(row["label"]) else row["label"] for row in rows] == labels
    said = "The label table has no column value (label, boolean_value): its patients have no label."
    assert (said in notes) == (labels == [None])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("patient,when\np001,2019-06-30\n", "lacks the column time"),
        ("patient,time,value\np001,soon,1\n", "column time of the label table"),
        ("patient,time,value\np001,2019-06-30,2\n", "values other than 0"),
        ("patient,time,value\nzz,2019-06-30,1\n", "has no patient of the data"),
    ],
)
def test_an_invalid_label_file_is_refused_with_a_sentence(workspace, tmp_path, text, complaint):
    file = tmp_path / "labels.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=complaint) as raised:
        anchored(workspace, Source(events=timeline(1, *[1] * 60)), Index(labels=str(file)))
    assert "p001" not in str(raised.value)


@pytest.mark.parametrize(
    ("index", "match", "complaint"),
    [
        (Index(), None, "needs codes or a label table"),
        (
            Index(HEART_FAILURE),
            Match(same=("shoe size",)),
            "no column shoe size to match on; choose from: birth",
        ),
        (Index(HEART_FAILURE, window=1200), None, "covers the window"),
        (Index(HEART_FAILURE, washout=1200), None, "wash-out"),
        (Index(HEART_FAILURE), Match(), "no case has a control"),
        (Index(("ICD9CM:250*",)), None, "none of the index codes"),
    ],
)
def test_settings_that_cannot_be_met_are_refused_with_a_sentence(workspace, index, match, complaint):
    with pytest.raises(InputError, match=complaint):
        anchored(workspace, Source(events=timeline(1, *[1] * 60, 0)), index, match)


def test_matching_needs_births(workspace):
    source = Source(events=[*timeline(1, *[1] * 60, 0), *timeline(2, *[1] * 61)])
    source.births = [None] * source.n
    with pytest.raises(InputError, match="date of birth"):
        anchored(workspace, source, Index(HEART_FAILURE), Match())


@pytest.mark.parametrize(
    ("patterns", "rows"),
    [
        (["ICD9CM:428*"], [0]),
        (["icd9cm:4280"], [0]),
        (["ICD-9-CM:428.0"], [0]),
        (["ICD9CM:42*"], [0, 4]),
        (["ICD9CM:42"], [4]),
        (["ICD9CM:401.9", " ATC : c09* "], [1, 3]),
        (["CCS:108"], [0, 2]),
        (["ccs:108.", "ICD9CM:nothing"], [0, 2]),
    ],
)
def test_patterns_name_codes_with_or_without_dots_in_any_case(patterns, rows):
    assert code_sets.matching(CODES, patterns).nonzero()[0].tolist() == rows


@pytest.mark.parametrize(
    "pattern", ["428*", "ICD9CM:", "ICD9CM:4*8", ":428", "CCS:10*", "CCS:heart", "", "*:428"]
)
def test_a_pattern_without_vocabulary_or_with_a_stray_star_is_refused(pattern):
    with pytest.raises(InputError, match="the index code"):
        code_sets.matching(CODES, [pattern])


def test_a_pattern_without_matches_is_noted_and_all_without_are_refused():
    notes = []
    code_sets.matching(CODES, ["ICD9CM:428*", "ICD9CM:250*"], notes)
    assert notes == ["The index code ICD9CM:250* matches no code of the data."]
    with pytest.raises(InputError, match=r"ICD9CM:250.*vocabularies are: ATC, ICD10CM, ICD9CM"):
        code_sets.matching(CODES, ["ICD9CM:250*"])


def test_a_code_without_vocabulary_never_matches():
    codes = pa.table({"vocabulary": pa.array([None], pa.string()), "code": ["428"], "kind": ["diagnosis"]})
    with pytest.raises(InputError, match="none of the index codes"):
        code_sets.matching(codes, ["None:428"])
