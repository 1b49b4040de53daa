"""Choosing the model: how many phenotypes, which weights, and whether they would be found again."""

from phenotaste.selection.record import Selection
from phenotaste.selection.rules import RULES
from phenotaste.selection.search import select

__all__ = ["RULES", "Selection", "select"]
