"""The paper's experiments and comparisons of all methods, on simulated and public data: `phenotaste study NAME`."""

from phenotaste.studies.run import run
from phenotaste.studies.study import NAMES, Options

__all__ = ["NAMES", "Options", "run"]
