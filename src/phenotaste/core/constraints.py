"""Columns of V and F that the model step may not choose freely: fixed ones, and ones that stay in a convex cone.

Given the patients and all other columns, the objective of one column v is ½g‖v − b/g‖² up to a constant. Its minimiser
in a convex cone is therefore the point of the cone nearest to b/g, and no update can raise the objective. Cones do not
limit the norm of a column: scaling it to unit norm keeps it in its cone.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from phenotaste.core.records import Array, Model

BISECTIONS = 80


class Near(NamedTuple):
    """Columns whose cosine with `axis`, a non-negative column that is not zero, is at least `cosine` > 0."""

    axis: Array
    cosine: float

    def nearest(self, y: Array) -> Array:
        # v = 0, or v is in the direction of max(y + νa, 0) with the smallest ν ≥ 0 that reaches the cosine.
        a = self.axis / np.linalg.norm(self.axis)
        size = np.abs(y).max(initial=0.0)
        if size == 0.0:
            return np.zeros_like(y)
        z = y / size

        def direction(nu: float) -> Array:
            v = np.maximum(z + nu * a, 0.0)
            norm = np.linalg.norm(v)
            return v / norm if norm > 0 else v

        nu = smallest(lambda nu: bool(a @ direction(nu) >= self.cosine))
        u = direction(nu)
        return np.asarray(max(float(y @ u), 0.0) * u)


class Within(NamedTuple):
    """Columns that are zero outside of the rows of a mask."""

    rows: Array

    def nearest(self, y: Array) -> Array:
        return np.where(self.rows, np.maximum(y, 0.0), 0.0)


Cone = Near | Within


class Constraints(NamedTuple):
    """What the model step must keep; by default nothing.

    Fixed columns of V and F keep the values of the model that a fit starts from, to the bit.
    """

    fixed: tuple[int, ...] = ()
    V: tuple[tuple[int, Cone], ...] = ()  # columns of V, each with its cone
    F: tuple[tuple[int, Cone], ...] = ()

    def free(self, rank: int, cones: tuple[tuple[int, Cone], ...]) -> Array:
        """A mask of the columns of a factor without any constraint; `cones` are those of the factor."""
        mask = np.ones(rank, bool)
        mask[list(self.fixed)] = False
        mask[[r for r, _ in cones]] = False
        return mask


NO_CONSTRAINTS = Constraints()


class Given(NamedTuple):
    """The columns that a fit begins with, before those that it finds anew."""

    model: Model
    constraints: Constraints = NO_CONSTRAINTS
    background: tuple[int, ...] = ()  # columns that take part in the fit and are not shown

    @property
    def rank(self) -> int:
        return int(self.model.V.shape[1])

    @property
    def all_fixed(self) -> bool:
        return len(self.constraints.fixed) == self.rank

    def digest(self) -> str:
        """SHA-256 of all of it: a checkpoint of a fit with other columns is refused."""
        digest = hashlib.sha256(repr((self.constraints.fixed, self.background)).encode())
        cones = [(r, *cone) for r, cone in (*self.constraints.V, *self.constraints.F)]
        for part in (*self.model, *(part for cone in cones for part in cone)):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


def smallest(holds: Callable[[float], bool]) -> float:
    """The smallest ν ≥ 0 from which a monotone condition holds, from above, so that it holds for the result."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not holds(high) and high < 1e15:  # beyond, y is negligible beside νa
        low, high = high, 4 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def solve_in_cones(gram: Array, right: Array, factor: Array, cones: tuple[tuple[int, Cone], ...]) -> Array:
    """Each column that has a cone in turn, the others given; one that would vanish or not improve stays."""
    factor = factor.copy()
    for r, cone in cones:
        g = gram[r, r]
        if g <= 0.0:
            continue
        old = factor[:, r]
        b = right[:, r] - factor @ gram[:, r] + g * old
        new = cone.nearest(b / g)
        if new.any() and np.sum((new - b / g) ** 2) <= np.sum((old - b / g) ** 2):
            factor[:, r] = new
    return factor


def keep_fixed(model: Model, before: Model, fixed: tuple[int, ...]) -> Model:
    """The model with the fixed columns of V and F of another one."""
    if not fixed:
        return model
    V, F, columns = model.V.copy(), model.F.copy(), list(fixed)
    V[:, columns], F[:, columns] = before.V[:, columns], before.F[:, columns]
    return Model(model.H, V, F)
