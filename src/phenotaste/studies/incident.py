"""Incident heart failure on DE-SynPUF: who has CCS 108 for the first time, told from the year before."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.errors import InputError

OUTCOME = "CCS:108"  # congestive heart failure, non-hypertensive
FLAG = "sp_chf"  # CMS's own flag for heart failure, derived from the same claims
WINDOW_MONTHS, GAP_MONTHS, CONTROLS = 12, 1, 9
MIN_VISITS, MIN_PATIENTS = 2, 5


def incident_heart_failure(folder: str) -> Cohort:
    """Cases with their first CCS 108, and controls of the same sex and age seen at the time; neither CCS 108 nor SP_CHF
    is among the features. The other chronic-condition flags are those of the year before the window ends."""
    from phenotaste import build
    from phenotaste.build.settings import Index, Match, source_defaults
    from phenotaste.sources import synpuf
    from phenotaste.sources.workspace import Workspace, translate_errors

    settings = replace(
        source_defaults("synpuf"),
        min_visits=MIN_VISITS,
        min_patients=MIN_PATIENTS,
        index=Index((OUTCOME,), window_months=WINDOW_MONTHS, gap_months=GAP_MONTHS),
        match=Match(CONTROLS, same=("sex",)),
    )
    with translate_errors(folder), Workspace() as workspace:
        cohort = build.cohort(workspace, synpuf.read(workspace, Path(folder)), settings).cohort
    return without_outcome(cohort)


def without_outcome(cohort: Cohort) -> Cohort:
    """Windows end before the first CCS 108, so that it should not occur at all: make sure of it, and drop the flag."""
    names, static_names = cohort.feature_names, cohort.static_names
    if names is None or static_names is None or cohort.static is None:
        raise InputError("The DE-SynPUF cohort has no names or no static features: check the folder.")
    features = np.array([OUTCOME.split(":")[1] not in codes_in(str(name)) for name in names])
    facts = np.array([not str(name).startswith(FLAG) for name in static_names])
    return Cohort(
        cohort.visits[:, features],
        cohort.offsets,
        cohort.static[:, facts],
        patient_ids=cohort.patient_ids,
        visit_times=cohort.visit_times,
        feature_names=names[features],
        static_names=static_names[facts],
        labels=cohort.labels,
    )


def codes_in(name: str) -> set[str]:
    """Numbers in a feature's name: CCS categories are named "… [108.]"."""
    return {part for part in "".join(c if c.isdigit() else " " for c in name).split() if part}
