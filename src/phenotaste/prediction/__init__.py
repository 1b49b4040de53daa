"""Predicting a label from phenotype scores: nested so that nothing of the test patients reaches what is learned."""

from phenotaste.prediction.evaluation import Progress, evaluate
from phenotaste.prediction.record import Evaluation

__all__ = ["Evaluation", "Progress", "evaluate"]
