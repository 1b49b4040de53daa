"""Code sets as a user writes them, "ICD9CM:428*" or "CCS:108", and the codes of the data that they name."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from phenotaste.build import groupers
from phenotaste.build.ccs import icd_vocabulary
from phenotaste.errors import InputError
from phenotaste.sources.records import DIAGNOSIS

if TYPE_CHECKING:
    import pyarrow as pa

CCS = "CCS"
PATTERN = re.compile(r"\s*([^:*\s][^:*]*?)\s*:\s*([^*\s][^*]*?)\s*(\*?)\s*")
LAST_LETTER = "\U0010ffff"


def matching(codes: "pa.Table", patterns: Sequence[str], notes: list[str] | None = None) -> np.ndarray:
    """Which rows of `codes` one of the patterns names; a pattern that names none adds a sentence to `notes`.

    A pattern is VOCABULARY:CODE, where a * at the end stands for any ending; case does not count, nor do the
    dots of ICD codes. CCS:108 names the diagnoses of a single-level CCS category.
    """
    parsed = [_parsed(pattern) for pattern in patterns]
    keys = [
        _key(vocabulary or "", code or "")
        for vocabulary, code in zip(codes["vocabulary"].to_pylist(), codes["code"].to_pylist(), strict=True)
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    keys = [keys[row] for row in order]
    found = np.zeros(len(keys), bool)
    for pattern, (vocabulary, code, any_ending) in zip(patterns, parsed, strict=True):
        if vocabulary.upper() == CCS:
            rows = _in_category(codes, code, any_ending, pattern)
        else:
            key = _key(vocabulary, code)
            end = bisect_left(keys, key + LAST_LETTER) if any_ending else bisect_right(keys, key)
            rows = order[bisect_left(keys, key) : end]
        if not rows and notes is not None:
            notes.append(f"The index code {pattern} names no code of the data.")
        found[rows] = True
    if not found.any():
        listed = ", ".join(sorted({str(name) for name in codes["vocabulary"].unique().to_pylist()})[:20])
        raise InputError(
            f"none of the index codes ({', '.join(patterns[:5])}) is in the data, whose vocabularies are: "
            f"{listed or 'none'}; check both parts of VOCABULARY:CODE."
        )
    return found


def _parsed(pattern: str) -> tuple[str, str, bool]:
    parts = PATTERN.fullmatch(pattern)
    if parts is None:
        raise InputError(
            f"the index code {pattern!r} is not written as VOCABULARY:CODE, such as ICD9CM:428* or CCS:108; "
            "name its vocabulary, and use * at the end only."
        )
    return parts[1], parts[2], bool(parts[3])


def _key(vocabulary: str, code: str) -> str:
    vocabulary, code = (icd_vocabulary(vocabulary) or vocabulary).strip().lower(), code.strip().lower()
    return f"{vocabulary}:{code.replace('.', '') if vocabulary.startswith('icd') else code}"


def _in_category(codes: "pa.Table", wanted: str, any_ending: bool, pattern: str) -> list[int]:
    if any_ending or not wanted.rstrip(".").isdecimal():
        raise InputError(f"the index code {pattern!r} is no CCS category; write its number, such as CCS:108.")
    columns = (codes[name].to_pylist() for name in ("vocabulary", "code", "kind"))
    return [
        row
        for row, (vocabulary, code, kind) in enumerate(zip(*columns, strict=True))
        if kind == DIAGNOSIS
        and (category := groupers.ccs_single(vocabulary or "", code or ""))
        and int(category[0]) == int(wanted.rstrip("."))
    ]
