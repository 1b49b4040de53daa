"""Model selection: number of phenotypes, weights, and the reproducibility of each phenotype."""

from phenotaste.selection.rules import RULES
from phenotaste.selection.search import select
from phenotaste.selection.selection import Selection

__all__ = ["RULES", "Selection", "select"]
