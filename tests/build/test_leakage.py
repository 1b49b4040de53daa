"""Nothing from after the observation window reaches a cohort: builds before and after the future was changed."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from phenotaste import build
from phenotaste.build import durations
from phenotaste.build.settings import Index, Match, Measurements, Settings, Static
from phenotaste.build.windows import window
from phenotaste.errors import InputError
from phenotaste.sources.records import Records
from phenotaste.sources.workspace import Workspace

N = 16
INDEX_CODE = ("ICD9CM", "4280", "diagnosis")
CODES = [
    ("ICD9CM", "4019", "diagnosis"),
    ("ICD9CM", "25000", "diagnosis"),
    ("ATC", "C09AA05", "medication"),
    ("ICD10CM", "I10", "diagnosis"),
]
NEW_CODES = [*CODES, ("ICD9CM", "496", "diagnosis"), ("ATC", "A10BA02", "medication")]
MIDNIGHT = datetime.min.time()
ZONES = [UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-11, minutes=-30))]
TYPES = {
    "events": {"patient": "string", "time": "time", "visit": "string", "code": "string", "vocabulary": "string",
               "kind": "string", "value": "number"},
    "persons": {"patient": "string", "birth": "date", "death": "date", "sex": "string"},
    "facts": {"patient": "string", "time": "time", "name": "string", "value": "string", "number": "number"},
    "labels": {"patient": "string", "time": "time", "value": "number"},
    "measurements": {"patient": "string", "time": "time", "visit": "string", "code": "string", "vocabulary": "string",
                     "value": "number", "unit": "string", "low": "number", "high": "number", "flag": "string"},
}  # fmt: skip
ARROW = {"string": pa.string(), "time": pa.timestamp("us"), "date": pa.date32(), "number": pa.float64()}


LABS = ["glucose", "sodium", "lactate"]  # results of the first have ranges, the others get quantiles


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


@pytest.fixture(autouse=True)
def learnt_on_few(monkeypatch):
    monkeypatch.setattr("phenotaste.build.measurements.MIN_CELL_SIZE", 2)


class History:
    """Random rows of a simulated source: patients, events, facts and labels."""

    def __init__(self, seed, labelled):
        self.random = Random(seed)
        births = [date(1950, 1, 1) + timedelta(self.random.randrange(900)) for _ in range(N)]
        self.persons = [(f"p{k}", births[k], None, self.random.choice(["f", "m"])) for k in range(N)]
        self.events = [self.event(f"p{k}", self.moment(), CODES) for k in range(N) for _ in range(25)]
        self.events += [
            self.event(f"p{k}", datetime(2015, 1, 1), CODES) for k in range(N)
        ]  # all have a history
        self.facts = [self.fact(f"p{k}", self.moment()) for k in range(N) for _ in range(4)]
        self.measurements = [self.result(f"p{k}", self.moment(), LABS) for k in range(N) for _ in range(15)]
        self.labels = None
        if labelled:
            # A third of the patients have two index times.
            self.labels = [(f"p{k % N}", self.moment(), float(k % 2)) for k in range(N + N // 3)]
        else:
            self.events += [self.event(f"p{k}", self.moment(), [INDEX_CODE]) for k in range(0, N, 4)]

    def moment(self):
        """A time in UTC, of which some were written down in zones where it was another day."""
        day = datetime.combine(date(2018, 1, 1) + timedelta(self.random.randrange(700)), MIDNIGHT)
        clock = self.random.choice([timedelta(0), timedelta(hours=9), timedelta(hours=23, minutes=59)])
        written = (day + clock).replace(tzinfo=self.random.choice(ZONES))
        return written.astimezone(UTC).replace(tzinfo=None)

    def event(self, patient, time, codes):
        vocabulary, code, kind = self.random.choice(codes)
        visit = self.random.choice([None, "a", "b", "c"])  # a visit may well go on after the window has ended
        return patient, time, visit, code, vocabulary, kind, None

    def result(self, patient, time, codes):
        code, visit = self.random.choice(codes), self.random.choice([None, "a", "b", "c"])
        value, unit = self.random.gauss(100, 20), self.random.choice(["mg", "mg", "mg", "g"])
        low, high = (85.0, 115.0) if code == "glucose" else (None, None)
        return patient, time, visit, code, None, value, unit, low, high, None

    def fact(self, patient, time):
        name = self.random.choice(["smoking", "bmi", "housing", "weight"])
        if name in ("bmi", "weight"):
            return patient, time, name, None, float(self.random.randrange(17, 45))
        return patient, time, name, self.random.choice(["no", "quit", "yes"]), None

    def change_the_future(self, ends, add):
        """Other codes and facts at and after each patient's end, on the days there are or, with `add`, on new ones."""
        self.events = [
            self.event(row[0], row[1], NEW_CODES)
            if self.later(row, ends) and row[3] != INDEX_CODE[1]
            else row
            for row in self.events
        ]
        self.facts = [self.fact(row[0], row[1]) if self.later(row, ends) else row for row in self.facts]
        self.measurements = [
            self.result(row[0], row[1], [*LABS, "new"]) if self.later(row, ends) else row
            for row in self.measurements
        ]
        for patient, end in ends.items() if add else ():
            for late in (timedelta(0), timedelta(microseconds=1), timedelta(days=self.random.randrange(900))):
                self.events.append(self.event(patient, end + late, NEW_CODES))
                self.measurements.append(self.result(patient, end + late, [*LABS, "new"]))
                self.facts.append(
                    (patient, end + late, self.random.choice(["smoking", "shoes"]), "new", None)
                )

    def later(self, row, ends):
        return row[0] in ends and row[1] >= ends[row[0]]

    def in_a_window(self, patient, time, index):
        if index.first is not None:
            return time < datetime(2015, 1, 1) + timedelta(minutes=durations.parse(index.first).minutes)
        times = [row[1] if index.exact else datetime.combine(row[1].date(), MIDNIGHT) for row in self.labels
                 if row[0] == patient]  # fmt: skip
        start, end = window(np.array(times, "datetime64[us]"), index)
        return bool(((start <= np.datetime64(time)) & (np.datetime64(time) < end)).any())

    def records(self, workspace):
        def table(name, rows):
            columns = dict(zip(TYPES[name], zip(*rows, strict=True), strict=True))
            arrays = {key: pa.array(list(column), ARROW[TYPES[name][key]]) for key, column in columns.items()}
            return workspace.ingest(pa.table(arrays).to_reader(), f"source_{name}")

        return Records(
            table("events", self.events),
            table("persons", self.persons),
            facts=table("facts", self.facts),
            labels=None if self.labels is None else table("labels", self.labels),
            measurements=table("measurements", self.measurements),
        )

    def built(self, workspace, settings):
        self.random.shuffle(self.events)
        return build.cohort(workspace, self.records(workspace), settings)


def same(one, other):
    assert one.patient_ids.tolist() == other.patient_ids.tolist()
    assert one.feature_names.tolist() == other.feature_names.tolist()
    assert one.static_names.tolist() == other.static_names.tolist()
    for name in ("offsets", "static", "labels", "visit_times"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.visits.toarray(), other.visits.toarray())


def windows_of(built):
    """The start and end of the window of each row of a cohort."""
    rows = built.patients.to_pylist()
    return [(row["window_start"], row["window_end"]) for row in rows]


def assert_inside(built):
    """Every visit, and the last record used, is in the window of its row."""
    cohort = built.cohort
    for k, (start, end) in enumerate(windows_of(built)):
        times = cohort.visit_times[cohort.offsets[k] : cohort.offsets[k + 1]].astype("datetime64[us]")
        assert (times >= np.datetime64(start)).all()
        assert (times < np.datetime64(end)).all()
        assert cohort.last_times[k] < np.datetime64(end)


INDEXES = [
    Index(window=6, gap=0),
    Index(window=24, gap=6),
    Index(window=24, gap=1),
    Index(window="3000h", gap="0h"),
    Index(window="5000h", gap="36h"),
    Index(window="100d", gap="12h"),
    Index(window="200d", gap="3d"),
    Index(first="30000h"),
    Index(first="1200d"),
]


@hypothesis_settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    labelled=st.booleans(),
    visit=st.sampled_from(["encounter", "day", "week", "month", "6h"]),
    index=st.sampled_from(INDEXES),
    match=st.none() | st.builds(Match, ratio=st.just(2), encounter_days=st.sampled_from([30, 300])),
    kinds=st.sampled_from([("diagnosis", "medication"), ("diagnosis", "medication", "measurement")]),
)
def test_records_after_the_index_do_not_change_the_cohort(
    workspace, seed, labelled, visit, index, match, kinds
):
    if index.first is not None:
        labelled, match = False, None
    elif not labelled:
        index = replace(index, codes=(":".join(INDEX_CODE[:2]),))
    chosen = Settings(visit=visit, index=index, match=match, kinds=kinds)
    history = History(seed, labelled)
    try:
        before = history.built(workspace, chosen)
    except InputError:
        return
    assert_inside(before)
    rows = before.patients.to_pylist()
    assert all(np.datetime64(row["window_end"]) <= np.datetime64(row["index_date"]) for row in rows)
    ends: dict = {}
    for row in rows:  # of several windows of a patient, the last
        ends[row["patient"]] = max(row["window_end"], ends.get(row["patient"], row["window_end"]))
    # With matching, who was seen when decides who is a control: there, days stay and only their contents change.
    history.change_the_future(ends, add=match is None)
    after = history.built(workspace, chosen)
    same(before.cohort, after.cohort)
    assert before.thresholds == after.thresholds


@hypothesis_settings(max_examples=3)
@given(
    seed=st.integers(0, 10**6),
    index=st.sampled_from([Index(window="3000h", gap="12h"), Index(window=24, gap=1)]),
    visit=st.sampled_from(["encounter", "day", "6h"]),
)
def test_a_row_is_the_same_with_and_without_the_other_index_times_of_its_patient(
    workspace, seed, index, visit
):
    history = History(seed, labelled=True)
    # Bands of other columns are quartiles of the cohort.
    chosen = Settings(visit=visit, index=index, static=Static(columns=("smoking", "bmi")))
    both = history.built(workspace, chosen)
    expected = contents(both)
    labels = sorted(history.labels)
    found: dict = {}
    for nth in (0, 1):
        history.labels = [
            row for k, row in enumerate(labels) if sum(r[0] == row[0] for r in labels[:k]) == nth
        ]
        try:
            found |= contents(history.built(workspace, chosen))
        except InputError as error:
            assume(
                "static.columns" not in str(error)
            )  # half of the rows may lack what is known of the others
            raise
    assert found == expected


def contents(built):
    """The entries and facts of each row by name, by patient and index time."""
    cohort, found = built.cohort, {}
    for k, row in enumerate(built.patients.to_pylist()):
        visits, static = cohort[k].visits.toarray(), cohort.static[k]
        entries = [
            (visit, str(cohort.feature_names[j]), visits[visit, j]) for visit, j in np.argwhere(visits > 0)
        ]
        # What nobody of a cohort has known is no column, so that a missing level may have none.
        facts = [str(name) for name, value in zip(cohort.static_names, static, strict=True) if value]
        known = [name for name in facts if not name.endswith("=missing")]
        found[row["patient"], row["index_date"]] = (entries, known, row["label"])
    return found


@hypothesis_settings(max_examples=3)
@given(
    seed=st.integers(0, 10**6),
    index=st.sampled_from([Index(window="5000h", gap="36h"), Index(first="30000h"), Index(window=24, gap=1)]),
)
def test_other_patients_than_those_to_learn_from_change_no_quantile(workspace, tmp_path_factory, seed, index):
    """Nor do results of the listed ones that are not in their windows."""
    file = tmp_path_factory.mktemp("training") / "patients.csv"
    training = [f"p{k}" for k in range(0, N, 2)]
    file.write_text("\n".join(["patient", *training]) + "\n")
    chosen = Settings(
        visit="6h", index=index, kinds=("measurement",), measurements=Measurements(learn_from=str(file))
    )
    history = History(seed, labelled=index.first is None)
    before = history.built(workspace, chosen)
    history.measurements = [
        row
        if row[0] in training and history.in_a_window(row[0], row[1], index)
        else (*row[:5], row[5] + 1000, *row[6:])
        for row in history.measurements
    ]
    after = history.built(workspace, chosen)
    assert before.thresholds
    learnt = [row[3] for row in history.measurements if row[5] < 500]
    assert all(
        row.values <= learnt.count(row.code) for row in before.thresholds
    )  # once, though windows overlap
    assert before.thresholds == after.thresholds
