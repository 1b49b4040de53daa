"""Accuracy of each rule for the rank, and time of a grid of 900 fits.

Every fit is kept in the folder for temporary work, so an interrupted run resumes, and rules can be
compared without fitting again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd

from phenotaste import selection, simulate
from phenotaste.selection import rules

from .data import ROOT
from .machine import describe
from .report import RESULTS, machine_lines, publish

TRUE_RANKS, RANKS, STARTS = (3, 5, 8), range(2, 13), 10
PATIENTS = 500
# Fixed before the first fit. Rules were chosen on the development draws, which are not among those reported.
REPORTED = {rank: [100 * rank + draw for draw in range(10)] for rank in TRUE_RANKS}
DEVELOPMENT = {rank: [7000 + 10 * rank + draw for draw in range(10)] for rank in TRUE_RANKS}
SYNPUF = ROOT.parent / "shared" / "data" / "desynpuf"
KEPT = [
    "true",
    "seed",
    "separation",
    "rank",
    "dissimilarity",
    "dissimilarity_se",
    "reproducibility",
    "rmse",
    "best_rmse",
    "cpi",
]
KEPT += ["held_out_error", "fitted_error", "split_half_cosine_min"]


def main() -> None:
    """Both parts, or one: the other is then taken from an earlier run in the work folder."""
    options = arguments()
    results: dict[str, Any] = {
        "machine": describe(),
        "settings": {k: str(v) for k, v in vars(options).items()},
    }
    draws = [
        table
        for separation in options.separation
        for draw in range(options.draws)
        for true in options.true_ranks
        if (table := one_draw(true, draw, separation, options)) is not None
    ]
    if draws:
        results["draws"] = pd.concat(draws, ignore_index=True)[KEPT].round(9).to_dict("list")
    results["grid"] = time_grid(options.work, options.only)
    results["machine"]["load_at_end"] = round(os.getloadavg()[0], 2)
    publish(
        "selection",
        results,
        page(results),
        None if options.development or options.draws < 10 else options.out,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["ranks", "grid"])
    parser.add_argument("--separation", type=float, nargs="+", default=[1.0, 0.5])
    parser.add_argument("--true-ranks", type=int, nargs="+", default=list(TRUE_RANKS))
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--development", action="store_true", help="the draws that rules may be tuned on")
    parser.add_argument("--init", default="mixed", help="initialisation of the fits")
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "phenotaste-bench-selection"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def one_draw(true: int, draw: int, separation: float, options: argparse.Namespace) -> pd.DataFrame | None:
    """The table of one simulated cohort, with its parameters."""
    seed = (DEVELOPMENT if options.development else REPORTED)[true][draw]
    place = options.work / f"s{separation:g}-r{true}-seed{seed}-{options.init}-tol{options.tol:g}"
    done = place.with_name(f"{place.name}.csv")
    if not done.exists() and options.only == "grid":
        return None
    if not done.exists():
        cohort, _ = simulate.ehr(PATIENTS, rank=true, separation=separation, random_state=seed)
        found = selection.select(
            cohort,
            RANKS,
            n_init=STARTS,
            holdout=1,
            out=place,
            resume=True,
            jobs=options.jobs,
            init=options.init,
            tol=options.tol,
        )
        draft = done.with_suffix(".partial")
        found.table.assign(true=true, draw=draw, seed=seed, separation=separation).to_csv(draft, index=False)
        draft.rename(done)
        print(f"separation {separation:g}, rank {true}, seed {seed}: done", file=sys.stderr, flush=True)
    return pd.read_csv(done)


def time_grid(work: Path, only: str | None) -> dict[str, Any] | None:
    """90 cells × 10 starts on the DE-SynPUF slice, by the command line; the target is ten minutes on two cores."""
    kept = work / "grid.json"
    if only == "ranks":
        return json.loads(kept.read_text()) if kept.exists() else None
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
    subprocess.run([*command, *map(str, grid), "--bootstraps", "0"], check=True)
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    table = pd.read_csv(out / "table.csv")
    found = {
        "load": round(os.getloadavg()[0], 2),
        "cells": len(table),
        "fits": int(table["starts"].sum()),
        "seconds": time.perf_counter() - began,
        "processor_seconds": processor,
        "named": {
            rule: table.loc[rules.choose(rule, table), ["rank", "lam", "mu", "cpi"]].tolist()
            for rule in rules.RULES
        },
        "by_rank": rules.by_rank(rules.DEFAULT, table)[
            ["rank", "lam", "mu", "dissimilarity", "reproducibility", "rmse", "cpi"]
        ].to_dict("list"),
    }
    kept.write_text(json.dumps(found))
    return found


def page(results: dict[str, Any]) -> str:
    parts = [f"# Model selection, {date.today().isoformat()}", machine_lines(results["machine"])]
    if "draws" in results:
        draws = pd.DataFrame(results["draws"])
        for separation, part in draws.groupby("separation", sort=False):
            parts += [
                f"## Accuracy of each rule for the rank, separation {separation:g}",
                f"`simulate.ehr({PATIENTS}, rank=…, separation={separation:g})`, ranks {RANKS[0]} to {RANKS[-1]}, "
                f"{STARTS} starts (NMF and random in turn), λ = 0.1, μ = 1, seeds fixed beforehand and not among those "
                "the rules were settled on. In brackets the ranks named otherwise, how often; last, by how much the "
                "named rank is off on average.",
                rule_table(part),
            ]
    if results.get("grid"):
        parts += ["## 90 cells × 10 starts on the DE-SynPUF slice", *grid_lines(results["grid"])]
    return "\n\n".join(parts) + "\n"


def rule_table(draws: pd.DataFrame) -> str:
    """One row per rule: the number of draws in which it chose the true rank, and its other choices."""
    lines = ["| rule | " + " | ".join(f"true rank {true}" for true in TRUE_RANKS) + " | all | off by |"]
    lines.append("|---|" + "---|" * (len(TRUE_RANKS) + 2))
    for rule in rules.RULES:
        cells, off = [], []
        for true in TRUE_RANKS:
            tables = draws[draws["true"] == true].assign(lam=0.1, mu=1.0).groupby("seed")
            named = [int(rows.loc[rules.choose(rule, rows), "rank"]) for _, rows in tables]
            others = sorted(Counter(rank for rank in named if rank != true).items())
            wrong = f" ({', '.join(f'{times} × {rank}' for rank, times in others)})" if others else ""
            cells.append(f"{sum(rank == true for rank in named)} of {len(named)}{wrong}")
            off += [rank - true for rank in named]
        right = f"{sum(gap == 0 for gap in off)} of {len(off)}"
        name = f"**{rule}** (default)" if rule == rules.DEFAULT else rule
        lines.append(f"| {name} | {' | '.join(cells)} | {right} | {sum(off) / max(len(off), 1):+.2f} |")
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
    named = [
        f"| {rule} | {rank:g} | {lam:g} | {mu:g} | {cpi:.2f} |"
        for rule, (rank, lam, mu, cpi) in grid["named"].items()
    ]
    return [
        f"{grid['cells']} cells, {grid['fits']} fits: **{grid['seconds']:.0f} s**, "
        f"{grid['processor_seconds']:.0f} s of processor time, the whole command with its imports, tables and figures. "
        f"Load {grid['load']} at its end, itself included; the bar is 600 s on two idle cores.",
        "At each rank the most stable weights of those with a CPI of at least 0.9:",
        "\n".join(table),
        "What the rules name:",
        "\n".join(["| rule | rank | λ | μ | CPI |", "|---|---|---|---|---|", *named]),
    ]


if __name__ == "__main__":
    main()
