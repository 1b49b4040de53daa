"""Everything that a report shows, together, against a reader who solves for what is not shown."""

import json
import re
import warnings

import numpy as np
import pandas as pd
import pytest

from helpers.disclosure_attack import (
    Atoms,
    Reader,
    atoms_of,
    could_be,
    is_pinned,
    other_values,
    targets,
)
from phenotaste import TASTE, Cohort
from phenotaste.disclosure import MIN_CELL_SIZE, Gate
from phenotaste.report import content, model_figures, table_files
from phenotaste.report.content import describe_patients

FAMILIES = {"sex": ("F", "M", "other"), "age": ("80-89", "90+"), "rare": (False, True)}
FACTS = {
    "sex=F": ("sex", "F"),
    "sex=M": ("sex", "M"),
    "sex=other": ("sex", "other"),
    "age=80-89": ("age", "80-89"),
    "age=90+": ("age", "90+"),
    "rare": ("rare", True),
}


def origin_of(n):
    return {"attrition": [{"step": "first", "patients": n + 7}, {"step": "built", "patients": n}]}


def small_cohort(seed):
    """A cohort of 30 to 200 patients with rare levels, few cases and gaps; the levels of each patient beside it."""
    rng = np.random.default_rng(seed)
    n, n_features = int(rng.integers(30, 200)), 8
    visits = rng.integers(0, 6, n)
    kind = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    owner = np.repeat(np.arange(n), visits)
    chance = np.where(np.arange(n_features) % 3 == kind[owner][:, None], 0.6, 0.05)
    X = (rng.random(chance.shape) < chance * rng.choice([0.02, 0.3, 1.0], n_features)).astype(float)
    X[:, 0] = 1.0
    sex = rng.choice(3, n, p=[0.55, 0.4, 0.05])
    old, rare = rng.random(n) < rng.choice([0.05, 0.3]), rng.random(n) < rng.choice([0.05, 0.1, 0.3])
    labels = rng.choice([0.0, 1.0, np.nan], n, p=[0.6, 0.3, 0.1])
    static = np.column_stack([np.eye(3)[sex], ~old, old, rare]).astype(float)
    cohort = Cohort(
        X,
        np.concatenate([[0], np.cumsum(visits)]),
        static,
        static_names=["sex=F", "sex=M", "sex=other", "age=80-89", "age=90+", "rare"],
        labels=labels,
        origin=origin_of(n),
    )
    levels = {
        "sex": [FAMILIES["sex"][i] for i in sex],
        "age": [FAMILIES["age"][i] for i in old.astype(int)],
        "rare": rare.tolist(),
    }
    return cohort, levels


def fit(cohort, rank):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TASTE(rank, max_iter=4, n_init=1, init="random", random_state=0).fit(cohort)


def counted(atoms, members):
    return np.bincount(members, minlength=len(atoms.rows)).astype(float)


def read(atoms, model, cohort, members, of_fit=True):
    reader = Reader(atoms, FACTS).knows_truth(counted(atoms, members))
    reader.reads(model, cohort, of_fit)
    return reader.known()


def attack_one(seed):
    """The names of the counts of 1 to 10 that follow from a report, and the number that were tried."""
    cohort, levels = small_cohort(seed)
    rank = 1 + seed % 3
    model = fit(cohort, rank)
    atoms = Atoms(rank, FAMILIES)
    members = atoms_of(model, cohort, atoms, levels)
    truth = counted(atoms, members)
    known = read(atoms, model, cohort, members)
    sums = known.rows @ truth
    assert (known.low <= sums).all()  # the reader is not misled
    assert (sums <= known.high).all()
    small = {
        name: row for name, row in targets(atoms, rank, FAMILIES).items() if 0 < row @ truth < MIN_CELL_SIZE
    }
    return [name for name, row in small.items() if is_pinned(known, row)], len(small)


def attack_two(seed):
    """The variables of a patient who was added that follow from the two reports, and the number that were tried."""
    cohort, levels = small_cohort(seed)
    rank = 1 + seed % 3
    before = cohort[: len(cohort) - 1]
    before.origin = origin_of(len(before))
    # One model of others, so that all patients but one are in the same groups in both reports.
    model = fit(small_cohort(seed + 1000)[0], rank)
    atoms = Atoms(rank, FAMILIES)
    members = atoms_of(model, cohort, atoms, levels)
    first = read(atoms, model, before, members[:-1], of_fit=False)
    second = read(atoms, model, cohort, members, of_fit=False)
    assert could_be(first, second, members[-1])  # the reader is not misled
    variables = [name for name in atoms.variables if rank > 1 or name != "pattern"]
    pinned = [
        name
        for name in variables
        if not any(could_be(first, second, atom) for atom in other_values(atoms, members[-1], name)[:40])
    ]
    return pinned, len(variables)


@pytest.mark.parametrize("seed", range(3))
def test_no_small_count_follows_from_a_report(seed):
    pinned, tried = attack_one(seed)
    assert tried
    assert not pinned


@pytest.mark.parametrize("seed", range(3))
def test_two_reports_do_not_show_what_one_patient_has(seed):
    assert not attack_two(seed)[0]


@pytest.mark.attack
def test_no_small_count_follows_from_two_hundred_reports():
    found = [attack_one(seed) for seed in range(200)]
    assert not [pinned for pinned, _ in found if pinned]
    assert sum(tried for _, tried in found) > 2000


@pytest.mark.attack
def test_two_hundred_pairs_of_reports_do_not_show_what_one_patient_has():
    assert not [pinned for pinned, _ in map(attack_two, range(200)) if pinned]


def test_the_attack_succeeds_against_exact_counts(monkeypatch):
    """The reader is able: without rounding he finds small counts, and what the added patient has."""
    monkeypatch.setattr(Gate, "rounded", lambda self, what, count: int(count))
    monkeypatch.setattr("helpers.disclosure_attack.SLACK", 0)
    monkeypatch.setattr("helpers.disclosure_attack.BASE", 1)
    assert any(attack_one(seed)[0] for seed in range(3))
    assert any(attack_two(seed)[0] for seed in range(3))


def test_features_and_patients_are_counted_apart():
    """Counts of codes are linked to nothing but the number of patients: two intervals are all there is to solve."""
    cohort, _ = small_cohort(5)
    model = fit(cohort, 2)
    told = describe_patients(model, cohort, [1, 2], Gate())
    for feature in range(cohort.n_features):
        having = int(told.feature_counts.temporal[feature])
        rounded = told.gate.rounded(f"temporal {feature}", having)
        assert abs(rounded - having) < 5


def numbers_in(value):
    """Every number in a record for JSON."""
    if isinstance(value, dict | list):
        return {
            n for inner in (value.values() if isinstance(value, dict) else value) for n in numbers_in(inner)
        }
    if isinstance(value, str):
        return {float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", value)}
    return {abs(float(value))} if isinstance(value, int | float) else set()


def test_tables_and_figures_hold_no_number_that_the_page_does_not(tmp_path):
    """What the attack on the page does not find is not in the other files either."""
    cohort, _ = small_cohort(4)
    shown = content.build(fit(cohort, 2), cohort)
    page = numbers_in(json.loads(json.dumps(shown.as_dict())))
    for path in table_files.save_all(shown, tmp_path):
        if path.suffix != ".csv":
            continue
        table = pd.read_csv(path).drop(columns=["lift", "time"], errors="ignore")  # a quotient of two; 0 to 1
        found = numbers_in(json.loads(table.to_json(orient="values")))
        assert {round(n, 9) for n in found} <= {round(n, 9) for n in page}, path.name
    for draw in model_figures.drawings(shown).values():
        for axis in draw(shown).axes:
            for line in axis.lines:
                drawn = {round(abs(float(n)), 9) for n in line.get_ydata()}
                assert drawn <= {round(n, 9) for n in page} | set(map(float, range(20))), axis.get_title()
