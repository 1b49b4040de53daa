"""Random damage to files of every kind, and what the package makes of them.

Run as `python -m helpers.attack KINDS SEED COUNT`, in a process of its own, because damage may crash a library: it
prints one JSON object per damaged copy.
"""

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from helpers import fhir_files, simulated_cdm, source_files
from helpers.hospitals import hospitals, round_of_steps
from phenotaste import TASTE, Cohort, InputError, federated, simulate
from phenotaste.build.settings import Index, Match, Settings
from phenotaste.build.toml import from_toml, to_toml
from phenotaste.cli.app import main
from phenotaste.engines import Checkpoint
from phenotaste.review import Review

RANK, SITES = 2, ("north", "south", "west")
TABLES = ("--vocabulary", "ICD9CM", "--kind", "diagnosis", "--min-patients", "1", "--threads", "1")


class Kind(NamedTuple):
    prepare: object  # writes the files into a folder
    damaged: str  # which of them are damaged, as a pattern
    use: object  # returns what the package makes of them, or raises InputError
    sealed: bool  # whether a checksum makes every change a refusal


def command(*arguments):
    """Run the command in this process; its refusal, one sentence, is raised as an InputError."""
    sys.argv = ["phenotaste", *map(str, arguments)]
    printed, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            main()
    except SystemExit as end:
        status = end.code
    if status == 0:
        return printed.getvalue()
    *others, message = errors.getvalue().splitlines()
    assert status == 1, (status, errors.getvalue())
    assert printed.getvalue() == ""
    assert message.startswith("Error: ")
    assert message.endswith((".", "?"))
    assert all(line.endswith(" …") or line.startswith("Note: ") for line in others), others
    assert all(letter.isprintable() for letter in message)
    raise InputError(message)


def digest(*arrays):
    parts = [np.ascontiguousarray(part) for part in arrays if part is not None]
    return hashlib.sha256(b"".join(f"{p.dtype}{p.shape}".encode() + p.tobytes() for p in parts)).hexdigest()


def of_model(model):
    return digest(model.V_, model.F_, model.H_, model.loss_curve_)


def of_cohort(folder):
    c = Cohort.load(folder, mmap=False)
    return digest(
        *(c.visits.data, c.visits.indices, c.visits.indptr, c.offsets, c.static),
        *(c.patient_ids, c.feature_names, c.static_names, c.visit_times),
    )


# --- what phenotaste writes ------------------------------------------------------------------------------


def small_cohort():
    return simulate.ehr(24, n_features=12, rank=RANK, random_state=1)[0]


def new_model(**settings):
    return TASTE(RANK, n_init=1, init="random", max_iter=4, tol=0, random_state=0, n_jobs=1, **settings)


def prepare_cohort(folder):
    small_cohort().save(folder / "cohort")


def use_cohort(folder):
    command(
        "fit", "cohort", "--rank", RANK, "--n-init", 1, "--init", "random", "--max-iter", 2, "--out", "model"
    )
    return of_model(TASTE.load("model"))


def prepare_model(folder):
    prepare_cohort(folder)
    new_model().fit(small_cohort()).save(folder / "model", include_patients=True)


def use_model(folder):
    command("score", "model", "cohort", "--out", "scores.parquet", "--threads", 1)
    return pq.read_table("scores.parquet").to_pandas().to_csv()


def prepare_checkpoint(folder):
    stop = {"callback": lambda progress: progress.iteration == 3}
    new_model(checkpoint=Checkpoint(folder / "work", every=1, keep=True), **stop).fit(small_cohort())


def use_checkpoint(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an older generation is used, or the fit begins again
        return of_model(new_model(checkpoint=Checkpoint("work", resume=True)).fit(small_cohort()))


def sites():
    return hospitals(n_static=3)


def prepare_request(folder):
    federated.init(folder / "work", SITES, federated.Settings(rank=RANK))
    round_of_steps(folder, sites(), SITES)
    federated.combine(folder / "work")


def use_request(folder):
    report = federated.step("work/exchange", sites()[0], site=SITES[0], state="north")
    return hashlib.sha256(Path(report.response).read_bytes()).hexdigest()


def prepare_responses(folder):
    prepare_request(folder)
    round_of_steps(folder, sites(), SITES)


def use_responses(folder):
    federated.combine("work")
    newest = max(Path("work/exchange").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return hashlib.sha256(newest.read_bytes()).hexdigest()


# --- what users give ---------------------------------------------------------------------------------------


def prepare_review(folder):
    prepare_model(folder)
    model = TASTE.load(folder / "model")
    Review.blank(model, names={1: "Gout", 2: "Heart failure"}, reviewer="A. B.").write(folder / "review.json")


def use_review(folder):
    return TASTE.load("model").apply_review("review.json").names


def prepare_toml(folder):
    settings = Settings(index=Index(codes=("ICD9CM:428*",)), match=Match(), min_visits=2)
    (folder / "settings.toml").write_text(to_toml(settings), encoding="utf-8")


def use_toml(folder):
    return repr(from_toml("settings.toml"))


def prepare_tables(kind, folder):
    events, static = source_files.source_tables()
    for name, table in (("events", events), ("static", static)):
        if kind == "csv":
            table.to_csv(folder / f"{name}.csv", index=False)
        else:
            table.to_parquet(folder / f"{name}.parquet")


def use_tables(kind, folder):
    given = ("--events", f"events.{kind}", "--static", f"static.{kind}")
    command("cohort", "tables", *given, *TABLES, "--out", "c")
    return of_cohort("c")


def prepare_gzip(folder):
    import gzip

    prepare_tables("csv", folder)
    for path in list(folder.glob("*.csv")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def use_fhir(folder):
    command("cohort", "fhir", "fhir", "--min-patients", 1, "--threads", 1, "--out", "c")
    return of_cohort("c")


def prepare_fhir(folder):
    fhir_files.write_fhir(folder / "fhir")


def prepare_duckdb(folder):
    simulated_cdm.write_duckdb(simulated_cdm.cdm(n_persons=40, n_events=400), folder / "cdm.duckdb")


def use_duckdb(folder):
    command(
        "cohort", "omop", "cdm.duckdb", "--visit", "day", "--min-patients", 1, "--threads", 1, "--out", "c"
    )
    return of_cohort("c")


KINDS = {
    "cohort": Kind(prepare_cohort, "cohort/*", use_cohort, True),
    "model": Kind(prepare_model, "model/*", use_model, True),
    "checkpoint": Kind(prepare_checkpoint, "work/**/*", use_checkpoint, True),
    "request": Kind(prepare_request, "work/exchange/round-0001.safetensors", use_request, True),
    "responses": Kind(prepare_responses, "work/exchange/round-0001.*.safetensors", use_responses, True),
    "review": Kind(prepare_review, "review.json", use_review, False),
    "toml": Kind(prepare_toml, "settings.toml", use_toml, False),
    "csv": Kind(lambda f: prepare_tables("csv", f), "*.csv", lambda f: use_tables("csv", f), False),
    "csv.gz": Kind(prepare_gzip, "*.csv.gz", lambda f: use_tables("csv.gz", f), False),
    "parquet": Kind(
        lambda f: prepare_tables("parquet", f), "*.parquet", lambda f: use_tables("parquet", f), False
    ),
    "ndjson": Kind(prepare_fhir, "fhir/*", use_fhir, False),
    "duckdb": Kind(prepare_duckdb, "cdm.duckdb", use_duckdb, True),
}


# --- damage ------------------------------------------------------------------------------------------------


def damage(files, rng):
    """Flip a bit of one file, or cut its end off; returns what was done."""
    path = rng.choice(sorted(file for file in files if file.is_file() and file.stat().st_size))
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    if rng.random() < 0.25:
        path.write_bytes(content[:at])
        return f"{path.name} cut at {at}"
    bit = rng.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.name} bit {bit} of byte {at}"


def try_once(kind, copy):
    """refused, the result, or the traceback."""
    os.chdir(copy)
    try:
        return "used", kind.use(copy)
    except InputError as error:
        return "refused", str(error)
    except Exception:
        return "traceback", traceback.format_exc()[-2000:]
    finally:
        os.chdir("/")


def attack(name, seed, count, first=0):
    """Yield the outcome of every damaged copy: same, refused, other (the content is another) or traceback."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as folder:
        pristine, copy = Path(folder) / "pristine", Path(folder) / "copy"
        pristine.mkdir()
        kind.prepare(pristine)
        shutil.copytree(pristine, copy)
        expected = try_once(kind, copy)
        assert expected[0] == "used", (name, expected)
        for case in range(first, first + count):
            shutil.rmtree(copy)
            shutil.copytree(pristine, copy)
            done = damage(copy.glob(kind.damaged), random.Random(f"{name} {seed} {case}"))
            print(json.dumps({"kind": name, "case": case, "begin": done}), flush=True)
            outcome, detail = try_once(kind, copy)
            if outcome == "used":
                outcome = "same" if detail == expected[1] else "other"
                detail = ""
            yield {"kind": name, "case": case, "damage": done, "outcome": outcome, "detail": detail}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    kinds, seed, first, count = sys.argv[1].split(","), *map(int, sys.argv[2:5])
    for name in kinds:
        for found in attack(name, seed, count, first):
            print(json.dumps(found), flush=True)
