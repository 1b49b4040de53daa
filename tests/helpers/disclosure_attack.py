"""A reader who puts everything that a report shows into one system of inequalities and solves it.

Patients are counted by atom: the phenotypes that they have, the one that leads, the level of each static fact, and the
label. Every number that is shown is a sum of atoms known to within 4. The reader knows the size of the cohort exactly,
from elsewhere, and is even told which of the counts behind a withheld number was small, which the page does not say.
"""

import itertools
import json
import re
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from phenotaste.disclosure import BASE, MIN_CELL_SIZE, Gate
from phenotaste.patients import leading, present
from phenotaste.report.content import build, describe_patients
from phenotaste.report.patients import patients_of
from phenotaste.report.writer import render

SLACK = BASE - 1
MOST_WITHHELD = 14  # a count that is rounded to 10 or less
LABELS = ("case", "control", "none")
HISTORIES = ("empty", "short", "long")


class Atoms:
    """All combinations that a patient may have, as rows of attributes."""

    def __init__(self, rank, families):
        """`families` maps a variable to its exclusive levels, of which every patient has one."""
        patterns = [(None, frozenset())]
        for lead in range(rank):
            others = [r for r in range(rank) if r != lead]
            for n in range(rank):
                patterns += [(lead, frozenset((lead, *more))) for more in itertools.combinations(others, n)]
        self.variables = {"pattern": patterns, **families, "label": LABELS, "history": HISTORIES}
        rows = (
            dict(zip(self.variables, row, strict=True)) for row in itertools.product(*self.variables.values())
        )
        self.rows = [row for row in rows if row["history"] != "empty" or row["pattern"][0] is None]
        self.position = {tuple(row.values()): i for i, row in enumerate(self.rows)}

    def where(self, *tests):
        """The indicator of the atoms that pass all tests."""
        return np.array([all(test(row) for test in tests) for row in self.rows], float)


def leads(r):
    return lambda row: row["pattern"][0] == r


def has(r):
    return lambda row: r in row["pattern"][1]


def level(variable, value):
    return lambda row: row[variable] == value


class Known(NamedTuple):
    """What a report tells: low <= rows @ counts <= high."""

    rows: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Reader:
    """Collects what the page of a cohort shows."""

    def __init__(self, atoms, facts):
        """`facts` maps the name of a fact on the page to its variable and level."""
        self.atoms, self.facts = atoms, facts
        self.rows, self.low, self.high = [], [], []

    def learns(self, row, low, high):
        self.rows.append(row)
        self.low.append(low)
        self.high.append(high)

    def about(self, row, rounded):
        self.learns(row, rounded - SLACK, rounded + SLACK)

    def at_most(self, row, high):
        self.learns(row, -np.inf, high)

    def at_least(self, row, low):
        self.learns(row, low, np.inf)

    def known(self):
        return Known(np.array(self.rows), np.array(self.low, float), np.array(self.high, float))

    def reads(self, model, cohort, of_fit=True):
        """Read the page as it is written; `told` holds the rounded counts behind quotients, to spare a search.

        `of_fit`: the rates of facts among those who have a phenotype are of these patients.
        """
        html = render(build(model, cohort))
        page = json.loads(
            re.search(r'<script type="application/json" id="content">(.*?)</script>', html, re.S)[1]
        )
        numbers = [p["number"] for p in page["phenotypes"]]
        told = describe_patients(model, cohort, numbers, Gate())
        self.gate = told.gate
        if told.groups is None:
            return page
        where, everyone = self.atoms.where, self.atoms.where()
        n = int(re.sub(r"\D", "", dict(page["overview"]["figures"])["Patients"]))
        assert abs(n - len(cohort)) <= SLACK
        self.learns(everyone, len(cohort), len(cohort))  # known from elsewhere, as from a paper
        lines = dict(page["overview"]["cohort"])
        short = next(text for label, text in lines.items() if label.startswith("Fewer visits"))
        self.reads_count(where(leads(None)), lines["Without any phenotype"])
        self.reads_count(where(level("history", "empty")), lines["Without visits"])
        self.reads_count(where(level("history", "short")), short)
        for step in page["overview"]["attrition"] or ():
            if step["step"] == "built":  # the size of the cohort again
                self.about(everyone, step["patients"])
        for fact in page["features"]["static"]:
            if fact["name"] in self.facts:
                self.reads_share(
                    where(level(*self.facts[fact["name"]])), fact["share"], n, f"static {fact['name']}"
                )
        for r, phenotype in enumerate(page["phenotypes"]):
            self.reads_phenotype(r, phenotype, n)
            if of_fit:
                self.reads_rates(r, phenotype, page["features"]["static"], n)
        if told.labels is not None:
            for label, count in zip(LABELS, told.labels.total, strict=False):
                self.about(where(level("label", label)), count)
            for r, counts in enumerate(told.labels.groups):
                for label, count in zip(LABELS, counts, strict=False):
                    row = where(leads(r), level("label", label))
                    self.at_most(row, MOST_WITHHELD) if count is None else self.about(row, count)
        return page

    def reads_count(self, row, text):
        if text == "withheld":
            self.at_most(row, MOST_WITHHELD)
        else:
            self.about(row, int(re.sub(r"\D", "", text)))

    def reads_share(self, row, share, n, what):
        if share is not None:
            count = BASE * round(share * n / BASE)
            assert abs(share - count / n) < 0.001, f"not a quotient of rounded counts: {share}, {n}, {what}"
            self.about(row, count)
            return count
        rounded = self.gate.rounded(what, int(row @ self.truth))
        self.at_most(row, MOST_WITHHELD) if rounded < 15 else self.at_least(row, n - MOST_WITHHELD)
        return None

    def reads_phenotype(self, r, phenotype, n):
        where = self.atoms.where
        size = phenotype["leading"]["patients"]
        if size is not None:
            self.about(where(leads(r)), size)
        elif phenotype["typical"]:  # drawn, but without a number: few others
            self.at_least(where(leads(r)), n - MOST_WITHHELD)
        else:
            self.at_most(where(leads(r)), MOST_WITHHELD)
        self.reads_share(where(has(r)), phenotype["prevalence"], n, f"phenotype {phenotype['number']}")
        if size is None:
            assert not phenotype["profile"]
            return
        for contrast in phenotype["profile"]:
            if contrast["feature"] not in self.facts:
                continue
            fact = level(*self.facts[contrast["feature"]])
            row = where(leads(r), fact)
            if contrast["leading"] is not None:
                part = BASE * round(contrast["leading"] * size / BASE)
                assert abs(contrast["leading"] - part / size) < 0.001
                self.about(row, part)
            else:
                self.reads_withheld(row, fact, contrast["feature"], phenotype["number"], size, n)

    def reads_withheld(self, row, fact, name, number, size, n):
        """A contrast is withheld if one of four counts is small: the reader is told which.

        Rates are withheld too if few patients have a phenotype without its leading; that says nothing about a fact.
        """
        part = self.gate.rounded(f"phenotype {number}/static {name}", int(row @ self.truth))
        total = self.gate.rounded(f"static {name}", int(self.atoms.where(fact) @ self.truth))
        if part <= MOST_WITHHELD:
            self.at_most(row, MOST_WITHHELD)
        elif size - part <= MOST_WITHHELD:
            self.at_least(row, size - MOST_WITHHELD)
        elif total - part <= MOST_WITHHELD:
            self.at_least(row, total - MOST_WITHHELD)
        elif n - size - total + part <= MOST_WITHHELD:
            self.at_most(row, MOST_WITHHELD - (n - size - total))

    def reads_rates(self, r, phenotype, features, n):
        """Rates among the patients who have the phenotype."""
        if phenotype["prevalence"] is None:
            assert not any(rate is not None for rate in phenotype["rates"])
            return
        size = self.gate.rounded(
            f"phenotype {phenotype['number']}", int(self.atoms.where(has(r)) @ self.truth)
        )
        for feature, rate in zip(features, phenotype["rates"], strict=True):
            name = feature["name"]
            if name in self.facts:
                fact = level(*self.facts[name])
                row = self.atoms.where(has(r), fact)
                if rate is None:
                    self.reads_withheld(row, fact, name, phenotype["number"], size, n)
                else:
                    self.reads_share(row, rate, size, "")

    def knows_truth(self, counts):
        """The true counts decide which branch of a withheld number the reader is told, and nothing else."""
        self.truth = counts
        return self


def atoms_of(model, cohort, atoms, values):
    """The atom of every patient; `values` maps a variable to the level of each patient."""
    shares = patients_of(model, cohort).shares()
    lead, have = leading(shares), present(shares)
    found = []
    for k in range(len(cohort)):
        pattern = (None if lead[k] < 0 else int(lead[k]), frozenset(np.flatnonzero(have[k]).tolist()))
        pattern = (None, frozenset()) if lead[k] < 0 else pattern
        label = LABELS[2] if np.isnan(cohort.labels[k]) else LABELS[0] if cohort.labels[k] else LABELS[1]
        visits = cohort.visit_counts[k]
        history = "empty" if visits == 0 else "short" if visits < shares.shape[1] else "long"
        found.append(atoms.position[(pattern, *(column[k] for column in values.values()), label, history)])
    return np.array(found)


def bound(known, row, sign, integral=False):
    """The least (sign 1) or the largest (sign -1) count that the reader must consider possible."""
    if integral:
        limits = LinearConstraint(known.rows, known.low, known.high)
        found = milp(sign * row, constraints=limits, integrality=np.ones(len(row)), bounds=Bounds(0, np.inf))
    else:
        found = linprog(sign * row, **inequalities(known), bounds=(0, None))
    assert found.status in (0, 3), found.message
    return np.inf if found.status == 3 else sign * found.fun


def inequalities(known):
    above, below = np.isfinite(known.high), np.isfinite(known.low)
    rows = np.vstack([known.rows[above], -known.rows[below]])
    return {"A_ub": rows, "b_ub": np.concatenate([known.high[above], -known.low[below]])}


def is_pinned(known, row):
    """Whether a count of 1 to 10 follows: the reader can exclude both that it is zero and that it is 11 or more."""
    most = bound(known, row, -1)
    if most >= MIN_CELL_SIZE:
        return most < MIN_CELL_SIZE + 1 and bound(known, row, -1, integral=True) < MIN_CELL_SIZE - 0.5
    return bound(known, row, 1, integral=True) > 0.5


def targets(atoms, rank, families):
    """Every count that a report is about: groups, facts and labels, and their intersections and differences."""
    groups = {"all": [], "none leads": [leads(None)]}
    for r in range(rank):
        groups[f"leads {r}"] = [leads(r)]
        groups[f"has {r}"] = [has(r)]
        groups[f"lacks {r}"] = [lambda row, r=r: r not in row["pattern"][1]]
        groups[f"has {r}, not leading"] = [has(r), lambda row, r=r: row["pattern"][0] != r]
        groups[f"not leading {r}"] = [lambda row, r=r: row["pattern"][0] != r]
    facts = {"": []}
    for variable, levels in {**families, "label": LABELS}.items():
        facts |= {f"{variable}={value}": [level(variable, value)] for value in levels}
    return {
        f"{group} {fact}": atoms.where(*one, *other)
        for (group, one), (fact, other) in itertools.product(groups.items(), facts.items())
    }


def other_values(atoms, atom, variable):
    """Atoms of a patient who differs in one variable; the true atom's neighbours come first."""
    row = atoms.rows[atom]
    same = [i for i, other in enumerate(atoms.rows) if other[variable] != row[variable]]
    return sorted(same, key=lambda i: sum(atoms.rows[i][name] != row[name] for name in row))


def could_be(before, after, atom):
    """Whether both reports allow that the patient who was added has this atom."""
    joint = Known(
        np.vstack([before.rows, after.rows]),
        np.concatenate([before.low, after.low - after.rows[:, atom]]),
        np.concatenate([before.high, after.high - after.rows[:, atom]]),
    )
    found = linprog(np.zeros(joint.rows.shape[1]), **inequalities(joint), bounds=(0, None))
    return found.status == 0
