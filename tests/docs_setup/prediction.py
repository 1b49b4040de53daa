"""A cohort whose labels follow from a code and a fact."""

from helpers.labelled import presence_effect


def prepare(folder):
    presence_effect(n_patients=200, n_features=12).save(folder / "COHORT")
