"""Several methods on the same patients: replication, prediction, error, time, and each other's phenotypes."""

from phenotaste.comparison.comparison import Comparison
from phenotaste.comparison.methods import METHODS
from phenotaste.comparison.run import compare

__all__ = ["METHODS", "Comparison", "compare"]
