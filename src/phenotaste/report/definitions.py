"""The definitions as they may be shown: features that enough patients of the fit have, and their similarity."""

from typing import Any, NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.cohort.align import align, columns_of, columns_of_fitted, patients_having
from phenotaste.disclosure import MIN_CELL_SIZE, Gate, rounded, rounding_key
from phenotaste.errors import InputError
from phenotaste.metrics import cosines
from phenotaste.patients import Integers, Matrix
from phenotaste.phenotypes import scaled
from phenotaste.report import names
from phenotaste.report.schema import MapPoint, Mass, Similar, Weights

MIN_WEIGHT = 0.0005
WEIGHT_DIGITS = 4
MAX_SIMILAR = 3
MIN_SIMILARITY = 0.05
WHERE = "definitions"


class Factor(NamedTuple):
    """Rows of V or F that may be shown; row i sums the model's rows `sources[i]`."""

    names: list[str]
    weights: Matrix  # as in the paper's tables, relative to the largest entry of the matrix
    sources: list[list[int]]

    def column(self, phenotype: int) -> Weights:
        """The features of a phenotype with their weights, largest first."""
        column = self.weights[:, phenotype]
        return [
            (int(j), rounded(float(column[j]), WEIGHT_DIGITS) or 0.0)
            for j in np.argsort(-column, kind="stable")
            if column[j] > MIN_WEIGHT
        ]

    def mass(self, phenotype: int) -> float:
        return rounded(float(self.weights[:, phenotype].sum()), WEIGHT_DIGITS) or 0.0


class PhenotypeDefinitions(NamedTuple):
    temporal: Factor
    static: Factor

    def mass(self, phenotype: int) -> Mass:
        return Mass(self.temporal.mass(phenotype), self.static.mass(phenotype))


class FeatureCounts(NamedTuple):
    """The number of patients that have each of the model's features, in its order."""

    temporal: Integers
    static: Integers


class Rates(NamedTuple):
    """Rates of the static features that may be shown, in the patients of the fit; None where they are withheld."""

    cohort: list[float | None]
    phenotypes: list[list[float | None]]  # for each phenotype, among the patients who have it
    numeric: list[bool]  # means of values other than 0 and 1


def shown_rates(model: Any, static: Factor, gate: Gate) -> Rates:
    """The rates that the model was saved with, summed for merged levels; they passed the gate at the fit."""
    cohort, having = getattr(model, "static_rates_", None), getattr(model, "phenotype_rates_", None)
    R, n = model.V_.shape[1], len(static.names)
    if cohort is None or having is None or gate.min_cell_size > MIN_CELL_SIZE:
        return Rates([None] * n, [[None] * n] * R, [False] * n)
    numeric = getattr(model, "static_numeric_", None)
    numeric = np.zeros(len(cohort)) if numeric is None else numeric
    return Rates(
        [rounded(float(cohort[rows].sum())) for rows in static.sources],
        [[rounded(float(having[rows, r].sum())) for rows in static.sources] for r in range(R)],
        [bool(numeric[rows].any()) for rows in static.sources],
    )


def count_features(model: Any, cohort: Cohort) -> tuple[FeatureCounts, str]:
    """Count the patients that have each feature, and return the key by which numbers of the cohort are rounded.

    A method that does not use static features has them in the key of its fit, too: with another key the same patients
    would be rounded twice.
    """
    columns = columns_of_fitted(model)
    if model.F_ is None:
        own = columns_of(cohort)
        columns = columns._replace(n_static=own.n_static, static_names=own.static_names)
    shard = align(cohort, columns).shard
    counts = FeatureCounts(*patients_having(shard, len(model.V_)))
    return counts, rounding_key(shard.offsets, shard.static, counts.temporal, cohort.labels)


def feature_counts_at_fit(model: Any, in_cohort: FeatureCounts | None, gate: Gate) -> FeatureCounts:
    """Counts over the patients of the fit; `in_cohort` replaces them for a model that was saved without."""
    temporal, static = getattr(model, "feature_patients_", None), getattr(model, "static_patients_", None)
    n_static = 0 if model.F_ is None else len(model.F_)
    if temporal is not None:
        return FeatureCounts(temporal, np.zeros(n_static, np.int64) if static is None else static)
    if in_cohort is not None:
        return in_cohort
    if gate.trusted:
        return FeatureCounts(np.zeros(len(model.V_), np.int64), np.zeros(n_static, np.int64))
    raise InputError(
        "This model does not record how many patients have each feature, so none can be shown: "
        "give the cohort it was fitted on, or fit it again with this version."
    )


def definitions(model: Any, counts: FeatureCounts, gate: Gate) -> PhenotypeDefinitions:
    base = getattr(
        model, "model", model
    )  # a review that merges phenotypes leaves the other weights unchanged
    static_names = [] if model.F_ is None else feature_names(model.static_names_in_, len(model.F_))
    merged = {} if gate.trusted else names.old_ages(static_names)
    static = Factor([], np.zeros((0, model.V_.shape[1])), [])
    temporal_names = feature_names(model.feature_names_in_, len(model.V_))
    temporal = select_rows(model.V_, base.V_, Rows("temporal", temporal_names, counts.temporal, {}), gate)
    if model.F_ is not None:
        static = select_rows(model.F_, base.F_, Rows("static", static_names, counts.static, merged), gate)
    return PhenotypeDefinitions(temporal, static)


class Rows(NamedTuple):
    """What is known of the rows of a factor."""

    kind: str
    names: list[str]
    patients: Integers  # that have each feature
    merged: dict[str, list[int]]  # rows to sum, by their common name


def select_rows(matrix: Matrix, unreviewed: Matrix, rows: Rows, gate: Gate) -> Factor:
    """Keep the rows that may be shown; weights are relative to the largest entry of the unreviewed matrix."""
    merged_names, sources = merge_rows(rows.names, rows.merged)
    counts = np.array([rows.patients[source].sum() for source in sources], np.int64)
    dated = np.array([names.has_date(name) for name in merged_names], bool)
    rare = np.array(
        [
            gate.count(f"{rows.kind} {name}", int(n)) is None
            for name, n in zip(merged_names, counts, strict=True)
        ],
        bool,
    )
    if not gate.trusted:
        note_hidden(gate, f"{rows.kind} feature", rare, dated)
        if rows.merged:
            gate.note(WHERE, "ages", f"ages from {names.OLDEST} on are one band")
    shown = np.full(len(merged_names), True) if gate.trusted else ~rare & ~dated
    kept = [source for source, show in zip(sources, shown, strict=True) if show]
    largest = max((float(unreviewed[source].sum(axis=0).max()) for source in kept), default=0.0)
    columns = np.array([matrix[source].sum(axis=0) for source in kept]).reshape(len(kept), matrix.shape[1])
    kept_names = [name for name, show in zip(merged_names, shown, strict=True) if show]
    return Factor(kept_names, scaled(columns, largest), kept)


def note_hidden(gate: Gate, noun: str, rare: np.ndarray, dated: np.ndarray) -> None:
    reasons = (
        (int(rare.sum()), f"fewer than {gate.min_shown} patients of the fit have it, after rounding"),
        (int((dated & ~rare).sum()), "its name holds a date"),
    )
    for count, reason in reasons:
        if count:
            gate.note(WHERE, f"{count:,} {noun}{'' if count == 1 else 's'}", reason)


def feature_names(given: Any, length: int) -> list[str]:
    """Names as strings; features without names are called by their positions."""
    return [str(j) for j in range(length)] if given is None else [str(name) for name in given]


def merge_rows(given: list[str], merged: dict[str, list[int]]) -> tuple[list[str], list[list[int]]]:
    """Return names and source rows after merging; a merged row takes the position of its first source."""
    group_of = {row: (name, rows) for name, rows in merged.items() for row in rows}
    result, sources = [], []
    for row, name in enumerate(given):
        label, rows = group_of.get(row, (name, [row]))
        if row == rows[0]:
            result.append(label)
            sources.append(rows)
    return result, sources


def most_similar(temporal: Matrix, numbers: list[int]) -> list[list[Similar]]:
    """For each phenotype those with the most similar temporal definitions."""
    C = cosines(temporal, temporal)
    np.fill_diagonal(C, -1.0)
    nearest = np.argsort(-C, axis=1, kind="stable")[:, :MAX_SIMILAR]
    return [
        [Similar(numbers[s], rounded(float(C[r, s])) or 0.0) for s in row if C[r, s] >= MIN_SIMILARITY]
        for r, row in enumerate(nearest)
    ]


def map_positions(temporal: Matrix) -> Matrix:
    """Points in the unit square whose distances approximate 1 − cosine, by multidimensional scaling.

    The classical solution has only two axes and puts phenotypes that have nothing in common on top of each other;
    minimising the stress from there (SMACOF) spreads them.
    """
    C = cosines(temporal, temporal)
    np.fill_diagonal(C, 1.0)
    points = minimise_stress(1.0 - C, classical_scaling(1.0 - C))
    centre = (points.max(axis=0) + points.min(axis=0)) / 2
    span = float(np.ptp(points, axis=0).max())
    return 0.5 + (points - centre) / span if span > 0 else np.full(points.shape, 0.5)


def classical_scaling(distances: Matrix) -> Matrix:
    n = len(distances)
    centering = np.eye(n) - 1.0 / n
    eigenvalues, axes = np.linalg.eigh(-0.5 * centering @ distances**2 @ centering)
    points = np.zeros((n, 2))
    n_axes = min(2, n)
    points[:, :n_axes] = (axes * np.sqrt(np.maximum(eigenvalues, 0.0)))[:, ::-1][:, :n_axes]
    largest = points[np.abs(points).argmax(axis=0), np.arange(2)]
    return points * np.where(largest < 0, -1.0, 1.0)  # eigenvectors have no sign of their own


def minimise_stress(distances: Matrix, points: Matrix, iterations: int = 200) -> Matrix:
    """Repeat the Guttman transform, after a small displacement that separates coinciding points."""
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
        for (x, y), size in zip(map_positions(temporal), sizes, strict=True)
    ]
