"""M-splines at a patient's visits (Ramsay 1988): the functions of time that smooth courses are made of."""

from itertools import pairwise

import numpy as np
from scipy.interpolate import BSpline

from phenotaste.core.records import Array

NOTHING = 1e-10  # directions this short beside the longest are not in the space


def m_splines(times: Array, n_splines: int, degree: int) -> Array:
    """Visits × n_splines: M-splines with knots at quantiles of the times, so gaps between visits are felt.

    Splines that integrate to one: B-splines divided by their support's length over their order. Times of equal
    value (or one visit only) leave nothing to be smooth over: the only function is the constant.
    """
    first, last = times.min(), times.max()
    if not last > first:
        return np.ones((len(times), 1))
    unit = (times - first) / (last - first)
    order = degree + 1
    inner = np.quantile(unit, np.linspace(0, 1, n_splines - order + 2)[1:-1])
    knots = np.concatenate([np.zeros(order), inner, np.ones(order)])
    support = knots[order:] - knots[:-order]
    alive = support > 0  # quantiles that fall together may leave a spline without support
    values = BSpline.design_matrix(unit, knots, degree).toarray()
    return values[:, alive] * (order / support[alive])


def orthonormal(basis: Array) -> Array:
    """Orthonormal columns that span those of the basis."""
    left, singular, _ = np.linalg.svd(basis, full_matrices=False)
    return left[:, singular > NOTHING * singular.max(initial=0.0)]


def smooth_bases(times: Array, offsets: Array, n_splines: int, degree: int) -> Array:
    """Visits × n_splines: patient k's rows are an orthonormal basis of its spline space, padded with zero columns."""
    bases = np.zeros((int(offsets[-1]), n_splines))
    for first, last in pairwise(offsets.tolist()):
        if last > first:
            basis = orthonormal(m_splines(times[first:last], n_splines, degree))
            bases[first:last, : basis.shape[1]] = basis
    return bases
