"""Cohorts: ragged sparse visits, static features and names, checked on the way in."""

from phenotaste.cohort.cohort import Cohort, CohortSummary, PatientIndexError

__all__ = ["Cohort", "CohortSummary", "PatientIndexError"]
