"""Background of a refitted model: phenotypes that a review rejected. They take part in the fit, and are not shown.

What they explain would otherwise come back under another name. V_, F_, H_, W_ and U_ of a model are those of the
phenotypes that are shown; a fit, a projection and its losses are of all columns, which keep their order.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.records import Array, Model

DEFINITIONS, PATIENTS = ("H", "columns", "V", "F", "mean_scores"), ("W", "U")

ROWS_PER_BLOCK = 2**16


class Background(NamedTuple):
    """What a model has of the phenotypes that it does not show; B of them, and T with those that are shown."""

    H: Array  # T × T: of all phenotypes
    columns: Array  # B: their places among all columns, ascending
    V: Array  # J × B
    F: Array  # P × B
    mean_scores: Array  # B
    W: Array | None = None  # patients × B, unless the model was saved without its patients
    U: Array | None = None  # visits × B

    @property
    def size(self) -> int:
        return int(self.V.shape[1])

    @property
    def shown(self) -> Array:
        """The places of the phenotypes that are shown."""
        return np.setdiff1d(np.arange(len(self.H)), self.columns)

    def joined(self, hidden: Array, shown: Array) -> Array:
        """All columns of a matrix, or all entries of a vector, from those of the background and those shown."""
        whole = np.empty((*shown.shape[:-1], len(self.H)), shown.dtype)
        whole[..., self.columns], whole[..., self.shown] = hidden, shown
        return whole

    def arrays(self, names: tuple[str, ...]) -> dict[str, Array]:
        """Some of the arrays by name, as files hold them."""
        return {f"background_{name}": getattr(self, name) for name in names}

    @classmethod
    def of_arrays(cls, files: Mapping[str, Mapping[str, Array]]) -> "Background | None":
        """The background in the files of a model, if it has one."""
        if "background" not in files:
            return None
        found = {name: files["background"][f"background_{name}"] for name in DEFINITIONS}
        patients = files.get("patients", {})
        found |= {name: patients[f"background_{name}"] for name in PATIENTS if "patients" in files}
        return cls(**found)

    def check(self, n_features: int, n_static: int, rank: int) -> None:
        """Raise ValueError for shapes or values that no fit produces."""
        total, columns = rank + self.size, self.columns
        if columns.dtype != np.int64 or len(self.shown) != rank or (np.diff(columns) <= 0).any():
            raise ValueError("columns")
        expected = [(total, total), (n_features, self.size), (n_static, self.size), (self.size,)]
        arrays = (self.H, self.V, self.F, self.mean_scores)
        if [array.shape for array in arrays] != expected:
            raise ValueError("shapes")
        if any(array.dtype != np.float64 or not np.isfinite(array).all() for array in arrays):
            raise ValueError("values")
        if min(self.V.min(initial=0.0), self.F.min(initial=0.0)) < 0:
            raise ValueError("signs")


def all_definitions(model: Any) -> Model:
    """H, V and F of all columns of a fitted model."""
    background: Background | None = getattr(model, "background_", None)
    F = np.zeros((0, model.V_.shape[1])) if model.F_ is None else model.F_
    if background is None:
        return Model(model.H_, model.V_, F)
    return Model(background.H, background.joined(background.V, model.V_), background.joined(background.F, F))


def all_mean_scores(model: Any) -> Any:
    """The mean scores of all columns."""
    background: Background | None = getattr(model, "background_", None)
    if background is None:
        return model.mean_scores_
    return background.joined(background.mean_scores, model.mean_scores_)


def all_patients(model: Any) -> tuple[Array, Array]:
    """W and U of all columns, of the patients that a model was fitted on."""
    background: Background | None = getattr(model, "background_", None)
    if background is None or background.W is None or background.U is None:
        return model.W_, model.U_
    return background.joined(background.W, model.W_), background.joined(background.U, model.U_)


def shown_H(H: Array, shown: Array) -> Array:
    """A square matrix with the cross product of the columns of H that are shown."""
    return H if len(shown) == len(H) else np.asarray(np.linalg.qr(H[:, shown], mode="r"))


def select_columns(array: Array, columns: Array, allocate: Callable[[tuple[int, ...], Any], Array]) -> Array:
    """A copy of some columns of a long array, which may lie in a file, made in blocks."""
    copied = allocate((len(array), len(columns)), array.dtype)
    for first in range(0, len(array), ROWS_PER_BLOCK):
        copied[first : first + ROWS_PER_BLOCK] = array[first : first + ROWS_PER_BLOCK][:, columns]
    return copied
