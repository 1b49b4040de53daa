"""The paper's experiments, one question a file: each runs as `phenotaste study NAME`, on data anyone can have."""

from phenotaste.studies.run import run
from phenotaste.studies.study import NAMES, Options

__all__ = ["NAMES", "Options", "run"]
