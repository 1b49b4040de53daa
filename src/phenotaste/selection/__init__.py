"""Choosing the model: how many phenotypes, which weights, and whether they would be found again."""

from phenotaste.selection.rules import RULES
from phenotaste.selection.search import select
from phenotaste.selection.selection import Selection

__all__ = ["RULES", "Selection", "select"]
