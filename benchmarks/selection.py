"""How often each rule selects the planted rank, what the rules select on real ICU stays, and the time of 900 fits.

Every fit is kept in the folder for temporary work, so an interrupted run resumes, and rules can be
compared without fitting again.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from phenotaste import metrics, selection, simulate
from phenotaste.cohort import Cohort
from phenotaste.selection import rules
from phenotaste.selection.fits import SelectionFolder
from phenotaste.selection.grid import START, Task

from .data import ROOT
from .icu2012 import FOLDER, icu2012
from .machine import describe
from .report import RESULTS, machine_lines, publish

# Fixed before the first fit. Rules were chosen on the development draws, which are not among those reported.
KINDS: dict[str, dict[str, Any]] = {
    "skewed": {"lengths": "skewed"},
    "separate": {"separation": 1.0},
    "overlapping": {"separation": 0.5},
}
PATIENTS = {"skewed": 1000, "separate": 500, "overlapping": 500}
TRUE_RANKS, SPAN = (3, 5, 8), 3  # ranks from three below to three above the true one
REPORTED = {rank: [100 * rank + 3 + draw for draw in range(10)] for rank in TRUE_RANKS}
DEVELOPMENT = {rank: [100 * rank + draw for draw in range(3)] for rank in TRUE_RANKS}
STAYS, STAY_RANKS = 1000, range(4, 15, 2)
SYNPUF = ROOT.parent / "shared" / "data" / "desynpuf"
CELL = ["rank", "lam", "mu", "smooth"]
STABILITY = ["dissimilarity", "dissimilarity_se", "matched", "reproducibility"]
HALVES = [
    "split_half_cosine",
    "split_half_cosine_min",
    "split_half_cosine_static",
    "split_half_cosine_static_min",
]
FIT = ["rmse", "best_rmse", "cpi", "cpi_present", "held_out_error", "fitted_error"]
KEPT = ["kind", "true", "seed", *CELL, *STABILITY, *HALVES, *FIT, "recovered", "iterations", "seconds"]
PARTS = ("planted", "icu", "grid")


def main() -> None:
    options = arguments()
    results: dict[str, Any] = {
        "machine": describe(),
        "settings": {
            name: str(value) for name, value in vars(options).items() if name not in ("work", "out")
        },
    }
    if "planted" in options.only:
        draws = [
            one_draw(kind, true, draw, options)
            for kind in options.kinds
            for draw in range(options.draws)
            for true in options.true_ranks
        ]
        results["draws"] = pd.concat(draws, ignore_index=True)[KEPT].round(12).to_dict("list")
    if "icu" in options.only:
        results["icu"] = {flags: icu_stays(flags, options) for flags in options.flags}
    if "grid" in options.only:
        results["grid"] = time_grid(options.work)
    results["machine"]["load_at_end"] = round(os.getloadavg()[0], 2)
    publish("selection", results, page(results), None if options.development else options.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--kinds", choices=list(KINDS), nargs="+", default=list(KINDS))
    parser.add_argument("--flags", choices=["abnormal", "all"], nargs="+", default=["abnormal", "all"])
    parser.add_argument("--true-ranks", type=int, nargs="+", default=list(TRUE_RANKS))
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--halves", type=int, default=2)
    parser.add_argument("--development", action="store_true", help="the draws that rules may be tuned on")
    parser.add_argument("--tol", type=float, default=1e-5)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "phenotaste-bench-selection"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def one_draw(kind: str, true: int, draw: int, options: argparse.Namespace) -> pd.DataFrame:
    """The table of one simulated cohort, with its parameters and the cosine of each cell's best start to the truth."""
    seed = (DEVELOPMENT if options.development else REPORTED)[true][draw]
    place = options.work / f"{kind}-r{true}-seed{seed}-{options.starts}-{options.halves}-{options.tol:g}"
    done = place.with_name(f"{place.name}.csv")
    if not done.exists():
        cohort, truth = simulate.ehr(PATIENTS[kind], rank=true, random_state=seed, **KINDS[kind])
        table = run(cohort, range(max(2, true - SPAN), true + SPAN + 1), place, options)
        fits = SelectionFolder(place)
        table["recovered"] = [
            metrics.matched_similarity(truth.V, fits.load(Task(START, *cell, start)).V)
            for *cell, start in table[[*CELL, "best_start"]].itertuples(index=False)
        ]
        write_table(done, table.assign(kind=kind, true=true, seed=seed))
    return pd.read_csv(done)


def run(cohort: Cohort, ranks: Any, place: Path, options: argparse.Namespace) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of choices at the edge: the page shows them
        return selection.select(
            cohort,
            ranks,
            n_init=options.starts,
            halves=options.halves,
            out=place,
            resume=True,
            jobs=options.jobs,
            tol=options.tol,
        ).table


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Whole or not at all: an interrupted run computes it again."""
    draft = path.with_suffix(".partial")
    table.to_csv(draft, index=False)
    draft.rename(path)
    print(f"{path.stem}: done", file=sys.stderr, flush=True)


def icu_stays(flags: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The table of stays of set a, by rank."""
    place = options.work / f"icu-{flags}-{STAYS}-{options.starts}-{options.halves}-{options.tol:g}"
    done = place.with_name(f"{place.name}.csv")
    if not done.exists():
        stays = icu2012(FOLDER, "a", flags, cache=options.work)
        chosen = np.sort(np.random.default_rng(0).choice(len(stays), STAYS, replace=False))
        write_table(done, run(stays[chosen], STAY_RANKS, place, options))
    table = pd.read_csv(done)
    return {
        "by_rank": table[[*CELL, *STABILITY, *HALVES, "rmse", "best_rmse", "cpi", "cpi_present"]]
        .round(6)
        .to_dict("list"),
        "selected": {rule: int(table.loc[rules.choose(rule, table), "rank"]) for rule in rules.RULES},
    }


def time_grid(work: Path) -> dict[str, Any] | None:
    """90 cells × 10 starts on the DE-SynPUF slice, by the command line; the target is ten minutes on two cores."""
    if not SYNPUF.is_dir():
        print("the DE-SynPUF slice is missing: the grid is not timed", file=sys.stderr)
        return None
    work.mkdir(parents=True, exist_ok=True)
    cohort, out = work / "synpuf", work / "synpuf-choice"
    command = [sys.executable, "-m", "phenotaste.cli"]
    if not cohort.exists():
        build = ["cohort", "synpuf", SYNPUF, "--min-visits", "5", "--min-patients", "5", "--out", cohort]
        subprocess.run([*command, *map(str, build)], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(out, ignore_errors=True)
    weights = "0.01,0.1,1"
    began, before = time.perf_counter(), os.times()
    grid = ["select", cohort, "--ranks", "3:12", "--lams", weights, "--mus", weights, "--out", out]
    subprocess.run([*command, *map(str, grid), "--bootstraps", "0", "--halves", "0"], check=True)
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    table = pd.read_csv(out / "table.csv")
    return {
        "load": round(os.getloadavg()[0], 2),
        "cells": len(table),
        "fits": int(table["starts"].sum()),
        "seconds": time.perf_counter() - began,
        "processor_seconds": processor,
        "selected": {
            rule: table.loc[rules.choose(rule, table), ["rank", "lam", "mu", "cpi"]].tolist()
            for rule in rules.RULES
        },
        "by_rank": rules.by_rank(rules.DEFAULT, table)[
            ["rank", "lam", "mu", "dissimilarity", "reproducibility", "rmse", "cpi"]
        ].to_dict("list"),
    }


def page(results: dict[str, Any]) -> str:
    settings = results["settings"]
    parts = [f"# Model selection, {date.today().isoformat()}", machine_lines(results["machine"])]
    common = (
        f"{settings['starts']} starts, {settings['halves']} splits into halves, tol = "
        f"{settings['tol']}, default weights."
    )
    if "draws" in results:
        draws = pd.DataFrame(results["draws"])
        for kind, part in draws.groupby("kind", sort=False):
            arguments = ", ".join(f"{name}={value!r}" for name, value in KINDS[str(kind)].items())
            parts += [
                f"## Selected rank, planted phenotypes: {kind}",
                f"`simulate.ehr({PATIENTS[str(kind)]}, rank=…, {arguments})`, ranks within {SPAN} of the true one, "
                f"{common} Seeds were fixed beforehand and are not among those the rules were chosen on. In brackets "
                "the ranks selected otherwise, how often; last, the mean difference from the true rank.",
                rule_table(part),
                "Means over the draws, by distance from the true rank:",
                distance_table(part),
            ]
    for flags, found in results.get("icu", {}).items():
        parts += [
            f"## {STAYS:,} ICU stays, {flags} flags",
            f"icu2012, set a, ranks {STAY_RANKS[0]} to {STAY_RANKS[-1]}, {common}",
            number_table(
                pd.DataFrame(found["by_rank"]), ["rank", *STABILITY, *HALVES, "rmse", "cpi", "cpi_present"]
            ),
            "Selected: " + ", ".join(f"{rule} {rank}" for rule, rank in found["selected"].items()) + ".",
        ]
    if results.get("grid"):
        parts += ["## 90 cells × 10 starts on the DE-SynPUF slice", *grid_lines(results["grid"])]
    return "\n\n".join(parts) + "\n"


def rule_table(draws: pd.DataFrame) -> str:
    """One row per rule: the number of draws in which it chose the true rank, and its other choices."""
    true_ranks = sorted(draws["true"].unique())
    lines = ["| rule | " + " | ".join(f"true rank {true}" for true in true_ranks) + " | all | off by |"]
    lines.append("|---|" + "---|" * (len(true_ranks) + 2))
    for rule in rules.RULES:
        cells, off = [], []
        for true in true_ranks:
            tables = draws[draws["true"] == true].groupby("seed")
            selected = [int(rows.loc[rules.choose(rule, rows), "rank"]) for _, rows in tables]
            others = sorted(Counter(rank for rank in selected if rank != true).items())
            wrong = f" ({', '.join(f'{times} × {rank}' for rank, times in others)})" if others else ""
            cells.append(f"{sum(rank == true for rank in selected)} of {len(selected)}{wrong}")
            off += [rank - true for rank in selected]
        right = f"{sum(gap == 0 for gap in off)} of {len(off)}"
        name = f"**{rule}** (default)" if rule == rules.DEFAULT else rule
        lines.append(f"| {name} | {' | '.join(cells)} | {right} | {np.mean(off):+.2f} |")
    return "\n".join(lines)


def distance_table(draws: pd.DataFrame) -> str:
    """Stability, replication and recovery from three below to three above the true rank."""
    distance = draws["rank"] - draws["true"]
    near = draws.groupby(distance)[[*STABILITY, *HALVES, "recovered"]].mean()
    return number_table(near.rename_axis("distance").reset_index(), ["distance", *near.columns])


def number_table(table: pd.DataFrame, columns: list[str]) -> str:
    lines = [
        "| " + " | ".join(name.replace("_", " ") for name in columns) + " |",
        "|---" * len(columns) + "|",
    ]
    for row in table[columns].itertuples(index=False):
        cells = [f"{value:g}" if float(value).is_integer() else f"{value:.3f}" for value in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def grid_lines(grid: dict[str, Any]) -> list[str]:
    rows = pd.DataFrame(grid["by_rank"])
    table = [
        "| rank | λ | μ | dissimilarity | reproducibility | RMSE | CPI |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows.itertuples():
        table.append(
            f"| {row.rank} | {row.lam:g} | {row.mu:g} | {row.dissimilarity:.4f} | {row.reproducibility:.0%} | "
            f"{row.rmse:.4f} | {row.cpi:.3f} |"
        )
    selected = [
        f"| {rule} | {rank:g} | {lam:g} | {mu:g} | {cpi:.2f} |"
        for rule, (rank, lam, mu, cpi) in grid["selected"].items()
    ]
    return [
        f"{grid['cells']} cells, {grid['fits']} fits: **{grid['seconds']:.0f} s**, "
        f"{grid['processor_seconds']:.0f} s of processor time, the whole command with its imports, tables and figures. "
        f"Load {grid['load']} at its end, itself included; the bar is 600 s on two idle cores.",
        "At each rank the most stable weights of those with a CPI of at least 0.9:",
        "\n".join(table),
        "Selected by the rules:",
        "\n".join(["| rule | rank | λ | μ | CPI |", "|---|---|---|---|---|", *selected]),
    ]


if __name__ == "__main__":
    main()
