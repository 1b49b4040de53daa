"""Refits and guides on planted data: a rejected nuisance that must stay away, a rare phenotype that codes bring back,
guides that are wrong, and the same bits on every engine. `python -m benchmarks.refit -h`.
"""

import argparse
import time
import warnings
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from phenotaste import TASTE, simulate
from phenotaste.engines import DaskEngine, DiskEngine
from phenotaste.metrics import cosines
from phenotaste.review import Decision, Review

from .machine import describe
from .report import RESULTS, machine_lines, publish

PATIENTS = {"nuisance": 600, "guides": 1000, "engines": 300}
RANK, RARE = 5, ["rare_01", "rare_02", "rare_03"]
CORE = 8  # codes of a planted phenotype from which wrong guides are drawn


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refit", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the results; default: benchmarks/results"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = range(options.seeds)
    results: dict[str, Any] = {
        "machine": describe(),
        "nuisance": [nuisance(seed, rank) for rank in (RANK, RANK + 1) for seed in seeds],
        "guides": [guides(seed) for seed in seeds],
        "engines": engines(),
    }
    results["machine"]["load_at_end"] = describe()["load"]
    publish("refit", results, page(results), options.out)


def nuisance(seed: int, rank: int) -> dict[str, Any]:
    """Fit, reject the phenotype that is nearest to the nuisance, and fit again."""
    cohort, truth = simulate.care_intensity(PATIENTS["nuisance"], RANK, random_state=seed)
    planted, bad = truth.V[:, :RANK], truth.V[:, RANK:]
    model = TASTE(rank, random_state=seed).fit(cohort)
    worst = int(cosines(bad, model.V_).argmax())
    decisions = [Decision(r + 1, status="rejected" if r == worst else "open") for r in range(rank)]
    began = time.perf_counter()
    again = model.refit(cohort, replace(Review.blank(model), decisions=tuple(decisions)), rank=RANK)
    return {
        "seed": seed,
        "rank": rank,
        "nuisance_before": float(cosines(bad, model.V_).max()),
        "planted_before": float(cosines(planted, model.V_).max(axis=1).min()),
        "planted_after": float(cosines(planted, again.V_).max(axis=1).min()),
        "nuisance_after": float(cosines(bad, again.V_).max()),
        "rises": int(np.sum(np.diff(again.loss_curve_) > 0)),
        "seconds": time.perf_counter() - began,
    }


def guides(seed: int) -> dict[str, Any]:
    """The rare phenotype without and with three of its codes, and guides of one code from each of three phenotypes."""
    cohort, truth = simulate.rare_phenotype(PATIENTS["guides"], RANK, random_state=seed)
    rare, rng = truth.V[:, RANK:], np.random.default_rng(seed)
    common = [str(cohort.feature_names[j]) for j in truth.V[:, 0].argsort()[-3:]]
    mixed = [
        str(cohort.feature_names[rng.choice(truth.V[:, r].argsort()[-CORE:])])
        for r in rng.permutation(RANK)[:3]
    ]
    fits = {
        name: TASTE(RANK + 1, random_state=seed, guides=None if codes is None else {name: codes}).fit(cohort)
        for name, codes in {"none": None, "rare": RARE, "common": common, "mixed": mixed}.items()
    }
    return {
        "seed": seed,
        "carriers": int(np.sum(truth.W[:, RANK] > 0)),
        "unguided": float(cosines(rare, fits["none"].V_).max()),
        "guided": float(cosines(rare, fits["rare"].V_[:, :1])[0, 0]),
        "others": float(cosines(truth.V[:, :RANK], fits["rare"].V_[:, 1:]).max(axis=1).min()),
        "common": float(cosines(truth.V[:, :1], fits["common"].V_[:, :1])[0, 0]),
        "reported": {name: fits[name].guides_[0]["unsupported"] for name in ("rare", "common", "mixed")},
        "rises": int(sum(np.sum(np.diff(fit.loss_curve_) > 0) for fit in fits.values())),
    }


def engines() -> dict[str, bool]:
    """Whether a refit on disk and on a Dask cluster of two workers has the bits of that on threads."""
    from distributed import LocalCluster

    cohort, _ = simulate.care_intensity(PATIENTS["engines"], random_state=0)
    model = TASTE(RANK + 1, random_state=0, n_init=1).fit(cohort)
    statuses = ("accepted", "rejected", "open", "accepted", "open", "open")
    decisions = tuple(Decision(r + 1, status=status) for r, status in enumerate(statuses))
    review = replace(Review.blank(model), decisions=decisions)
    same = {}
    with (
        TemporaryDirectory() as work,
        LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        for freedom in (0.0, 0.1):
            expected = model.set_params(engine=None).refit(cohort, review, rank=RANK + 1, freedom=freedom)
            for engine in (DiskEngine(work, "4GB"), DaskEngine(cluster, Path(work) / "dask")):
                found = model.set_params(engine=engine).refit(cohort, review, rank=RANK + 1, freedom=freedom)
                same[f"{type(engine).__name__}, freedom {freedom}"] = all(
                    np.array_equal(getattr(found, name), getattr(expected, name))
                    for name in ("V_", "F_", "H_", "W_", "U_")
                )
    return same


def page(results: dict[str, Any]) -> str:
    lines = [f"# Refits and guides, {date.today().isoformat()}", "", machine_lines(results["machine"]), ""]
    lines += [
        "## A rejected nuisance",
        "",
        f"`simulate.care_intensity({PATIENTS['nuisance']})`: lowest cosine of the ",
    ]
    lines[-1] += "five planted definitions, and largest cosine of the nuisance, over all phenotypes shown."
    lines += [
        "",
        "| rank | seed | planted: fit | refit | nuisance: fit | refit | seconds |",
        "|" + "---|" * 7,
    ]
    for row in results["nuisance"]:
        figures = [
            row[name] for name in ("planted_before", "planted_after", "nuisance_before", "nuisance_after")
        ]
        cells = [str(row["rank"]), str(row["seed"]), *(f"{x:.3f}" for x in figures), f"{row['seconds']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    for rank in (RANK, RANK + 1):
        rows = [row for row in results["nuisance"] if row["rank"] == rank]
        good = sum(row["planted_after"] >= 0.95 and row["nuisance_after"] < 0.3 for row in rows)
        lines += [
            "",
            f"Rank {rank}: planted at .95 or above and nuisance below .3 in {good} of {len(rows)} seeds.",
        ]
    lines += [
        "",
        "## Guides",
        "",
        f"`simulate.rare_phenotype({PATIENTS['guides']})`: cosine of the rare phenotype.",
    ]
    lines += [
        "",
        "| seed | patients with it | unguided | guided | others | a common one, guided | reported |",
    ]
    lines += ["|" + "---|" * 7]
    for row in results["guides"]:
        figures = [f"{row[name]:.3f}" for name in ("unguided", "guided", "others", "common")]
        named = [name for name, reason in row["reported"].items() if reason is not None]
        cells = [str(row["seed"]), str(row["carriers"]), *figures, ", ".join(named)]
        lines.append("| " + " | ".join(cells) + " |")
    for name in ("rare", "common", "mixed"):
        count = sum(row["reported"][name] is not None for row in results["guides"])
        lines += ["", f"Guide “{name}” reported as unsupported in {count} of {len(results['guides'])} seeds."]
    rises = sum(row["rises"] for row in [*results["nuisance"], *results["guides"]])
    lines += ["", "## Engines", "", f"Steps in which an objective rose: {rises}. Bits as on threads:", ""]
    lines += [f"- {name}: {'yes' if same else 'NO'}" for name, same in results["engines"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
