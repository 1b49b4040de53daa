"""Cohorts with a known truth: the paper's recovery study, its heart-failure phenotypes, and its CMS shape."""

from phenotaste.simulate._added import care_intensity, rare_phenotype
from phenotaste.simulate._common import Truth
from phenotaste.simulate._ehr import ehr
from phenotaste.simulate._heart_failure import heart_failure
from phenotaste.simulate._recovery import recovery

__all__ = ["Truth", "care_intensity", "ehr", "heart_failure", "rare_phenotype", "recovery"]
