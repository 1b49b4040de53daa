"""The columns that a site may disclose, and the merged columns of all sites."""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.cohort.align import Aligned, align, columns_of, move_columns, patients_having, shard_of
from phenotaste.core.kernels.driver import patient_sizes
from phenotaste.core.records import Array
from phenotaste.disclosure import Gate
from phenotaste.errors import InputError
from phenotaste.factorization import influence_of

MIN_OVERLAP = 0.5  # fraction of a site's features that other sites must have too


class ColumnNames(NamedTuple):
    """Names of the model's columns; `static` is empty where no site has static features."""

    features: list[str]
    static: list[str]


def check_cohort(cohort: Cohort) -> None:
    """Refuse cohorts without names, by which sites are matched, and cohorts with negative entries."""
    if cohort.feature_names is None or (cohort.static is not None and cohort.static_names is None):
        raise InputError(
            "The cohort's features have no names, so that they cannot be matched between sites: build it with "
            "feature_names and static_names."
        )
    if cohort.allow_negative:
        raise InputError(
            "The cohort has negative entries: a federated fit takes counts and other non-negative values only."
        )


def disclosable(cohort: Cohort, min_cell_size: int) -> tuple[Array, Array]:
    """Masks of the temporal and static columns that at least `min_cell_size` patients have."""
    temporal = frequent_features(cohort, min_cell_size)
    return temporal, disclosable_static(cohort, temporal, Gate(min_cell_size))


def frequent_features(cohort: Cohort, min_cell_size: int) -> Array:
    """The mask of the temporal columns that at least `min_cell_size` patients have."""
    having, _ = patients_having(align(cohort, columns_of(cohort)).shard, cohort.n_features)
    return np.asarray(having >= min_cell_size)


def disclosable_static(cohort: Cohort, temporal: Array, gate: Gate) -> Array:
    """The mask of static columns, counted over patients with a history in these temporal ones: no others take part.

    Static columns are parts of a total: the levels of a variable ("sex=female", "sex=male"), or having a feature and
    not having it. Where a suppressed part could be computed by subtraction, the next larger one is suppressed too.
    """
    if cohort.static is None:
        return np.zeros(0, bool)
    entries = np.concatenate([[0], np.cumsum(temporal[cohort.visits.indices])])
    static = cohort.static[np.diff(entries[cohort.visits.indptr[cohort.offsets]]) > 0]
    having = np.count_nonzero(static, axis=0)
    mask = having > 0
    variables: dict[str, list[int]] = {}
    for p, name in enumerate(cohort.static_names.tolist()):  # type: ignore[union-attr]
        variables.setdefault(name.partition("=")[0] if "=" in name else f"={name}", []).append(p)
    for levels in variables.values():
        values = static[:, levels]
        if np.isin(values, (0, 1)).all() and (values.sum(axis=1) <= 1).all():
            rest = len(static) - int(values.sum())
            counts = gate.parts("static", "", [*having[levels].tolist(), rest])
            mask[levels] &= [count is not None for count in counts[:-1]]
        else:  # continuous values and overlapping levels do not add up to a known total
            mask[levels] &= having[levels] >= gate.min_cell_size
    return mask


def disclosable_names(cohort: Cohort, min_cell_size: int) -> ColumnNames:
    """The column names that a site may send."""
    temporal, static = disclosable(cohort, min_cell_size)
    static_names = cohort.static_names if cohort.static_names is not None else np.array([], str)
    assert cohort.feature_names is not None
    return ColumnNames(cohort.feature_names[temporal].tolist(), static_names[static].tolist())


def site_data(cohort: Cohort, columns: ColumnNames, min_cell_size: int) -> Aligned:
    """The site's patients in the model's columns; columns of few patients are removed first, so they are zero.

    Its `unknown_features` are those that may be disclosed but are not among the model's.
    """
    assert cohort.feature_names is not None
    frequent = frequent_features(cohort, min_cell_size)
    target = _column_indices(cohort.feature_names, columns.features)
    temporal = frequent & (target >= 0)
    visits = move_columns(cohort.visits, np.where(temporal, target, -1), len(columns.features))
    A = np.zeros((len(cohort), len(columns.static)))
    if cohort.static is not None and columns.static:
        own = _column_indices(cohort.static_names, columns.static)  # type: ignore[arg-type]
        keep = disclosable_static(cohort, temporal, Gate(min_cell_size)) & (own >= 0)
        A[:, own[keep]] = cohort.static[:, keep]
    shard = shard_of(visits, cohort.offsets, A)
    n_unknown, n_own = int(np.sum(frequent & (target < 0))), int(temporal.sum())
    return Aligned(shard, patient_sizes(shard), n_unknown, len(columns.features) - n_own)


def static_totals(data: Aligned, balance: float) -> Array:
    """Σp and Σp‖a‖², from which λ̃ follows."""
    influence, static = influence_of(balance, data), data.shard.static
    return np.array([influence.sum(), influence @ np.einsum("kp,kp->k", static, static)])


def static_weight(lam: float, influence: float, static_size: float) -> float:
    """λ̃ from Σp and Σp‖a‖² over all sites."""
    weight = lam * influence / static_size if static_size > 0 else 0.0
    return weight if math.isfinite(weight) else 0.0


def _column_indices(names: Array, columns: Sequence[str]) -> Array:
    """The index of each name among the model's columns, -1 where it is none of them."""
    index = {name: j for j, name in enumerate(columns)}
    return np.array([index.get(name, -1) for name in names.tolist()], dtype=np.int64)


def merge_columns(sites: dict[str, ColumnNames]) -> ColumnNames:
    """The union of the sites' columns, after checking that they use the same coding."""
    for kind, lists in (
        ("temporal", {site: names.features for site, names in sites.items()}),
        ("static", {site: names.static for site, names in sites.items()}),
    ):
        check_overlap(kind, lists)
        warn_similar_names(kind, lists)
    return ColumnNames(
        _merge_names([names.features for names in sites.values()]),
        _merge_names([names.static for names in sites.values()]),
    )


def _merge_names(lists: list[list[str]]) -> list[str]:
    """In the common order where all lists are equal, sorted otherwise: independent of the order of the sites."""
    return lists[0] if all(names == lists[0] for names in lists) else sorted(set().union(*lists))


def check_overlap(kind: str, lists: dict[str, list[str]]) -> None:
    """Refuse a site that shares few columns with the others: it groups codes in another way."""
    if len(lists) < 2:
        return
    for site, names in lists.items():
        if not names and any(lists.values()):
            raise InputError(
                f"{site} has no {kind} features that it may disclose and other sites have some: build its cohort with "
                "them, or exclude it (--exclude)."
            )
    for site, names in lists.items():
        others = set().union(*(other_names for other, other_names in lists.items() if other != site))
        shared = len(others & set(names))
        if names and shared < MIN_OVERLAP * len(names):
            raise InputError(
                f"{site} has {len(names):,} {kind} features, of which other sites have only {shared:,}: build all "
                "cohorts with the same code groups, or exclude it (--exclude)."
            )


def warn_similar_names(kind: str, lists: dict[str, list[str]]) -> None:
    """Warn of names that differ only by case or blanks: most likely two spellings of one code."""
    spellings: dict[str, set[str]] = {}
    for name in set().union(*lists.values()):
        spellings.setdefault("".join(name.casefold().split()), set()).add(name)
    several = sorted(min(names) for names in spellings.values() if len(names) > 1)
    if several:
        examples = ", ".join(repr(name) for name in several[:3])
        warnings.warn(
            f"{len(several)} {kind} features have several spellings that differ only by case or blanks "
            f"(such as {examples}): they are treated as different features.",
            stacklevel=2,
        )
