"""Which columns a site may speak of, and the dictionary that all sites' columns become."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.cohort.align import align, columns_of, move_columns, patients_having, shard_of
from phenotaste.core.kernels.driver import patient_norms
from phenotaste.core.records import Array, Shard
from phenotaste.disclosure import Gate
from phenotaste.errors import InputError

LEAST_SHARED = 0.5  # of a site's features, that other sites must have too


class Dictionary(NamedTuple):
    """The columns of the model, by code: `static` is empty where nobody has static facts."""

    features: list[str]
    static: list[str]


class Data(NamedTuple):
    """A site's patients in the columns of the dictionary; what is hidden there is zero from the outset."""

    shard: Shard
    norms: Array  # ‖X_k‖² of every patient
    unknown: int  # columns of the site that may be shown and that the dictionary lacks, left out

    @property
    def sizes(self) -> tuple[float, float]:
        """‖X‖² and ‖A‖²."""
        return float(self.norms.sum()), float(np.sum(self.shard.static**2))


def need_names(cohort: Cohort) -> None:
    """Sites match by name; unnamed or negative data cannot take part."""
    if cohort.feature_names is None or (cohort.static is not None and cohort.static_names is None):
        raise InputError(
            "The cohort's features have no names, so that they cannot be matched between sites: build it with "
            "feature_names and static_names."
        )
    if cohort.allow_negative:
        raise InputError(
            "The cohort has negative entries: only counts and other non-negative values can be fitted together."
        )


def shown(cohort: Cohort, fewest: int) -> tuple[Array, Array]:
    """Which temporal and which static columns enough patients stand behind (`fewest`; 1 shows all that is there).

    Codes of fewer patients are hidden. Static facts are parts of a whole: the levels of a column ("sex=female",
    "sex=male"), or having a fact and not having it. There a few that are hidden could be told by subtraction, so that
    the next larger part goes with them.
    """
    having, static = patients_having(align(cohort, columns_of(cohort)).shard, cohort.n_features)
    return having >= fewest, shown_static(cohort, static, Gate(fewest=fewest))


def shown_static(cohort: Cohort, having: Array, gate: Gate) -> Array:
    found = having > 0
    if cohort.static is None:
        return found
    whole: dict[str, list[int]] = {}
    for p, name in enumerate(cohort.static_names.tolist()):  # type: ignore[union-attr]
        whole.setdefault(name.partition("=")[0] if "=" in name else f"={name}", []).append(p)
    for levels in whole.values():
        part = cohort.static[:, levels]
        if np.isin(part, (0, 1)).all() and (part.sum(axis=1) <= 1).all():
            rest = len(cohort) - int(part.sum())
            counts = gate.parts("static", "", [*having[levels].tolist(), rest])
            found[levels] &= [count is not None for count in counts[:-1]]
        else:  # amounts, or levels of which a patient may have several, do not add up to anything known
            found[levels] &= having[levels] >= gate.fewest
    return found


def own_names(cohort: Cohort, fewest: int) -> Dictionary:
    """The names that a site may send."""
    temporal, static = shown(cohort, fewest)
    names = cohort.static_names if cohort.static_names is not None else np.array([], str)
    assert cohort.feature_names is not None
    return Dictionary(cohort.feature_names[temporal].tolist(), names[static].tolist())


def site_data(cohort: Cohort, dictionary: Dictionary, fewest: int) -> Data:
    """The site's patients in the dictionary's columns."""
    temporal, static = shown(cohort, fewest)
    assert cohort.feature_names is not None
    where = places(cohort.feature_names, dictionary.features)
    unknown = int(np.sum(temporal & (where < 0)))
    visits = move_columns(cohort.visits, np.where(temporal, where, -1), len(dictionary.features))
    A = np.zeros((len(cohort), len(dictionary.static)))
    if cohort.static is not None and dictionary.static:
        where = places(cohort.static_names, dictionary.static)  # type: ignore[arg-type]
        keep = static & (where >= 0)
        A[:, where[keep]] = cohort.static[:, keep]
    shard = shard_of(visits, cohort.offsets, A)
    return Data(shard, patient_norms(shard), unknown)


def places(mine: Array, theirs: Sequence[str]) -> Array:
    place = {name: j for j, name in enumerate(theirs)}
    return np.array([place.get(name, -1) for name in mine.tolist()], dtype=np.int64)


def unite(sites: dict[str, Dictionary]) -> Dictionary:
    """The union of what the sites have, by code, after a look whether they speak the same language."""
    for kind, lists in (
        ("temporal", {site: names.features for site, names in sites.items()}),
        ("static", {site: names.static for site, names in sites.items()}),
    ):
        check_shared(kind, lists)
        note_near_names(kind, lists)
    return Dictionary(
        in_order([names.features for names in sites.values()]),
        in_order([names.static for names in sites.values()]),
    )


def in_order(lists: list[list[str]]) -> list[str]:
    """As all of them have it where that is one order, and by name otherwise: whoever answered first."""
    return lists[0] if all(names == lists[0] for names in lists) else sorted(set().union(*lists))


def check_shared(kind: str, lists: dict[str, list[str]]) -> None:
    """A site whose codes nobody else has groups codes in another way: their union would be no common ground."""
    if len(lists) < 2:
        return
    for site, names in lists.items():
        if not names and any(lists.values()):
            raise InputError(
                f"{site} has no {kind} features that it may show and other sites do: build its cohort with them, "
                "or leave it out (--without)."
            )
    for site, names in lists.items():
        others = set().union(*(theirs for other, theirs in lists.items() if other != site))
        if names and len(others & set(names)) < LEAST_SHARED * len(names):
            raise InputError(
                f"{site} has {len(names):,} {kind} features, and other sites only {len(others & set(names)):,} of "
                "them: build all cohorts with the same code groups, or leave it out (--without)."
            )


def note_near_names(kind: str, lists: dict[str, list[str]]) -> None:
    """Names that differ by case or blanks only are most likely one code written in two ways."""
    seen: dict[str, set[str]] = {}
    for name in set().union(*lists.values()):
        seen.setdefault("".join(name.casefold().split()), set()).add(name)
    twice = sorted(min(names) for names in seen.values() if len(names) > 1)
    if twice:
        some = ", ".join(repr(name) for name in twice[:3])
        warnings.warn(
            f"{len(twice)} {kind} features are spelt in several ways that differ by case or blanks only "
            f"(such as {some}): they are taken for different ones.",
            stacklevel=2,
        )
