"""From a clinician's verdicts on the report page back to names, merges and rejections in scores and tables."""

from phenotaste.review.applied import Reviewed
from phenotaste.review.comparison import Comparison, compare
from phenotaste.review.record import Decision, Group, Review, fingerprint

__all__ = ["Comparison", "Decision", "Group", "Review", "Reviewed", "compare", "fingerprint"]
