"""Matched controls: close in age, with an encounter close to the index date, without replacement.

Where dates are shifted by patient, times since the first record of each patient take the place of dates.

A first pass gives each case one control, cases with the fewest candidates first; a second pass, in the same order,
fills up to the ratio. A case is left unmatched only if all its candidates were assigned to other cases. Candidates
are ranked by difference in age, then by distance of the encounter, then at random.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.build.settings import Match
from phenotaste.build.windows import Periods

DAYS_IN_YEAR = 365.25
CANDIDATES_PER_CONTROL = 4  # of the best candidates kept for each case
UNKNOWN = np.datetime64("NaT", "D").astype(np.int64)
EPOCH = np.datetime64("1970-01-01", "D")


class Cases(NamedTuple):
    """A row for each case, in an order independent of the source."""

    patient: np.ndarray
    date: np.ndarray  # the index date
    history_start: np.ndarray  # first day on which a control must be under observation


class People(NamedTuple):
    """A row for each patient of the source, cases and controls alike."""

    birth: np.ndarray
    death: np.ndarray  # NaT: no known death
    stratum: np.ndarray  # from 0; patients of a stratum agree on the exactly matched columns
    candidate: np.ndarray  # may become a control


class Encounters(NamedTuple):
    """Days with an event or encounter."""

    patient: np.ndarray
    day: np.ndarray


class Pairs(NamedTuple):
    """A row for each control: the position of its case, and its patient number; sorted by both."""

    case: np.ndarray
    control: np.ndarray


def since(
    first: np.ndarray, cases: Cases, people: People, encounters: Encounters, periods: Periods
) -> tuple[Cases, People, Encounters, Periods]:
    """The same with every date as the time since its patient's day in `first`, counted from 1970.

    A difference in age at the same time of the history is a difference of births then, as it is on the same date.
    """

    def shifted(dates: np.ndarray, patient: np.ndarray) -> np.ndarray:
        return EPOCH + (dates.astype("datetime64[D]") - first[patient])

    everyone = np.arange(len(first))
    owner = np.repeat(everyone, np.diff(periods.pointer))
    return (
        Cases(cases.patient, shifted(cases.date, cases.patient), shifted(cases.history_start, cases.patient)),
        people._replace(birth=shifted(people.birth, everyone), death=shifted(people.death, everyone)),
        Encounters(encounters.patient, shifted(encounters.day, encounters.patient)),
        Periods(periods.pointer, shifted(periods.start, owner), shifted(periods.end, owner)),
    )


def match(cases: Cases, people: People, encounters: Encounters, periods: Periods, match: Match) -> Pairs:
    """Up to `match.ratio` controls for each case, without replacement.

    A control is a candidate of the case's stratum, born within `age_years` of it, with an encounter within
    `encounter_days` of the index date, alive then and under observation from `history_start` to the index date.
    """
    if not len(cases.patient):
        return Pairs(np.array([], np.int64), np.array([], np.int64))
    search = _Search(cases, people, encounters, periods, match)
    lists = [search.ranked(case, CANDIDATES_PER_CONTROL * match.ratio) for case in range(len(cases.patient))]
    counts = np.array([count for _, count in lists])
    order = np.lexsort((_random_ranks(len(counts), match.seed), counts))
    assigned: list[tuple[int, int]] = []
    for number in (1, match.ratio - 1):
        for case in order:
            best, count = lists[case]
            controls = best[search.available[best]][:number]
            if len(controls) < number and len(best) < count:  # candidates were assigned elsewhere: rank again
                controls = search.ranked(case, number)[0]
            search.available[controls] = False
            assigned += [(int(case), int(control)) for control in controls]
    pairs = np.array(sorted(assigned), np.int64).reshape(-1, 2)
    return Pairs(pairs[:, 0], pairs[:, 1])


class _Search:
    """Encounters sorted by stratum, day and birth, so that those close to a case are a few contiguous ranges."""

    def __init__(
        self, cases: Cases, people: People, encounters: Encounters, periods: Periods, match: Match
    ) -> None:
        self.cases, self.people, self.periods = cases, people, periods
        self.available = people.candidate & ~np.isnat(people.birth)
        self.available[cases.patient] = False
        self.tie_break = _random_ranks(len(people.birth), match.seed)
        self.last_row = np.zeros(len(people.birth), np.int64)
        self.index, self.birth, self.death = (
            _days(column) for column in (cases.date, people.birth, people.death)
        )
        self.max_age_difference = int(match.age_years * DAYS_IN_YEAR)
        away = np.arange(match.encounter_days, 0, -1)
        self.offsets = np.append(np.column_stack([-away, away]).ravel(), 0)  # the closest last
        births = self.birth[self.available]
        self.births = (int(births.min()), int(births.max())) if len(births) else (0, 0)
        self.days = (
            int(self.index.min()) - match.encounter_days,
            int(self.index.max()) + match.encounter_days,
        )
        self._sort(encounters)

    def _sort(self, encounters: Encounters) -> None:
        day = _days(encounters.day)
        near = self.available[encounters.patient] & (day >= self.days[0]) & (day <= self.days[1])
        patients = encounters.patient[near]
        key = self._key(self.people.stratum[patients], day[near], self.birth[patients])
        order = np.argsort(key)
        self.key, self.patients = key[order], patients[order]

    def _key(self, stratum: np.ndarray, day: np.ndarray, birth: np.ndarray) -> np.ndarray:
        """A composite key in lexicographic order."""
        row = np.asarray(stratum, np.int64) * (self.days[1] - self.days[0] + 1) + (day - self.days[0])
        return row * (self.births[1] - self.births[0] + 1) + (birth - self.births[0])

    def eligible(self, case: int) -> tuple[np.ndarray, np.ndarray]:
        """Available candidates of a case, and the distance in days of their closest encounter."""
        patient, index = self.cases.patient[case], self.index[case]
        birth = self.birth[patient]
        none = np.array([], np.int64), np.array([], np.int64)
        if birth == UNKNOWN:
            return none
        oldest, youngest = (
            max(birth - self.max_age_difference, self.births[0]),
            min(birth + self.max_age_difference, self.births[1]),
        )
        if oldest > youngest:
            return none
        stratum, days = self.people.stratum[patient], index + self.offsets
        low = np.searchsorted(self.key, self._key(stratum, days, oldest), "left")
        high = np.searchsorted(self.key, self._key(stratum, days, youngest), "right")
        patients, distance = self.patients[_ranges(low, high)], np.repeat(np.abs(self.offsets), high - low)
        # The closest encounter of a patient comes last, and the last assignment is the one kept.
        row = np.arange(len(patients))
        self.last_row[patients] = row
        suitable = (self.last_row[patients] == row) & self.available[patients]
        patients, distance = patients[suitable], distance[suitable]
        died = self.death[patients]
        suitable = ((died == UNKNOWN) | (died >= index)) & self.periods.covers(
            patients, self.cases.history_start[case], self.cases.date[case]
        )
        return patients[suitable], distance[suitable]

    def ranked(self, case: int, limit: int) -> tuple[np.ndarray, int]:
        """The best available candidates of a case, best first, and the number of all available ones."""
        patients, distance = self.eligible(case)
        count = len(patients)
        apart = np.abs(self.birth[patients] - self.birth[self.cases.patient[case]])
        if count > limit:  # sort only those that can be among the first
            near = apart <= np.partition(apart, limit)[limit]
            patients, distance, apart = patients[near], distance[near], apart[near]
        return patients[np.lexsort((self.tie_break[patients], distance, apart))[:limit]], count


def _random_ranks(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(count)


def _days(dates: np.ndarray) -> np.ndarray:
    return np.asarray(dates, "datetime64[D]").astype(np.int64)


def _ranges(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Concatenate the ranges from each low up to its high."""
    count = high - low
    return np.repeat(low - (np.cumsum(count) - count), count) + np.arange(count.sum())
