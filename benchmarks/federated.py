"""Federated fits: differences from the pooled fit, bytes per round, the random start, and noise.

Nothing is timed, so the machine need not be idle.
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
from phenotaste.core.records import Model, Scored, Sums
from phenotaste.engines.threads import ThreadEngine, one_blas_thread
from phenotaste.factorization import influence_of, relative_weights
from phenotaste.federated import Settings
from phenotaste.federated.privacy import PrivacyBudget

from .data import STORED, load
from .machine import describe
from .report import RESULTS, machine_lines, publish

SITES = ("north", "south", "east")
EPSILONS = (30.0, 10.0, 3.0, 1.0)
ROUNDS_WITH_NOISE = 20
DELTA = 1e-5
PARTS = ("exact", "starts", "noise")
STARTS: dict[str, dict[str, Any]] = {
    "4 starts of a pooled fit": {},
    "1 random": {"init": "random", "n_init": 1},
    "4 random": {"init": "random", "n_init": 4},
}


def main() -> None:
    options = arguments()
    start = time.process_time()
    results: dict[str, Any] = {
        "machine": describe(),
        "settings": {k: str(v) for k, v in vars(options).items()},
    }
    stored, earlier_seconds = options.out / f"{date.today().isoformat()}-federated.json", 0.0
    if options.only and stored.exists():  # keep today's results of the other parts
        earlier = json.loads(stored.read_text())
        results |= {part: earlier[part] for part in PARTS}
        earlier_seconds = earlier["processor_seconds"]
    with tempfile.TemporaryDirectory() as folder:
        for part in [options.only] if options.only else PARTS:
            results[part] = measure(part, Path(folder), options)
    results["machine"]["load_at_end"] = round(os.getloadavg()[0], 2)
    results["processor_seconds"] = round(earlier_seconds + time.process_time() - start, 1)
    publish("federated", results, page(results), None if options.quick else options.out)


def measure(part: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    if part == "starts":
        return starts(options.patients, options.seeds)
    if part == "exact":
        return [exactness(folder / f"exact-{rank}", rank, options.patients) for rank in options.ranks]
    return [noise_cost(folder / f"noise-{patients}", patients) for patients in options.noise_patients]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes; print only")
    parser.add_argument("--only", choices=PARTS, help="run one part and keep today's results of the others")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.patients = 360 if options.quick else 600
    options.ranks = (3,) if options.quick else (10, 40)
    options.seeds = range(2 if options.quick else 5)
    options.noise_patients = (600,) if options.quick else (1_500, 6_000)
    return options


def hospitals(patients: int, **shape: Any) -> tuple[list[Cohort], Any]:
    """Three hospitals with the same phenotypes and different case mixes."""
    cohort, truth = simulate.ehr(patients, random_state=0, **shape)
    cohort = with_names(cohort)
    order = np.argsort(truth.W.argmax(axis=1) + 3 * np.random.default_rng(0).random(patients))
    edges = np.linspace(0, patients, 4).astype(int)
    return [cohort[np.sort(order[first:last])] for first, last in pairwise(edges)], truth


def with_names(cohort: Cohort) -> Cohort:
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
    """A complete federated fit; the report of each `combine`."""
    federated.init(root / "work", SITES, settings, **init)
    reports = []
    while not reports or reports[-1].next != "done":
        for site, cohort in zip(SITES, cohorts, strict=True):
            federated.step(root / "work" / "exchange", cohort, site=site, state=root / site, **step)
        reports.append(federated.combine(root / "work"))
    return reports


def exactness(root: Path, rank: int, patients: int) -> dict[str, Any]:
    """Fifty rounds against fifty iterations of the pooled fit, without suppression, so that the data are equal."""
    cohorts, _ = hospitals(patients, rank=rank)
    reports = run(root, cohorts, Settings(rank=rank, n_init=1, max_rounds=50, tol=0.0), {}, min_cell_size=1)
    model = TASTE.load(reports[-1].model)
    everyone = pooled(cohorts)
    estimator = TASTE(rank, init="random", n_init=1, max_iter=50, tol=0.0, random_state=0)
    reference = clone(estimator).fit(everyone)
    shuffled = clone(estimator).fit(everyone[np.random.default_rng(1).permutation(len(everyone))])
    same = Fitted(same_shards(cohorts, model, rank))
    rounds = [report for report in reports if report.next in ("step", "evaluate")][1:]
    return {
        "rank": rank,
        "features": len(model.V_),
        "static": len(model.F_),
        "patients": [len(c) for c in cohorts],
        "differences": {
            "the same shards": differences(model, same),
            "pooled": differences(model, reference),
            "pooled, shuffled, from pooled": differences(shuffled, reference),
        },
        "bytes_out": int(np.median([report.bytes_sent for report in rounds[:-1]])) // len(SITES),
        "bytes_in": int(np.median([report.bytes_received for report in rounds])) // len(SITES),
    }


def differences(model: Any, reference: Any) -> dict[str, float]:
    """Relative differences of two fits."""
    result = {"objective": float(np.max(np.abs(model.loss_curve_ / reference.loss_curve_ - 1)))}
    for name in ("V_", "F_", "H_"):
        factor, expected = getattr(model, name), getattr(reference, name)
        result[name] = float(np.linalg.norm(factor - expected) / np.linalg.norm(expected))
    return result


class Shards:
    """An engine over several shards, with one partial sum per shard: the pooled fit on the sites' shards."""

    def __init__(self, cohorts: list[Cohort], model: TASTE) -> None:
        shards, rank = [align(c, columns_of(c)) for c in cohorts], model.rank
        weights = [
            relative_weights(s, rank, model.lam_eff_, model.mu, model.smooth, influence_of(model.balance, s))
            for s in shards
        ]
        self.parts = [
            ThreadEngine().open(s.shard, w, rank, c.shape[1])
            for s, w, c in zip(shards, weights, cohorts, strict=True)
        ]
        self.weights = weights[0]

    def init_U(self, model: Model) -> None:
        for part in self.parts:
            part.init_U(model)

    def step(self, model: Model, beta: float) -> Sums:
        sums = [part.step(model, beta) for part in self.parts]
        return tree_reduce(sums, lambda a, b: Sums(*(x + y for x, y in zip(a, b, strict=True))))

    def undo(self) -> None:
        for part in self.parts:
            part.undo()

    def score(self, model: Model) -> Scored:
        return Scored(*map(np.concatenate, zip(*(part.score(model) for part in self.parts), strict=True)))


class Fitted:
    """A fit with the attribute names of TASTE."""

    def __init__(self, fit: loop.Fit) -> None:
        self.H_, self.V_, self.F_ = fit.model
        self.loss_curve_ = np.array(fit.losses)


def same_shards(cohorts: list[Cohort], model: TASTE, rank: int) -> loop.Fit:
    engine, seed = Shards(cohorts, model), check_random_state(0).randint(2**31, size=1)[0]
    shard = engine.parts[0].shard
    start = init_model("random", shard, len(model.V_), rank, True, np.random.default_rng(seed))
    with one_blas_thread():
        engine.init_U(start)
        return loop.fit(engine, start, normalize=True, exact=False, max_iter=50, tol=0.0)


def starts(patients: int, seeds: range) -> list[dict[str, Any]]:
    """Final objective of random starts compared with the starts of a pooled fit, on pooled cohorts."""
    sets = {
        "simulate.ehr, ten phenotypes": (simulate.ehr(patients, random_state=1)[0], 10),
        "simulate.heart_failure, five phenotypes": (simulate.heart_failure(patients, random_state=1)[0], 5),
    }
    if STORED.exists():
        stored = load(STORED).head(patients)
        sets["stored set, ten phenotypes"] = (Cohort(stored.visits, stored.offsets, stored.static), 10)
    rows = []
    for name, (cohort, rank) in sets.items():
        objectives = {
            kind: [
                TASTE(rank, random_state=1000 + seed, **settings).fit(cohort).loss_curve_[-1]
                for seed in seeds
            ]
            for kind, settings in STARTS.items()
        }
        best = min(min(values) for values in objectives.values())
        rows.append(
            {
                "set": name,
                **{
                    kind: [float(value / best - 1) for value in values] for kind, values in objectives.items()
                },
            }
        )
    return rows


def noise_cost(root: Path, patients: int) -> dict[str, Any]:
    """Objective under the fitted definitions, and similarity to the planted ones, by privacy budget."""
    shape = {"n_features": 100, "n_static": 15, "mean_visits": 15, "rank": 5}
    cohorts, truth = hospitals(patients, **shape)
    everyone = pooled(cohorts)
    static_size = float(np.sum(everyone.static**2)) / patients
    exact = TASTE(5, init="random", balance=0.0, random_state=0).fit(everyone)  # as with noise
    sample = everyone[np.random.default_rng(0).permutation(patients)[:500]]
    exact_loss = exact.project(sample).loss
    settings = Settings(
        rank=5,
        max_rounds=ROUNDS_WITH_NOISE,
        noise=True,
        static_size=round(static_size),
    )
    names = {"features": everyone.feature_names.tolist(), "static": everyone.static_names.tolist()}
    rows = [
        {
            "epsilon": None,
            "noise_multiplier": None,
            "loss": 0.0,
            "similarity": metrics.matched_similarity(exact.V_, truth.V),
        }
    ]
    for epsilon in (None, *EPSILONS):
        budget: dict[str, Any] = {"exact": True} if epsilon is None else {"epsilon": epsilon, "delta": DELTA}
        model = TASTE.load(run(root / str(epsilon), cohorts, settings, names, **budget)[-1].model)
        rows.append(
            {
                "epsilon": epsilon or "no noise, clipped",
                "noise_multiplier": None
                if epsilon is None
                else PrivacyBudget(epsilon, DELTA, ROUNDS_WITH_NOISE).noise_multiplier,
                "loss": float(model.project(sample).loss / exact_loss - 1),
                "similarity": metrics.matched_similarity(model.V_, truth.V),
            }
        )
    return {"patients": patients, "rows": rows}


def page(results: dict[str, Any]) -> str:
    parts = [
        f"# Federated fits, {date.today().isoformat()}",
        machine_lines(results["machine"]),
        f"{results['processor_seconds']:.0f} seconds of processor time; no timings.",
        "## Against the pooled fit",
        "Three simulated hospitals with different case mixes, 50 rounds, `tol=0`: largest relative difference of the "
        "objective over the rounds, relative difference of the factors at the end. “The same shards” is a fit in one "
        "process whose shards are the hospitals; “pooled” is `TASTE.fit` on all records, which has other shard "
        "boundaries; for comparison two pooled fits, one with its patients shuffled: the effect of rounding alone.",
        table(
            ["R", "patients", "against", "objective", "V", "F", "H"],
            [
                [
                    row["rank"],
                    " + ".join(map(str, row["patients"])),
                    against,
                    *(f"{values[name]:.0e}" for name in ("objective", "V_", "F_", "H_")),
                ]
                for row in results["exact"]
                for against, values in row["differences"].items()
            ],
        ),
        "Bytes of one request and of one response:",
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
        "## The random start",
        "Final objective relative to the lowest of any start in the table, median (worst) over "
        f"{len(results['starts'][0]['1 random'])} seeds.",
        table(
            ["", *STARTS],
            [
                [
                    row["set"],
                    *(f"{np.median(row[k]):.2%} ({max(row[k]):.2%})" for k in STARTS),
                ]
                for row in results["starts"]
            ],
        ),
        "## Noise",
        f"Three hospitals together, R = 5, J = 100, P = 15, {ROUNDS_WITH_NOISE} rounds, δ = {DELTA:g}, every site with "
        "noise. Loss: objective of 500 patients under the fitted definitions, relative to the exact fit. Similarity: "
        "mean cosine of matched columns of V with the planted ones. One run each: noise is random.",
        *(
            f"**{part['patients']:,} patients**\n\n"
            + table(
                ["ε", "z", "loss", "similarity"],
                [
                    [
                        "the exact fit" if row["epsilon"] is None else row["epsilon"],
                        "" if row["noise_multiplier"] is None else f"{row['noise_multiplier']:.2f}",
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
