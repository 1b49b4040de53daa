"""Matching: what must hold for every pair, and agreement with a slow version in plain Python."""

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.records import event, person, records
from phenotaste import build
from phenotaste.build import matching
from phenotaste.build.matching import Cases, Encounters, People, match, since
from phenotaste.build.settings import Index, Match, Settings
from phenotaste.build.windows import Periods
from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace

ORIGIN = np.datetime64("2020-02-27")  # a leap day lies near
NAT = np.datetime64("NaT", "D")


def simulated(seed, n_people=30, n_cases=6, n_encounters=90, spread=40, births=4000, n_strata=2):
    """A few patients on crowded days, so that ties, scarce candidates and repeated encounters are common."""
    rng = np.random.default_rng(seed)
    birth = np.datetime64("1950-01-01") + rng.integers(0, births, n_people)
    birth[rng.random(n_people) < 0.1] = NAT
    death = np.where(rng.random(n_people) < 0.3, ORIGIN + rng.integers(-5, spread, n_people), NAT)
    candidate = rng.random(n_people) < 0.8
    people = People(birth, death, rng.integers(0, n_strata, n_people), candidate)
    patient = np.sort(rng.choice(n_people, n_cases, replace=False))
    date = ORIGIN + rng.integers(0, spread, n_cases)
    cases = Cases(patient, date, date - rng.integers(0, 30, n_cases))
    encounters = Encounters(
        rng.integers(0, n_people, n_encounters).astype(np.int32),
        ORIGIN + rng.integers(-20, spread + 20, n_encounters),
    )
    owner = rng.integers(0, n_people, 2 * n_people)
    start = ORIGIN - 40 + rng.integers(0, 40, len(owner))
    periods = Periods.merged(n_people, owner, start, start + rng.integers(20, 120, len(owner)))
    return cases, people, encounters, periods


def qualities(cases, people, encounters, periods, settings, case, who):
    """(age difference, days to the nearest encounter), or None where the patient cannot be a control."""
    patient, date = cases.patient[case], cases.date[case]
    if not people.candidate[who] or who in cases.patient or people.stratum[who] != people.stratum[patient]:
        return None
    if np.isnat(people.birth[who]) or np.isnat(people.birth[patient]) or people.death[who] < date:
        return None
    apart = abs(int((people.birth[who] - people.birth[patient]).astype(int)))
    seen = [abs(int((day - date).astype(int))) for day in encounters.day[encounters.patient == who]]
    if apart > settings.age_years * 365.25 or not seen or min(seen) > settings.encounter_days:
        return None
    if not periods.covers(np.array([who]), cases.history_start[case], date)[0]:
        return None
    return apart, min(seen)


def oracle(cases, people, encounters, periods, settings):
    n = len(people.birth)
    lots = np.random.default_rng(settings.seed).permutation(n).tolist()
    able = []
    for case in range(len(cases.patient)):
        found = {w: qualities(cases, people, encounters, periods, settings, case, w) for w in range(n)}
        able.append(sorted((*q, lots[w], w) for w, q in found.items() if q is not None))
    order = np.random.default_rng(settings.seed).permutation(len(able)).tolist()
    order = sorted(range(len(able)), key=lambda case: (len(able[case]), order[case]))
    used, pairs = set(), []
    for wanted in (1, settings.ratio - 1):
        for case in order:
            for *_, who in [row for row in able[case] if row[-1] not in used][:wanted]:
                used.add(who)
                pairs.append((case, who))
    return sorted(pairs)


settings = st.builds(
    Match,
    ratio=st.integers(1, 4),
    age_years=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    encounter_days=st.sampled_from([0, 3, 30]),
    seed=st.integers(0, 5),
)
inputs = st.builds(
    simulated,
    seed=st.integers(0, 10**6),
    n_people=st.integers(8, 40),
    n_cases=st.integers(0, 8),
    n_encounters=st.integers(0, 150),
    births=st.sampled_from([1, 3, 4000]),
    n_strata=st.integers(1, 3),
)


@given(inputs, settings)
def test_pairs_match_the_brute_force_version(data, chosen):
    pairs = match(*data, chosen)
    assert list(zip(pairs.case.tolist(), pairs.control.tolist(), strict=True)) == oracle(*data, chosen)


@given(inputs, settings)
def test_no_control_twice_and_each_within_the_tolerances(data, chosen):
    cases = data[0]
    pairs = match(*data, chosen)
    assert len(np.unique(pairs.control)) == len(pairs.control)
    assert not np.isin(pairs.control, cases.patient).any()
    assert np.bincount(pairs.case, minlength=1).max(initial=0) <= chosen.ratio
    for case, who in zip(pairs.case, pairs.control, strict=True):
        assert qualities(*data, chosen, case, who) is not None


@given(inputs, settings, st.randoms(use_true_random=False))
def test_neither_order_nor_repeats_of_encounters_matter(data, chosen, random):
    cases, people, encounters, periods = data
    rows = 2 * list(range(len(encounters.day)))
    random.shuffle(rows)
    other = Encounters(encounters.patient[rows], encounters.day[rows])
    first, second = match(*data, chosen), match(cases, people, other, periods, chosen)
    assert [column.tolist() for column in first] == [column.tolist() for column in second]


@given(inputs, settings)
def test_the_cache_does_not_change_the_pairs(data, chosen):
    """With a list of one, nearly every second choice has to look beyond it."""
    whole, before = match(*data, chosen), matching.CANDIDATES_PER_CONTROL
    matching.CANDIDATES_PER_CONTROL = 1
    try:
        short = match(*data, chosen)
    finally:
        matching.CANDIDATES_PER_CONTROL = before
    assert [column.tolist() for column in whole] == [column.tolist() for column in short]


def crowd(birth, encounter_days, n_cases):
    """Cases born on the first day, seen at the origin; everybody is under observation."""
    n = len(birth)
    people = People(
        np.datetime64("1950-01-01") + np.array(birth), np.full(n, NAT), np.zeros(n, int), np.ones(n, bool)
    )
    cases = Cases(np.arange(n_cases), np.full(n_cases, ORIGIN), np.full(n_cases, ORIGIN))
    encounters = Encounters(np.arange(n), ORIGIN + np.array(encounter_days))
    return cases, people, encounters, Periods.merged(n, np.arange(n), np.full(n, ORIGIN), np.full(n, ORIGIN))


def test_age_comes_before_the_encounter():
    data = crowd(birth=[0, 2, 1, 1], encounter_days=[0, 0, 9, -8], n_cases=1)
    assert match(*data, Match(ratio=1)).control.tolist() == [3]
    assert match(*data, Match(ratio=2)).control.tolist() == [2, 3]


def test_tolerances_are_inclusive():
    year = 366  # more than 365.25: one day too many
    data = crowd(birth=[0, 365, year, 0, 0, 0], encounter_days=[0, 0, 0, 30, 31, -30], n_cases=1)
    found = match(*data, Match(ratio=9, age_years=1, encounter_days=30)).control.tolist()
    assert found == [1, 3, 5]


def test_every_case_gets_a_first_control_before_any_gets_a_second():
    data = crowd(birth=[0, 0, 0, 1, 2, 3], encounter_days=[0] * 6, n_cases=3)
    assert np.bincount(match(*data, Match(ratio=3)).case).tolist() == [1, 1, 1]


def test_the_seed_breaks_ties():
    data = crowd(birth=[0] * 40, encounter_days=[0] * 40, n_cases=1)
    draws = {tuple(match(*data, Match(ratio=3, seed=seed)).control) for seed in range(8)}
    assert len(draws) > 4
    assert match(*data, Match(seed=3)).control.tolist() == match(*data, Match(seed=3)).control.tolist()


@pytest.mark.parametrize("n_cases", [0, 2])
def test_without_candidates_there_are_no_pairs(n_cases):
    data = crowd(birth=[0, 0], encounter_days=[0, 0], n_cases=n_cases)
    if n_cases == 0:
        data = (data[0], data[1]._replace(candidate=np.zeros(2, bool)), *data[2:])
    assert len(match(*data, Match()).case) == 0


@given(inputs, settings, st.integers(0, 10**6))
def test_by_history_the_calendar_of_a_patient_does_not_matter(data, chosen, seed):
    """Moving all dates of each patient by a number of days of its own moves nothing since its first day."""
    cases, people, encounters, periods = data
    n = len(people.birth)
    first = ORIGIN - np.random.default_rng(seed).integers(0, 30, n)
    moved = np.random.default_rng(seed + 1).integers(-40_000, 40_000, n)
    owner = np.repeat(np.arange(n), np.diff(periods.pointer))
    elsewhere = (
        Cases(cases.patient, cases.date + moved[cases.patient], cases.history_start + moved[cases.patient]),
        people._replace(birth=people.birth + moved, death=people.death + moved),
        Encounters(encounters.patient, encounters.day + moved[encounters.patient]),
        Periods(periods.pointer, periods.start + moved[owner], periods.end + moved[owner]),
    )
    here, there = since(first, *data), since(first + moved, *elsewhere)
    pairs = match(*here, chosen)
    assert np.array_equal(pairs, match(*there, chosen))
    assert list(zip(*pairs, strict=True)) == oracle(*here, chosen)


@pytest.fixture
def workspace():
    with Workspace(threads=1) as workspace:
        yield workspace


def shifted_hospital(workspace, days):
    """Two cases of 428 after about a year and three others; `days` moves all dates of a patient."""
    visits = {"a": (0, 200, 365), "b": (0, 360), "c": (0, 100, 365), "d": (0, 30), "e": (0, 370)}
    events, people = [], []
    for name, offsets in visits.items():
        start = np.datetime64("2008-01-01") + days[name]
        codes = ["401"] * (len(offsets) - 1) + ["428" if name in "ab" else "250"]
        times = [str(start + offset) for offset in offsets]
        events += [
            event(name, time, code, vocabulary="ICD9CM") for time, code in zip(times, codes, strict=True)
        ]
        people.append(person(name, birth=str(start - 60 * 365)))
    return records(workspace, events, people)


def matched_cohort(workspace, days, **options):
    index = Index(codes=("ICD9CM:428",), covered=False)
    chosen = Settings(visit="day", index=index, match=Match(ratio=1, **options))
    return build.cohort(workspace, shifted_hospital(workspace, days), chosen).patients.to_pylist()


def test_shifted_patients_have_the_controls_of_unshifted_ones(workspace):
    none, shifted = (
        dict.fromkeys("abcde", 0),
        dict(zip("abcde", (0, 40_000, 9_000, 70_000, 20_000), strict=True)),
    )
    wanted = matched_cohort(workspace, none, by="history")
    assert {row["patient"]: row["match_set"] for row in wanted} == {"a": 0, "b": 1, "c": 0, "e": 1}
    found = matched_cohort(workspace, shifted, by="history")
    for row, original in zip(found, wanted, strict=True):
        moved = original["index_date"] + datetime.timedelta(days=shifted[row["patient"]])
        wanted_row = (original["patient"], moved, original["match_set"])
        assert (row["patient"], row["index_date"], row["match_set"]) == wanted_row
    with pytest.raises(InputError, match=r"no case has a control.*match by history where dates are shifted"):
        matched_cohort(workspace, shifted)


def test_a_source_that_shifts_dates_refuses_to_match_by_them(workspace):
    source = shifted_hospital(workspace, dict.fromkeys("abcde", 0))._replace(shifted_dates=True)
    chosen = Settings(index=Index(codes=("ICD9CM:428",)), match=Match())
    with pytest.raises(
        InputError, match="cannot be matched by date; match by the time since the first record"
    ):
        build.cohort(workspace, source, chosen)
