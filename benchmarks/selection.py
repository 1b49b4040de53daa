"""How often each rule names the true rank, and how long a grid takes. Run as `python -m benchmarks.selection`.

Every fit is kept in the folder for temporary work, so a run that was stopped goes on where it was, and rules can be
compared without fitting again.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import pandas as pd

from phenotaste import selection, simulate
from phenotaste.selection import rules

TRUE_RANKS, RANKS, STARTS = (3, 5, 8), range(2, 13), 10
PATIENTS = 500
# Fixed before the first fit. Rules were settled on the development draws, none of which is among those reported.
REPORTED = {rank: [100 * rank + draw for draw in range(10)] for rank in TRUE_RANKS}
DEVELOPMENT = {rank: [7000 + 10 * rank + draw for draw in range(10)] for rank in TRUE_RANKS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--separation", type=float, nargs="+", default=[1.0, 0.5])
    parser.add_argument("--true-ranks", type=int, nargs="+", default=list(TRUE_RANKS))
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--development", action="store_true", help="the draws that rules may be tuned on")
    parser.add_argument("--holdout", type=int, default=1)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--init", default="mixed")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "phenotaste-bench-selection"
    )
    options = parser.parse_args()
    tables = []
    for separation in options.separation:
        for draw in range(options.draws):
            for true in options.true_ranks:
                tables.append(one_draw(true, draw, separation, options))
        print(report(pd.concat(tables, ignore_index=True), separation), flush=True)


def one_draw(true: int, draw: int, separation: float, options: argparse.Namespace) -> pd.DataFrame:
    """The table of one simulated cohort, with what it was made from."""
    seed = (DEVELOPMENT if options.development else REPORTED)[true][draw]
    cohort, _ = simulate.ehr(PATIENTS, rank=true, separation=separation, random_state=seed)
    place = options.work / f"s{separation:g}-r{true}-seed{seed}-{options.init}-tol{options.tol:g}"
    done = place.with_suffix(".csv")
    if not done.exists():
        began = time.perf_counter()
        found = selection.select(
            cohort,
            RANKS,
            n_init=STARTS,
            holdout=options.holdout,
            out=place,
            resume=True,
            jobs=options.jobs,
            init=options.init,
            tol=options.tol,
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        table = found.table.assign(true=true, draw=draw, seed=seed, separation=separation)
        draft = done.with_suffix(".partial")
        table.to_csv(draft, index=False)
        draft.rename(done)
        named = {name: chosen(table, name) for name in rules.RULES}
        print(
            json.dumps(
                {
                    "true": true,
                    "seed": seed,
                    "separation": separation,
                    "named": named,
                    "seconds": round(time.perf_counter() - began, 1),
                    "processor_seconds": round(float(table["processor_seconds"].sum()), 1),
                }
            ),
            flush=True,
        )
    return pd.read_csv(done)


def chosen(table: pd.DataFrame, rule: str) -> int:
    return int(table.loc[rules.choose(rule, table), "rank"])


def report(table: pd.DataFrame, separation: float) -> str:
    """A row for each rule: in how many draws it named the true rank, and what it named otherwise."""
    lines = [
        "| rule | " + " | ".join(f"rank {true}" for true in TRUE_RANKS) + " | all |",
        "|---|" + "---|" * 4,
    ]
    part = table[table["separation"] == separation]
    for rule in rules.RULES:
        cells, right, total = [], 0, 0
        for true in TRUE_RANKS:
            named = [chosen(rows, rule) for _, rows in part[part["true"] == true].groupby("draw")]
            hits = sum(rank == true for rank in named)
            right, total = right + hits, total + len(named)
            others = sorted(rank for rank in named if rank != true)
            cells.append(
                f"{hits} of {len(named)}" + (f" (else {', '.join(map(str, others))})" if others else "")
            )
        lines.append(f"| {rule} | " + " | ".join(cells) + f" | {right} of {total} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
