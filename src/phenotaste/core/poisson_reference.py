"""Poisson factorisation of dense visits in plain numpy, written to be read: the oracle for `poisson`."""

import numpy as np

from phenotaste.core.poisson import SMALLEST_MEAN
from phenotaste.core.records import Array


def shares(X: Array, V: Array, S: Array) -> Array:
    """visits × features × phenotypes: how much of each count comes from each phenotype."""
    parts = S[:, None, :] * V[None, :, :]
    mean = parts.sum(axis=2, keepdims=True)
    return X[:, :, None] * np.divide(parts, mean, out=np.zeros_like(parts), where=mean > 0)


def regularised_step(
    X: Array, V: Array, S: Array, expected: Array, slope: Array, has_expected: Array, beta: float
) -> Array:
    """Minimise −c log s + s + slope·s + β(s − expected)² + β(s − S)², entry by entry."""
    c = shares(X, V, S).sum(axis=1)
    if beta == 0:
        return c
    A = 2 * beta * (1.0 + has_expected[:, None]) * np.ones_like(c)
    B = 1 + slope - 2 * beta * S - 2 * beta * expected * has_expected[:, None]
    return (-B + np.sqrt(B**2 + 4 * A * c)) / (2 * A)


def divergence(X: Array, V: Array, S: Array) -> Array:
    mean = np.maximum(S @ V.T, SMALLEST_MEAN)
    logs = np.where(X > 0, X * np.log(np.where(X > 0, X, 1.0) / mean), 0.0)
    return (logs - X).sum(axis=1) + S.sum(axis=1)
