"""Bit flips and truncations of files of every kind: refused with one sentence or the same result, never a traceback.

A few copies of each kind in every run; many with `make test-attack`.
"""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import phenotaste
from helpers.attack import KINDS

SEED = 20
FEW = 4
# Those that a cohort is built from take a second each.
MANY = {"csv": 60, "csv.gz": 60, "parquet": 60, "ndjson": 60, "duckdb": 60, "cohort": 200, "model": 200}
QUICK = [name for name in KINDS if name not in ("csv", "csv.gz", "parquet", "ndjson", "duckdb")]


def outcomes(kinds, first, count):
    """Damage copies in a process of its own; a crash of it is an outcome of the copy that it was reading."""
    command = [sys.executable, "-m", "helpers.attack", ",".join(kinds), str(SEED), str(first), str(count)]
    source, tests = Path(phenotaste.__file__).parents[1], Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{tests}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3600)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [line for line in lines if "outcome" in line]
    begun = [line for line in lines if "begin" in line]
    if done.returncode and len(begun) == len(found):
        raise AssertionError(done.stderr[-3000:])
    if done.returncode:
        found.append({**begun[-1], "outcome": f"crash {done.returncode}", "detail": done.stderr[-3000:]})
    return found


def check(found):
    wrong = [
        case
        for case in found
        if case["outcome"] not in ("refused", "same")
        and (case["outcome"] != "other" or KINDS[case["kind"]].sealed)
    ]
    assert not wrong, f"{len(wrong)} of {len(found)}: {json.dumps(wrong[:3], indent=1)}"


def test_a_few_damaged_files_of_each_quick_kind():
    found = outcomes(QUICK, 0, FEW)
    assert len(found) == FEW * len(QUICK)
    check(found)


@pytest.mark.attack
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind, capsys):
    found = outcomes([kind], FEW, MANY.get(kind, 100))
    assert len(found) == MANY.get(kind, 100)
    with capsys.disabled():
        print(f"\n{kind}: {dict(collections.Counter(case['outcome'] for case in found))}")
    check(found)
