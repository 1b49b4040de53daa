"""Conversion to and from the formats of other packages: ehrdata, anndata, MEDS labels, OMOP cohort tables."""

from phenotaste.ecosystem.anndata import from_anndata, to_anndata, write_anndata
from phenotaste.ecosystem.ehrdata import from_ehrdata
from phenotaste.ecosystem.exports import write_meds_labels, write_omop_cohort
from phenotaste.ecosystem.membership import Rule

__all__ = [
    "Rule",
    "from_anndata",
    "from_ehrdata",
    "to_anndata",
    "write_anndata",
    "write_meds_labels",
    "write_omop_cohort",
]
