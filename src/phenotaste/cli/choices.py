"""The words that options accept, kept here so that `--help` need not load the estimator."""

from enum import StrEnum


class WeightsChoice(StrEnum):
    RELATIVE = "relative"
    ABSOLUTE = "absolute"


class SolverChoice(StrEnum):
    CD = "cd"
    BPP = "bpp"


class InitChoice(StrEnum):
    NMF = "nmf"
    RANDOM = "random"
    UNIFORM = "uniform"


class DtypeChoice(StrEnum):
    FLOAT64 = "float64"
    FLOAT32 = "float32"
