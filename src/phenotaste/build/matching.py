"""Controls for cases: near in age and seen near the index date, nobody twice.

Each case first gets one control, those with the fewest candidates first; then, in the same order, each gets
up to its ratio. So a case goes without only if others had need of all its candidates. A control is the
nearest in age, then in the time of its encounter, then by lot.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.build.settings import Match
from phenotaste.build.windows import Periods

DAYS_IN_YEAR = 365.25
SPARE = 4  # times the ratio: so many of the best are remembered for each case
UNKNOWN = np.datetime64("NaT", "D").astype(np.int64)


class Cases(NamedTuple):
    """A row for each case, in an order that does not depend on the source's."""

    patient: np.ndarray
    date: np.ndarray  # the index date
    reach: np.ndarray  # the day that the history of a control must reach back to


class People(NamedTuple):
    """A row for each patient of the source, cases and controls alike."""

    birth: np.ndarray
    death: np.ndarray  # NaT: not known to have died
    stratum: np.ndarray  # from 0; those of one stratum agree on the columns that must be the same
    candidate: np.ndarray  # may become a control


class Encounters(NamedTuple):
    """Days on which patients were seen."""

    patient: np.ndarray
    day: np.ndarray


class Pairs(NamedTuple):
    """A row for each control: the position of its case, and its patient; sorted by both."""

    case: np.ndarray
    control: np.ndarray


def match(cases: Cases, people: People, encounters: Encounters, periods: Periods, match: Match) -> Pairs:
    """Up to `match.ratio` controls for each case, without replacement.

    A control is a candidate of the case's stratum, born within `age_years` of it, with an encounter within
    `encounter_days` of the index date, alive and under observation then and ever since the day `reach`.
    """
    if not len(cases.patient):
        return Pairs(np.array([], np.int64), np.array([], np.int64))
    search = _Search(cases, people, encounters, periods, match)
    lists = [search.ranked(case, SPARE * match.ratio) for case in range(len(cases.patient))]
    counts = np.array([count for _, count in lists])
    order = np.lexsort((_lots(len(counts), match.seed), counts))
    found: list[tuple[int, int]] = []
    for wanted in (1, match.ratio - 1):
        for case in order:
            best, count = lists[case]
            controls = best[search.free[best]][:wanted]
            if len(controls) < wanted and len(best) < count:  # others took from the list: look beyond its end
                controls = search.ranked(case, wanted)[0]
            search.free[controls] = False
            found += [(int(case), int(control)) for control in controls]
    pairs = np.array(sorted(found), np.int64).reshape(-1, 2)
    return Pairs(pairs[:, 0], pairs[:, 1])


class _Search:
    """Encounters sorted by stratum, day and birth, so that those near a case are a few stretches of them."""

    def __init__(
        self, cases: Cases, people: People, encounters: Encounters, periods: Periods, match: Match
    ) -> None:
        self.cases, self.people, self.periods = cases, people, periods
        self.free = people.candidate & ~np.isnat(people.birth)
        self.free[cases.patient] = False
        self.lots = _lots(len(people.birth), match.seed)
        self.place = np.zeros(len(people.birth), np.int64)
        self.index, self.birth, self.death = (
            _days(column) for column in (cases.date, people.birth, people.death)
        )
        self.span = int(match.age_years * DAYS_IN_YEAR)
        away = np.arange(match.encounter_days, 0, -1)
        self.offsets = np.append(np.column_stack([-away, away]).ravel(), 0)  # the nearest last
        births = self.birth[self.free]
        self.births = (int(births.min()), int(births.max())) if len(births) else (0, 0)
        self.days = (
            int(self.index.min()) - match.encounter_days,
            int(self.index.max()) + match.encounter_days,
        )
        self._sort(encounters)

    def _sort(self, encounters: Encounters) -> None:
        day = _days(encounters.day)
        near = self.free[encounters.patient] & (day >= self.days[0]) & (day <= self.days[1])
        who = encounters.patient[near]
        key = self._key(self.people.stratum[who], day[near], self.birth[who])
        order = np.argsort(key)
        self.key, self.who = key[order], who[order]

    def _key(self, stratum: np.ndarray, day: np.ndarray, birth: np.ndarray) -> np.ndarray:
        """One number that sorts like the three."""
        row = np.asarray(stratum, np.int64) * (self.days[1] - self.days[0] + 1) + (day - self.days[0])
        return row * (self.births[1] - self.births[0] + 1) + (birth - self.births[0])

    def eligible(self, case: int) -> tuple[np.ndarray, np.ndarray]:
        """Patients that can still be a control of this case, and how many days off their nearest encounter is."""
        patient, index = self.cases.patient[case], self.index[case]
        birth = self.birth[patient]
        nobody = np.array([], np.int64), np.array([], np.int64)
        if birth == UNKNOWN:
            return nobody
        oldest, youngest = max(birth - self.span, self.births[0]), min(birth + self.span, self.births[1])
        if oldest > youngest:
            return nobody
        stratum, days = self.people.stratum[patient], index + self.offsets
        low = np.searchsorted(self.key, self._key(stratum, days, oldest), "left")
        high = np.searchsorted(self.key, self._key(stratum, days, youngest), "right")
        who, distance = self.who[_stretches(low, high)], np.repeat(np.abs(self.offsets), high - low)
        # Of several encounters the nearest counts: it comes last, and the last one written stays.
        row = np.arange(len(who))
        self.place[who] = row
        fit = (self.place[who] == row) & self.free[who]
        who, distance = who[fit], distance[fit]
        died = self.death[who]
        fit = ((died == UNKNOWN) | (died >= index)) & self.periods.covers(
            who, self.cases.reach[case], self.cases.date[case]
        )
        return who[fit], distance[fit]

    def ranked(self, case: int, most: int) -> tuple[np.ndarray, int]:
        """The best patients that can still be a control of this case, best first, and how many can in all."""
        who, distance = self.eligible(case)
        count = len(who)
        apart = np.abs(self.birth[who] - self.birth[self.cases.patient[case]])
        if count > most:  # sort only those that may be chosen
            near = apart <= np.partition(apart, most)[most]
            who, distance, apart = who[near], distance[near], apart[near]
        return who[np.lexsort((self.lots[who], distance, apart))[:most]], count


def _lots(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(count)


def _days(dates: np.ndarray) -> np.ndarray:
    return np.asarray(dates, "datetime64[D]").astype(np.int64)


def _stretches(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The numbers from each low up to its high, one stretch after the other."""
    count = high - low
    return np.repeat(low - (np.cumsum(count) - count), count) + np.arange(count.sum())
