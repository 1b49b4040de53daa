"""Cohorts: ragged sparse visits, static features and names, validated on construction."""

from phenotaste.cohort.cohort import Cohort, CohortSummary, PatientIndexError, check_cohort

__all__ = ["Cohort", "CohortSummary", "PatientIndexError", "check_cohort"]
