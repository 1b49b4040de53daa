"""Code patterns such as "ICD9CM:428*" and "CCS:108", and the codes of the data that they match."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from phenotaste.build.ccs import icd_vocabulary, single
from phenotaste.errors import InputError
from phenotaste.sources.records import DIAGNOSIS
from phenotaste.sources.typed_tables import listed_names

if TYPE_CHECKING:
    import pyarrow as pa

CCS = "CCS"
PATTERN = re.compile(r"\s*([^:*\s][^:*]*?)\s*:\s*([^*\s][^*]*?)\s*(\*?)\s*")
LAST_CHARACTER = "\U0010ffff"


def matching(codes: "pa.Table", patterns: Sequence[str], notes: list[str] | None = None) -> np.ndarray:
    """A mask of the rows of `codes` that match a pattern; patterns without a match are reported in `notes`.

    A pattern is VOCABULARY:CODE, where a trailing * matches any ending; case and the dots of ICD codes are ignored.
    CCS:108 matches the diagnoses of a single-level CCS category.
    """
    parsed = [_parse(pattern) for pattern in patterns]
    keys = [
        _key(vocabulary or "", code or "")
        for vocabulary, code in zip(codes["vocabulary"].to_pylist(), codes["code"].to_pylist(), strict=True)
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    keys = [keys[row] for row in order]
    matched = np.zeros(len(keys), bool)
    for pattern, (vocabulary, code, any_ending) in zip(patterns, parsed, strict=True):
        if vocabulary.upper() == CCS:
            rows = _in_category(codes, code, any_ending, pattern)
        else:
            key = _key(vocabulary, code)
            end = bisect_left(keys, key + LAST_CHARACTER) if any_ending else bisect_right(keys, key)
            rows = order[bisect_left(keys, key) : end]
        if not rows and notes is not None:
            notes.append(f"The index code {pattern} matches no code of the data.")
        matched[rows] = True
    if not matched.any():
        listed = listed_names(sorted({str(name) for name in codes["vocabulary"].unique().to_pylist()}))
        raise InputError(
            f"none of the index codes ({', '.join(patterns[:5])}) matches the data, whose vocabularies are: "
            f"{listed or 'none'}; check both parts of VOCABULARY:CODE."
        )
    return matched


def _parse(pattern: str) -> tuple[str, str, bool]:
    parts = PATTERN.fullmatch(pattern)
    if parts is None:
        raise InputError(
            f"the index code {pattern!r} is not of the form VOCABULARY:CODE, such as ICD9CM:428* or CCS:108; "
            "add its vocabulary, and use * at the end only."
        )
    return parts[1], parts[2], bool(parts[3])


def _key(vocabulary: str, code: str) -> str:
    vocabulary, code = (icd_vocabulary(vocabulary) or vocabulary).strip().lower(), code.strip().lower()
    return f"{vocabulary}:{code.replace('.', '') if vocabulary.startswith('icd') else code}"


def _in_category(codes: "pa.Table", number: str, any_ending: bool, pattern: str) -> list[int]:
    if any_ending or not number.rstrip(".").isdecimal():
        raise InputError(
            f"the index code {pattern!r} is not a CCS category; give its number, such as CCS:108."
        )
    columns = (codes[name].to_pylist() for name in ("vocabulary", "code", "kind"))
    return [
        row
        for row, (vocabulary, code, kind) in enumerate(zip(*columns, strict=True))
        if kind == DIAGNOSIS
        and (category := single(vocabulary or "", code or ""))
        and int(category[0]) == int(number.rstrip("."))
    ]
