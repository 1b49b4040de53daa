"""Prediction of a label from phenotype scores, evaluated by nested splits that keep test patients out of training."""

from phenotaste.prediction.evaluation import Evaluation
from phenotaste.prediction.repeated_splits import evaluate
from phenotaste.runs.progress import Progress

__all__ = ["Evaluation", "Progress", "evaluate"]
