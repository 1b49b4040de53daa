"""The cohorts that times are taken on: of the shape of the paper's two, at any size, and DE-SynPUF itself."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phenotaste import simulate
from phenotaste.cohort import Cohort


class Shape(NamedTuple):
    """A row of the paper's table of data sets."""

    patients: int
    features: int
    visits: int  # a patient's, on average
    static: int


SHAPES = {"Sutter": Shape(59_480, 1164, 29, 22), "CMS": Shape(151_349, 284, 50, 30)}
SYNPUF = "DE-SynPUF"
PHENOTYPES = 10  # planted


@lru_cache(maxsize=1)  # cells of one cohort follow each other
def shaped(name: str, patients: int, seed: int) -> Cohort:
    shape = SHAPES[name]
    return simulate.ehr(
        patients,
        n_features=shape.features,
        n_static=shape.static,
        mean_visits=shape.visits,
        rank=PHENOTYPES,
        random_state=seed,
    )[0]


def repeated(name: str, patients: int, drawn: int, seed: int) -> Cohort:
    """The same patients again and again, which no patient's step can notice, where drawing more would take long."""
    once = shaped(name, min(patients, drawn), seed)
    return once if patients <= drawn else once[np.arange(patients) % drawn]


@lru_cache(maxsize=1)
def synpuf(folder: str, patients: int, seed: int) -> Cohort:
    """So many of DE-SynPUF's patients, drawn at random, or all where there are fewer."""
    everybody = claims(folder)
    if len(everybody) <= patients:
        return everybody
    drawn = np.random.default_rng(seed).choice(len(everybody), patients, replace=False)
    return everybody[np.sort(drawn)]


@lru_cache(maxsize=1)
def claims(folder: str) -> Cohort:
    """As the paper has it: diagnoses as CCS categories, a day a visit, at least five visits."""
    from phenotaste import build
    from phenotaste.build.settings import source_defaults
    from phenotaste.sources import synpuf as source
    from phenotaste.sources.workspace import Workspace, translate_errors

    settings = replace(source_defaults("synpuf"), min_visits=5, min_patients=5)
    with translate_errors(folder), Workspace() as workspace:
        return build.cohort(workspace, source.read(workspace, Path(folder)), settings).cohort
