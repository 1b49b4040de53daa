"""At least so many visits, features in at least so many patients, or the features of a model: what is left."""

import numpy as np

from phenotaste.build.attrition import Attrition
from phenotaste.build.matrix import Rows

CELLS = 2**24  # patients times features that are looked at together


def enough(rows: Rows, n_features: int, min_visits: int, min_patients: int, attrition: Attrition) -> Rows:
    """Patients with enough visits, then features with enough patients, again and again until both hold."""
    size = _size(rows)
    visits_kept = size.copy()
    while True:
        rows = with_visits(rows, min_visits)
        visits_kept -= size - _size(rows)
        common = rows if min_patients <= 1 else _with_common_features(rows, n_features, min_patients)
        if len(common.feature) == len(rows.feature):
            break
        rows, size = common, _size(common)
    if min_visits > 1:
        patients, visits, events = visits_kept
        attrition.record(
            f"at least {min_visits} visits",
            patients,
            visits,
            events,
            f"no patient has at least {min_visits} visits; lower --min-visits.",
        )
    if min_patients > 1:
        patients, visits, events = _size(rows)
        attrition.record(
            f"features in at least {min_patients} patients",
            patients,
            visits,
            events,
            f"no feature is seen in at least {min_patients} patients with enough visits; "
            "lower --min-patients or --min-visits.",
        )
    return rows


def with_visits(rows: Rows, min_visits: int) -> Rows:
    counts = np.bincount(rows.patient)
    return rows if min_visits <= 1 else rows.take_visits((counts >= min_visits)[rows.patient])


def _with_common_features(rows: Rows, n_features: int, min_patients: int) -> Rows:
    common = patients_per_feature(rows, n_features) >= min_patients
    return rows if common.all() else rows.take_entries(common[rows.feature])


def patients_per_feature(rows: Rows, n_features: int) -> np.ndarray:
    """In how many patients each feature is seen; some thousand patients at a time, whatever their number."""
    firsts = np.flatnonzero(np.diff(rows.patient, prepend=-1))  # the first visit of each patient
    step = max(1, CELLS // max(1, n_features))
    total = np.zeros(n_features, np.int64)
    for begin in range(0, len(firsts), step):
        chosen = slice(
            firsts[begin], firsts[begin + step] if begin + step < len(firsts) else len(rows.patient)
        )
        indptr = rows.indptr[chosen.start : chosen.stop + 1]
        rank = np.cumsum(np.diff(rows.patient[chosen], prepend=rows.patient[chosen.start]) != 0)
        seen = np.zeros((min(step, len(firsts) - begin), n_features), bool)
        seen[np.repeat(rank, np.diff(indptr)), rows.feature[indptr[0] : indptr[-1]]] = True
        total += seen.sum(axis=0)
    return total


def as_model(rows: Rows, names: np.ndarray, known: tuple[str, ...], attrition: Attrition) -> Rows:
    """Only features that the model knows, numbered as it numbers them."""
    place = {name: number for number, name in enumerate(known)}
    places = np.array([place.get(str(name), -1) for name in names], np.int32)
    rows = rows.take_entries(places[rows.feature] >= 0)
    patients, visits, events = _size(rows)
    attrition.record(
        "features that the model knows",
        patients,
        visits,
        events,
        "no feature of the data is one of the model's; build it with the settings that the model's cohort had.",
    )
    return _sorted_within_visits(rows._replace(feature=places[rows.feature]))


def _sorted_within_visits(rows: Rows) -> Rows:
    visit = np.repeat(np.arange(len(rows.patient)), np.diff(rows.indptr))
    order = np.lexsort((rows.feature, visit))
    return rows._replace(feature=rows.feature[order], amount=rows.amount[order])


def _size(rows: Rows) -> np.ndarray:
    return np.array([rows.n_patients, len(rows.patient), rows.n_events])
