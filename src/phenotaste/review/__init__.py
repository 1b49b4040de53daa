"""Reviews of phenotypes by clinicians: read and compare them, and apply their names, merges and rejections."""

from phenotaste.review.comparison import Comparison, compare
from phenotaste.review.decisions import Decision, Group, Provenance, Review, fingerprint
from phenotaste.review.reviewed import Reviewed

__all__ = ["Comparison", "Decision", "Group", "Provenance", "Review", "Reviewed", "compare", "fingerprint"]
