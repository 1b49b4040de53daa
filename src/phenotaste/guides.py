"""Guides: phenotypes that a fit begins from, and keeps near, a set of codes.

A guided column of V first lies on its codes alone; what else goes with them in the data, beyond what the other
phenotypes explain, completes it (`engines.starts.guided`). The fit may move it on, as far as the strength allows.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from phenotaste.cohort.checks import row_blocks
from phenotaste.core.records import Array, Shard
from phenotaste.disclosure import MIN_CELL_SIZE, printable
from phenotaste.errors import InputError
from phenotaste.storage.input_files import read_text
from phenotaste.validation import is_number

STRENGTH = 0.99
FIELDS = {"codes", "strength"}
MIN_CORRELATION = 0.1
ENTRIES_PER_BLOCK = 2**20
LABELLED = re.compile(r"(?:Dx_|Rx_|Px_|Lab_)?(?P<name>.*) \[(?P<label>[^\[\]]+)\]")


class Guide(NamedTuple):
    """A named set of codes; `strength` is the smallest cosine of the column with where it begins."""

    name: str
    codes: tuple[str, ...]
    strength: float


def read_guides(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Read guides from a TOML file with a table for each: codes, a concept set of ATLAS (JSON), or both; a strength.

    Examples
    --------
    >>> from phenotaste.guides import read_guides
    >>> text = '[Gout]\\ncodes = ["Dx_Gout", "CCS:54"]\\nstrength = 0.9'
    >>> _ = open("guides.toml", "w").write(text)
    >>> read_guides("guides.toml")
    {'Gout': {'codes': ['Dx_Gout', 'CCS:54'], 'strength': 0.9}}
    """
    try:
        tables = tomllib.loads(read_text(path, "the guides"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from None
    if not tables:
        raise InputError(f"{path} has no guide: give a table with codes for each, such as [Gout].")
    guides = {}
    for name, table in tables.items():
        table = dict(table) if isinstance(table, dict) else {"codes": table}
        if (file := table.pop("concept_set", None)) is not None:
            codes = table.get("codes", [])
            if not isinstance(file, str) or not isinstance(codes, list):
                raise InputError(
                    f"The guide {printable(name)!r} in {path} must have the name of a file as concept_set."
                )
            table["codes"] = [*codes, *concept_codes(Path(path).parent / file)]
        guides[name] = table
    parse_guides(guides)
    return guides


def concept_codes(path: Path) -> list[str]:
    """The concepts of a set by id and by code, those excluded left out; descendants are not looked up."""
    from phenotaste.sources.omop.vocabulary import read_concept_set

    codes = []
    for item in read_concept_set(path):
        if not item.excluded:
            codes.append(f"OMOP:{item.concept}")
            if item.vocabulary and item.code:
                codes.append(f"{item.vocabulary}:{item.code}")
    return codes


def parse_guides(guides: Any) -> list[Guide]:
    """The guides of `TASTE(guides=...)`: a dict of names with codes, or with {"codes": ..., "strength": ...}."""
    if guides is None:
        return []
    if not isinstance(guides, Mapping):
        raise InputError("guides must be None or a dict of names and codes, such as {'Gout': ['Dx_Gout']}.")
    parsed = [parse_guide(name, content) for name, content in guides.items()]
    if len({guide.name for guide in parsed}) < len(parsed):
        raise InputError("Two guides have the same name: give each a name of its own.")
    return parsed


def parse_guide(name: Any, content: Any) -> Guide:
    title = " ".join(printable(name).split())
    fields: Mapping[str, Any] = content if isinstance(content, Mapping) else {"codes": content}
    codes: Any = fields.get("codes")
    strength = fields.get("strength", STRENGTH)
    listed = isinstance(codes, Sequence) and not isinstance(codes, str) and len(codes) > 0
    if not title or set(fields) - FIELDS or not listed or not all(isinstance(code, str) for code in codes):
        raise InputError(
            f"The guide {title!r} must have a name and a list of codes, and may have a strength."
        )
    if not is_number(strength, max=1, closed="neither"):
        raise InputError(f"The strength of the guide {title!r} must be a number above 0 and below 1.")
    return Guide(title, tuple(dict.fromkeys(codes)), float(strength))


class Features:
    """The features of a cohort, found by their names or by codes such as CCS:108 and ICD10CM:E11.9."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.positions: dict[tuple[str, ...], list[int]] = {}
        for j, name in enumerate(names):
            keys: set[tuple[str, ...]] = {(name,)}
            if match := LABELLED.fullmatch(name):
                label = plain(match["label"])
                keys |= {(label, ""), (plain(match["name"]), label)}
            for key in keys:
                self.positions.setdefault(key, []).append(j)

    def find(self, code: str) -> list[int]:
        """The features with this name or code; of an ICD code that was grouped, its CCS or CCSR category."""
        vocabulary, colon, value = code.partition(":")
        if (code,) in self.positions or not colon:
            return self.positions.get((code,), [])
        value = plain(value)
        # CCS categories are labelled [108.], others are not.
        found = self.positions.get((f"{value}." if vocabulary.upper() == "CCS" else value, ""), [])
        found = found or self.positions.get((value, plain(vocabulary)), [])
        return found or self.find_group(vocabulary, value)

    def find_group(self, vocabulary: str, code: str) -> list[int]:
        """The feature of the category of an ICD code."""
        from phenotaste.build import ccs

        single, refined = ccs.single(vocabulary, code), ccs.refined(vocabulary, code)
        found = [] if single is None else self.find(f"CCS:{single[0]}")
        return found or ([] if refined is None else self.find(f"CCSR:{refined}"))


def plain(label: str) -> str:
    """A label without dots inside and in capitals: E119 for E11.9."""
    last = "." if label.endswith(".") else ""
    return label.strip().upper().replace(".", "") + last


def rows_of(guide: Guide, features: Features) -> Array:
    """A mask of the features that a guide names."""
    rows = np.zeros(len(features.names), bool)
    for code in guide.codes:
        rows[features.find(code)] = True
    if not rows.any():
        raise InputError(
            f"No code of the guide {guide.name!r} is a feature of the cohort: compare its codes with feature_names."
        )
    return rows


def find_guides(guides: Any, feature_names: Array | None) -> list[tuple[Guide, Array]]:
    """Each guide of `TASTE(guides=...)` with a mask of the features that it names."""
    parsed = parse_guides(guides)
    if parsed and feature_names is None:
        raise InputError("guides name features, and the cohort has no names of features: give feature_names.")
    features = Features([] if feature_names is None else [str(name) for name in feature_names])
    return [(guide, rows_of(guide, features)) for guide in parsed]


def judge(
    guides: list[tuple[Guide, Array]], shard: Shard, starts: Array, V: Array, W: Array
) -> list[dict[str, Any]]:
    """What became of each guide, the first columns of V, and why the data do not support it; None if they do."""
    records = []
    for g, (guide, rows) in enumerate(guides):
        reason = unsupported(shard, rows)
        if reason is None and np.count_nonzero(W[:, g]) < MIN_CELL_SIZE:
            reason = f"fewer than {MIN_CELL_SIZE} patients have the phenotype"
        record = {
            "phenotype": g + 1,
            "name": guide.name,
            "strength": guide.strength,
            "features": int(rows.sum()),
            "cosine": float(V[:, g] @ starts[:, g]),
            "weight_on_codes": float(V[rows, g].sum() / (V[:, g].sum() or 1.0)),
            "unsupported": reason,
        }
        records.append(record)
    return records


def unsupported(shard: Shard, rows: Array) -> str | None:
    """Why the data do not support a set of codes, None if they do.

    Two codes of a phenotype rise and fall together from patient to patient, as shares of the record.
    """
    if rows.sum() < 2:
        return None
    counts, totals = patient_counts(shard, rows)
    if np.sum(np.diff(counts.indptr) >= 2) < MIN_CELL_SIZE:
        return f"fewer than {MIN_CELL_SIZE} patients have two of these codes"
    if correlation(counts, totals) < MIN_CORRELATION:
        return "patients with more of one of these codes do not have more of the others"
    return None


def patient_counts(shard: Shard, rows: Array) -> tuple[sparse.csr_array, Array]:
    """Patients × codes of a set, summed over the visits, and the sum of all codes of each patient; in blocks."""
    starts, column = shard.indptr[shard.offsets], np.cumsum(rows) - 1
    parts, totals = [], []
    for edges in row_blocks(starts, ENTRIES_PER_BLOCK):
        entries = slice(edges[0], edges[-1])
        patient = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        value, code = shard.data[entries].astype(np.float64), shard.indices[entries]
        inside = rows[code]
        places, shape = (patient[inside], column[code[inside]]), (len(edges) - 1, int(rows.sum()))
        parts.append(sparse.csr_array((value[inside], places), shape))
        totals.append(np.bincount(patient, value, minlength=len(edges) - 1))
    counts = sparse.vstack(parts, format="csr")
    counts.eliminate_zeros()
    return counts, np.concatenate(totals)


def correlation(counts: sparse.csr_array, totals: Array) -> float:
    """The mean correlation of two codes, by the roots of their shares in a record, frequent codes weighing more."""
    known = totals > 0
    shares = sparse.diags_array(1 / np.sqrt(totals[known])) @ counts[known].sqrt()
    mean = shares.sum(axis=0) / max(shares.shape[0], 1)
    covariance = (shares.T @ shares).toarray() / max(shares.shape[0], 1) - np.outer(mean, mean)
    variances = np.maximum(np.diagonal(covariance), 0.0)
    largest = np.sqrt(variances).sum() ** 2 - variances.sum()  # of the sum over pairs
    return float((covariance.sum() - np.trace(covariance)) / largest) if largest > 0 else 0.0
