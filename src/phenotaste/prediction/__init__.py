"""Predicting a label from phenotype scores: nested so that nothing of the test patients reaches what is learned."""

from phenotaste.prediction.evaluation import Evaluation
from phenotaste.prediction.repeated_splits import Progress, evaluate

__all__ = ["Evaluation", "Progress", "evaluate"]
