"""The definitions as they may be shown: features that enough patients of the fit have; how alike they are."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.cohort.align import align, columns_of_fitted, patients_having
from phenotaste.disclosure import Gate, rounded
from phenotaste.errors import InputError
from phenotaste.metrics import cosines
from phenotaste.phenotypes import scaled
from phenotaste.report import names
from phenotaste.report.record import MapPoint, Mass, Similar, Weights

Matrix = NDArray[np.float64]
Counts = NDArray[np.int64]

SMALLEST_WEIGHT = 0.0005
WEIGHT_DIGITS = 4
MOST_SIMILAR = 3
NOT_SIMILAR = 0.05
WHERE = "definitions"


class Factor(NamedTuple):
    """Rows of V or of F that may be shown; `sources` are the model's rows that each one stands for."""

    names: list[str]
    weights: Matrix  # as in the paper's tables, shares of the largest entry of the whole matrix
    sources: list[list[int]]

    def of(self, phenotype: int) -> Weights:
        column = self.weights[:, phenotype]
        heaviest = np.argsort(-column, kind="stable")
        return [
            (int(j), rounded(float(column[j]), WEIGHT_DIGITS) or 0.0)
            for j in heaviest
            if column[j] > SMALLEST_WEIGHT
        ]

    def mass(self, phenotype: int) -> float:
        return rounded(float(self.weights[:, phenotype].sum()), WEIGHT_DIGITS) or 0.0


class Definitions(NamedTuple):
    temporal: Factor
    static: Factor

    def mass(self, phenotype: int) -> Mass:
        return Mass(self.temporal.mass(phenotype), self.static.mass(phenotype))


class Having(NamedTuple):
    """How many patients have each of the model's features, in its order."""

    temporal: Counts
    static: Counts


def having(model: Any, cohort: Cohort) -> Having:
    aligned = align(cohort, columns_of_fitted(model))
    return Having(*patients_having(aligned.shard, len(model.V_)))


def having_at_fit(model: Any, here: Having | None, gate: Gate) -> Having:
    """Of the patients of the fit; an older model does not know, and then those `here` must do."""
    temporal, static = getattr(model, "feature_patients_", None), getattr(model, "static_patients_", None)
    n_static = 0 if model.F_ is None else len(model.F_)
    if temporal is not None:
        return Having(temporal, np.zeros(n_static, np.int64) if static is None else static)
    if here is not None:
        return here
    if gate.trusted:
        return Having(np.zeros(len(model.V_), np.int64), np.zeros(n_static, np.int64))
    raise InputError(
        "This model does not say how many patients have each feature, so none can be shown: "
        "give the cohort it was fitted on, or fit it again with this version."
    )


def definitions(model: Any, at_fit: Having, gate: Gate) -> Definitions:
    base = getattr(model, "model", model)  # weights stay what they were before a review merged phenotypes
    temporal = factor(model.V_, base.V_, model.feature_names_in_, {}, at_fit.temporal, gate, "temporal")
    if model.F_ is None:
        return Definitions(temporal, Factor([], np.zeros((0, model.V_.shape[1])), []))
    old = {} if gate.trusted else names.old_ages(named(model.static_names_in_, len(model.F_)))
    static = factor(model.F_, base.F_, model.static_names_in_, old, at_fit.static, gate, "static")
    return Definitions(temporal, static)


def factor(
    matrix: Matrix,
    whole: Matrix,
    given: Any,
    merged: dict[str, list[int]],
    patients: Counts,
    gate: Gate,
    kind: str,
) -> Factor:
    """The rows that may be shown; rows in `merged` are added up under its names."""
    found, sources = merge(named(given, len(matrix)), merged)
    counts = np.array([patients[rows].sum() for rows in sources], np.int64)
    dated = np.array([names.has_date(name) for name in found], bool)
    shown = np.full(len(found), True) if gate.trusted else (counts >= gate.fewest) & ~dated
    if not gate.trusted:
        note_hidden(
            gate, kind, int(np.sum(counts < gate.fewest)), int(np.sum(dated & (counts >= gate.fewest)))
        )
        if merged:
            gate.note(WHERE, "ages", f"ages from {names.OLDEST} on are one band")
    kept = [rows for rows, show in zip(sources, shown, strict=True) if show]
    largest = max((float(whole[rows].sum(axis=0).max()) for rows in kept), default=0.0)
    columns = np.array([matrix[rows].sum(axis=0) for rows in kept]).reshape(len(kept), matrix.shape[1])
    return Factor(
        [name for name, show in zip(found, shown, strict=True) if show], scaled(columns, largest), kept
    )


def note_hidden(gate: Gate, kind: str, rare: int, dated: int) -> None:
    if rare:
        features = f"{rare:,} {kind} {'feature' if rare == 1 else 'features'}"
        gate.note(WHERE, features, f"fewer than {gate.fewest} patients of the fit have it")
    if dated:
        features = f"{dated:,} {kind} {'feature' if dated == 1 else 'features'}"
        gate.note(WHERE, features, "its name holds a date")


def named(given: Any, length: int) -> list[str]:
    """Names as texts; a feature without one is called by its position."""
    return [str(j) for j in range(length)] if given is None else [str(name) for name in given]


def merge(given: list[str], merged: dict[str, list[int]]) -> tuple[list[str], list[list[int]]]:
    """Names and rows after merging: a merged one stands where the first of its rows stood."""
    home = {row: (name, rows) for name, rows in merged.items() for row in rows}
    found, sources = [], []
    for row, name in enumerate(given):
        label, rows = home.get(row, (name, [row]))
        if row == rows[0]:
            found.append(label)
            sources.append(rows)
    return found, sources


def similar(temporal: Matrix, numbers: list[int]) -> list[list[Similar]]:
    """For each phenotype those whose temporal definitions are most like its own."""
    C = cosines(temporal, temporal)
    np.fill_diagonal(C, -1.0)
    nearest = np.argsort(-C, axis=1, kind="stable")[:, :MOST_SIMILAR]
    return [
        [Similar(numbers[s], rounded(float(C[r, s])) or 0.0) for s in row if C[r, s] >= NOT_SIMILAR]
        for r, row in enumerate(nearest)
    ]


def places(temporal: Matrix) -> Matrix:
    """Points between 0 and 1 whose distances are near to 1 − cosine: multidimensional scaling.

    The classical solution puts phenotypes that have nothing in common on top of each other, as it has two axes for
    all of them; moving on to least stress (SMACOF) spreads them.
    """
    C = cosines(temporal, temporal)
    np.fill_diagonal(C, 1.0)
    points = least_stress(1.0 - C, classical(1.0 - C))
    middle = (points.max(axis=0) + points.min(axis=0)) / 2
    span = float(np.ptp(points, axis=0).max())
    return 0.5 + (points - middle) / span if span > 0 else np.full(points.shape, 0.5)


def classical(distances: Matrix) -> Matrix:
    """The two axes on which points with these distances differ most."""
    n = len(distances)
    centre = np.eye(n) - 1.0 / n
    sizes, axes = np.linalg.eigh(-0.5 * centre @ distances**2 @ centre)
    points = np.zeros((n, 2))
    n_axes = min(2, n)
    points[:, :n_axes] = (axes * np.sqrt(np.maximum(sizes, 0.0)))[:, ::-1][:, :n_axes]
    heaviest = points[np.abs(points).argmax(axis=0), np.arange(2)]
    return points * np.where(heaviest < 0, -1.0, 1.0)  # an axis has no sign of its own


def least_stress(distances: Matrix, points: Matrix, iterations: int = 200) -> Matrix:
    """Guttman's transform, repeated; a small turn of each point first, as those in one place would stay there."""
    n = len(distances)
    angle = 2 * np.pi * np.arange(n) / n
    points = points + 1e-3 * np.column_stack([np.cos(angle), np.sin(angle)])
    for _ in range(iterations):
        gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
        ratio = np.divide(distances, gaps, out=np.zeros_like(gaps), where=gaps > 0)
        points = (np.diag(ratio.sum(axis=1)) - ratio) @ points / n
    return points


def phenotype_map(temporal: Matrix, sizes: list[float | None]) -> list[MapPoint]:
    return [
        MapPoint(rounded(float(x), 4) or 0.0, rounded(float(y), 4) or 0.0, size)
        for (x, y), size in zip(places(temporal), sizes, strict=True)
    ]
