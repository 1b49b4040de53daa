"""What a federated fit costs: how far it is from the pooled one, bytes a round, the random start, and noise.

Everything is counted, not timed, so the machine need not be idle.
"""

import argparse
import json
import os
import tempfile
import time
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_random_state

from phenotaste import TASTE, Cohort, federated, metrics, simulate
from phenotaste.cohort.align import align, columns_of
from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.kernels.sums import tree_reduce
from phenotaste.core.records import Model, Scored, Sums, Weights
from phenotaste.engines.threads import Threads, one_blas_thread
from phenotaste.factorization import patient_weights
from phenotaste.federated import Settings
from phenotaste.federated.noise import promise

from .data import STORED, load
from .machine import describe
from .report import RESULTS, machine_lines, publish

SITES = ("north", "south", "east")
EPSILONS = (30.0, 10.0, 3.0, 1.0)
ROUNDS_WITH_NOISE = 20
DELTA = 1e-5
PARTS = ("exact", "starts", "noise")


def main() -> None:
    options = arguments()
    began = time.process_time()
    results: dict[str, Any] = {
        "machine": describe(),
        "settings": {k: str(v) for k, v in vars(options).items()},
    }
    kept, before = options.out / f"{date.today().isoformat()}-federated.json", 0.0
    if options.only and kept.exists():  # the other parts stay as they were today
        earlier = json.loads(kept.read_text())
        results |= {part: earlier[part] for part in PARTS}
        before = earlier["processor_seconds"]
    with tempfile.TemporaryDirectory() as folder:
        for part in [options.only] if options.only else PARTS:
            results[part] = measured(part, Path(folder), options)
    results["machine"]["load_at_end"] = round(os.getloadavg()[0], 2)
    results["processor_seconds"] = round(before + time.process_time() - began, 1)
    publish("federated", results, page(results), None if options.quick else options.out)


def measured(part: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    if part == "starts":
        return starts(options.patients, options.seeds)
    if part == "exact":
        return [exactness(folder / f"exact-{rank}", rank, options.patients) for rank in options.ranks]
    return [with_noise(folder / f"noise-{patients}", patients) for patients in options.noise_patients]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small and few; only printed")
    parser.add_argument("--only", choices=PARTS, help="the other parts stay as they were today")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.patients = 360 if options.quick else 600
    options.ranks = (3,) if options.quick else (10, 40)
    options.seeds = range(2 if options.quick else 5)
    options.noise_patients = (600,) if options.quick else (1_500, 6_000)
    return options


def hospitals(patients: int, **shape: Any) -> tuple[list[Cohort], Any]:
    """Three hospitals whose patients have the same phenotypes in different shares."""
    cohort, truth = simulate.ehr(patients, random_state=0, **shape)
    cohort = named(cohort)
    order = np.argsort(truth.W.argmax(axis=1) + 3 * np.random.default_rng(0).random(patients))
    edges = np.linspace(0, patients, 4).astype(int)
    return [cohort[np.sort(order[first:last])] for first, last in pairwise(edges)], truth


def named(cohort: Cohort) -> Cohort:
    return Cohort(
        cohort.visits,
        cohort.offsets,
        cohort.static,
        feature_names=[f"code {j:04d}" for j in range(cohort.n_features)],
        static_names=[f"fact {p:04d}" for p in range(cohort.n_static)],
    )


def pooled(cohorts: list[Cohort]) -> Cohort:
    from scipy import sparse

    counts = np.concatenate([np.diff(c.offsets) for c in cohorts])
    return Cohort(
        sparse.vstack([c.visits for c in cohorts]).tocsr(),
        np.concatenate([[0], np.cumsum(counts)]),
        np.vstack([c.static for c in cohorts]),
        feature_names=cohorts[0].feature_names,
        static_names=cohorts[0].static_names,
    )


def run(
    root: Path, cohorts: list[Cohort], settings: Settings, init: dict[str, Any], **step: Any
) -> list[Any]:
    """A whole federated fit; what each `combine` said."""
    federated.init(root / "work", SITES, settings, **init)
    said = []
    while not said or said[-1].next != "done":
        for site, cohort in zip(SITES, cohorts, strict=True):
            federated.step(root / "work" / "exchange", cohort, site=site, state=root / site, **step)
        said.append(federated.combine(root / "work"))
    return said


def exactness(root: Path, rank: int, patients: int) -> dict[str, Any]:
    """Fifty rounds against fifty iterations of the pooled fit. Nothing is hidden, so that the data is the same."""
    cohorts, _ = hospitals(patients, rank=rank)
    said = run(root, cohorts, Settings(rank=rank, max_rounds=50, tol=0.0), {}, fewest=1)
    found = TASTE.load(said[-1].model)
    whole = pooled(cohorts)
    plain = TASTE(rank, init="random", max_iter=50, tol=0.0, random_state=0)
    wanted = clone(plain).fit(whole)
    shuffled = clone(plain).fit(whole[np.random.default_rng(1).permutation(len(whole))])
    same = Fitted(same_shards(cohorts, found, rank))
    rounds = [done for done in said if done.next in ("proposal", "closing")][1:]
    return {
        "rank": rank,
        "features": len(found.V_),
        "static": len(found.F_),
        "patients": [len(c) for c in cohorts],
        "apart": {
            "the same shards": apart(found, same),
            "pooled": apart(found, wanted),
            "pooled, shuffled, from pooled": apart(shuffled, wanted),
        },
        "bytes_out": int(np.median([done.bytes_sent for done in rounds[:-1]])) // len(SITES),
        "bytes_in": int(np.median([done.bytes_received for done in rounds])) // len(SITES),
    }


def apart(mine: Any, theirs: Any) -> dict[str, float]:
    """How far two fits are from each other."""
    found = {"objective": float(np.max(np.abs(mine.loss_curve_ / theirs.loss_curve_ - 1)))}
    for name in ("V_", "F_", "H_"):
        one, other = getattr(mine, name), getattr(theirs, name)
        found[name] = float(np.linalg.norm(one - other) / np.linalg.norm(other))
    return found


class Shards:
    """An engine over several shards, each added up by itself: what a pooled fit on the sites' shards is."""

    def __init__(self, cohorts: list[Cohort], lam: float, rank: int) -> None:
        shards = [align(c, columns_of(c)) for c in cohorts]
        weights = [Weights(lam, patient_weights(1.0, "relative", s.norms, rank)) for s in shards]
        self.parts = [Threads(s.shard, w, rank) for s, w in zip(shards, weights, strict=True)]
        self.weights = weights[0]

    def start(self, model: Model) -> None:
        for part in self.parts:
            part.start(model)

    def step(self, model: Model, reach: float) -> Sums:
        found = [part.step(model, reach) for part in self.parts]
        return tree_reduce(found, lambda a, b: Sums(*(x + y for x, y in zip(a, b, strict=True))))

    def undo(self) -> None:
        for part in self.parts:
            part.undo()

    def score(self, model: Model) -> Scored:
        return Scored(*map(np.concatenate, zip(*(part.score(model) for part in self.parts), strict=True)))


class Fitted:
    """A fit under the names of TASTE's attributes."""

    def __init__(self, fit: loop.Fit) -> None:
        self.H_, self.V_, self.F_ = fit.model
        self.loss_curve_ = np.array(fit.losses)


def same_shards(cohorts: list[Cohort], like: TASTE, rank: int) -> loop.Fit:
    engine, seed = Shards(cohorts, like.lam_eff_, rank), check_random_state(0).randint(2**31, size=1)[0]
    shard = engine.parts[0].shard
    model = init_model("random", shard, len(like.V_), rank, True, np.random.default_rng(seed))
    with one_blas_thread():
        engine.start(model)
        return loop.fit(engine, model, normalize=True, exact=False, max_iter=50, tol=0.0)


def starts(patients: int, seeds: range) -> list[dict[str, Any]]:
    """What the random start costs in objective against the NMF start, on cohorts that are pooled here."""
    sets = {
        "simulate.ehr, ten phenotypes": (simulate.ehr(patients, random_state=1)[0], 10),
        "simulate.heart_failure, five phenotypes": (simulate.heart_failure(patients, random_state=1)[0], 5),
    }
    if STORED.exists():
        stored = load(STORED).head(patients)
        sets["stored set, ten phenotypes"] = (Cohort(stored.visits, stored.offsets, stored.static), 10)
    rows = []
    for name, (cohort, rank) in sets.items():
        ends = {
            kind: [
                TASTE(rank, init=init, n_init=n, random_state=1000 + seed).fit(cohort).loss_curve_[-1]
                for seed in seeds
            ]
            for kind, init, n in (
                ("nmf", "nmf", 1),
                ("random", "random", 1),
                ("best of 3 random", "random", 3),
            )
        }
        best = min(min(values) for values in ends.values())
        rows.append(
            {
                "set": name,
                **{kind: [float(value / best - 1) for value in values] for kind, values in ends.items()},
            }
        )
    return rows


def with_noise(root: Path, patients: int) -> dict[str, Any]:
    """Objective of the patients under the definitions found, and likeness to the truth, by the promise."""
    shape = {"n_features": 100, "n_static": 15, "mean_visits": 15, "rank": 5}
    cohorts, truth = hospitals(patients, **shape)
    whole = pooled(cohorts)
    size = float(whole.visits.power(2).sum()) / patients
    static_size = float(np.sum(whole.static**2)) / patients
    exact = TASTE(5, init="random", random_state=0).fit(whole)
    looked_at = whole[np.random.default_rng(0).permutation(patients)[:500]]
    least = exact.project(looked_at).loss
    settings = Settings(
        rank=5,
        max_rounds=ROUNDS_WITH_NOISE,
        noise=True,
        patient_size=round(size),
        static_size=round(static_size),
    )
    names = {"features": whole.feature_names.tolist(), "static": whole.static_names.tolist()}
    rows = [
        {
            "epsilon": None,
            "loudness": None,
            "loss": 0.0,
            "similarity": metrics.matched_similarity(exact.V_, truth.V),
        }
    ]
    for epsilon in (None, *EPSILONS):
        how: dict[str, Any] = {"exact": True} if epsilon is None else {"epsilon": epsilon, "delta": DELTA}
        model = TASTE.load(run(root / str(epsilon), cohorts, settings, names, **how)[-1].model)
        rows.append(
            {
                "epsilon": epsilon or "no noise, clipped",
                "loudness": None if epsilon is None else promise(epsilon, DELTA, ROUNDS_WITH_NOISE).loudness,
                "loss": float(model.project(looked_at).loss / least - 1),
                "similarity": metrics.matched_similarity(model.V_, truth.V),
            }
        )
    return {"patients": patients, "rows": rows}


def page(results: dict[str, Any]) -> str:
    parts = [
        f"# Federated fits, {date.today().isoformat()}",
        machine_lines(results["machine"]),
        f"{results['processor_seconds']:.0f} seconds of processor time; nothing here is a timing.",
        "## Against the pooled fit",
        "Three simulated hospitals with different case mixes, 50 rounds, `tol=0`: largest relative difference of the "
        "objective over the rounds, relative difference of the factors at the end. “The same shards” is a fit in one "
        "process whose shards are the hospitals; “pooled” is `TASTE.fit` on all records, which cuts its shards "
        "elsewhere; for comparison two pooled fits of which one has its patients shuffled: what rounding alone does.",
        table(
            ["R", "patients", "against", "objective", "V", "F", "H"],
            [
                [
                    row["rank"],
                    " + ".join(map(str, row["patients"])),
                    against,
                    *(f"{found[name]:.0e}" for name in ("objective", "V_", "F_", "H_")),
                ]
                for row in results["exact"]
                for against, found in row["apart"].items()
            ],
        ),
        "Bytes of one message to a site and of one answer, a round:",
        table(
            ["R", "J", "P", "to a site", "from a site", "three sites, both ways"],
            [
                [
                    row["rank"],
                    row["features"],
                    row["static"],
                    f"{row['bytes_out']:,}",
                    f"{row['bytes_in']:,}",
                    f"{len(SITES) * (row['bytes_out'] + row['bytes_in']):,}",
                ]
                for row in results["exact"]
            ],
        ),
        "## What the random start costs",
        "Objective at the end above the lowest that any start of the table reached, median (worst) over "
        f"{len(results['starts'][0]['nmf'])} seeds.",
        table(
            ["", "NMF", "random", "best of 3 random"],
            [
                [
                    row["set"],
                    *(
                        f"{np.median(row[k]):.2%} ({max(row[k]):.2%})"
                        for k in ("nmf", "random", "best of 3 random")
                    ),
                ]
                for row in results["starts"]
            ],
        ),
        "## What noise costs",
        f"Three hospitals together, R = 5, J = 100, P = 15, {ROUNDS_WITH_NOISE} rounds, δ = {DELTA:g}, every site with "
        "noise. Loss: objective of 500 patients under the definitions found, above that of the exact fit. Likeness: "
        "mean cosine of matched columns of V with the planted ones. One run each: noise is chance.",
        *(
            f"**{part['patients']:,} patients**\n\n"
            + table(
                ["ε", "z", "loss", "likeness"],
                [
                    [
                        "the exact fit" if row["epsilon"] is None else row["epsilon"],
                        "" if row["loudness"] is None else f"{row['loudness']:.2f}",
                        f"+{row['loss']:.1%}",
                        f"{row['similarity']:.3f}",
                    ]
                    for row in part["rows"]
                ],
            )
            for part in results["noise"]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    main()
