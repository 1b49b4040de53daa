"""Patients with numbers for names, as OMOP and MEDS ask for, a model of them, and a review."""

import numpy as np

from phenotaste import TASTE, Cohort, simulate
from phenotaste.review import Review


def prepare(folder):
    made, _ = simulate.heart_failure(40, random_state=0)
    cohort = Cohort(
        made.visits,
        made.offsets,
        made.static,
        patient_ids=np.arange(40) + 100,
        visit_times=made.visit_times,
        feature_names=made.feature_names,
        static_names=made.static_names,
    )
    cohort.save(folder / "COHORT")
    model = TASTE(3, random_state=0, max_iter=5).fit(cohort)
    model.save(folder / "MODEL")
    Review.blank(model, names={1: "Heart failure"}).write(folder / "review.json")
