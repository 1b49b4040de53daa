"""The paper's experiments on simulated and public data; each runs as `phenotaste study NAME`."""

from phenotaste.studies.run import run
from phenotaste.studies.study import NAMES, Options

__all__ = ["NAMES", "Options", "run"]
