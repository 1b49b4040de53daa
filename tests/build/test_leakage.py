"""Nothing from after the observation window reaches a cohort: builds before and after the future was changed."""

from datetime import UTC, date, datetime, timedelta, timezone
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from phenotaste import build
from phenotaste.build.settings import Index, Match, Settings
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
}  # fmt: skip
ARROW = {"string": pa.string(), "time": pa.timestamp("us"), "date": pa.date32(), "number": pa.float64()}


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


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
        self.labels = None
        if labelled:
            self.labels = [(f"p{k}", self.moment(), float(k % 2)) for k in range(N)]
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

    def fact(self, patient, time):
        name = self.random.choice(["smoking", "bmi", "housing"])
        if name == "bmi":
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
        for patient, end in ends.items() if add else ():
            for late in (timedelta(0), timedelta(microseconds=1), timedelta(days=self.random.randrange(900))):
                self.events.append(self.event(patient, end + late, NEW_CODES))
                self.facts.append(
                    (patient, end + late, self.random.choice(["smoking", "shoes"]), "new", None)
                )

    def later(self, row, ends):
        return row[0] in ends and row[1] >= ends[row[0]]

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


@hypothesis_settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    labelled=st.booleans(),
    visit=st.sampled_from(["encounter", "day", "week", "month"]),
    index=st.builds(Index, window_months=st.sampled_from([6, 24]), gap_months=st.sampled_from([0, 1, 6])),
    match=st.none() | st.builds(Match, ratio=st.just(2), encounter_days=st.sampled_from([30, 300])),
)
def test_records_after_the_index_do_not_change_the_cohort(workspace, seed, labelled, visit, index, match):
    codes = () if labelled else (":".join(INDEX_CODE[:2]),)
    index = Index(codes, window_months=index.window_months, gap_months=index.gap_months)
    chosen = Settings(visit=visit, index=index, match=match)
    history = History(seed, labelled)
    try:
        before = history.built(workspace, chosen)
    except InputError:
        return
    rows = before.patients.to_pylist()
    ends = {row["patient"]: row["window_end"] for row in rows}
    assert all(row["window_end"].date() <= row["index_date"] for row in rows)
    starts = {row["patient"]: row["window_start"] for row in rows}
    times = before.cohort.visit_times.astype("datetime64[us]")
    for k, patient in enumerate(before.cohort.patient_ids.tolist()):
        own = times[before.cohort.offsets[k] : before.cohort.offsets[k + 1]]
        assert (own < np.datetime64(ends[patient])).all()
        assert (own >= np.datetime64(starts[patient])).all()
    # With matching, who was seen when decides who is a control: there, days stay and only their contents change.
    history.change_the_future(ends, add=match is None)
    same(before.cohort, history.built(workspace, chosen).cohort)
