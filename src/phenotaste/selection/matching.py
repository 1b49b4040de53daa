"""One-to-one matching of two sets of phenotypes, by their temporal definitions."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from phenotaste import metrics
from phenotaste.selection.files import Result

FOUND = 0.8  # the cosine from which a phenotype counts as found again


class Matched(NamedTuple):
    """For each phenotype of one set: its partner in the other, and how alike they are."""

    partner: np.ndarray
    V: np.ndarray  # cosines of the temporal definitions
    F: np.ndarray | None  # cosines of the partners' static definitions; None where there are none


def matched(mine: Result, theirs: Result) -> Matched:
    """The matching with the highest sum of cosines on V; F follows it, so that both speak of the same phenotype."""
    cosines = metrics.cosines(mine.V, theirs.V)
    rows, partner = linear_sum_assignment(-cosines)
    static = None
    if mine.F is not None and theirs.F is not None:
        static = metrics.cosines(mine.F, theirs.F)[rows, partner]
    return Matched(partner, cosines[rows, partner], static)
