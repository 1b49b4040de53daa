"""`phenotaste select`: fit a grid of models from many starts and choose one."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phenotaste.cli.options import (
    CohortFolder,
    DtypeChoice,
    Json,
    Seed,
    SolverChoice,
    WeightsChoice,
)

if TYPE_CHECKING:
    from phenotaste.selection import Selection


class RuleChoice(StrEnum):
    """The names in `selection.rules.RULES`, here so that `--help` need not load them."""

    FOUND_AGAIN = "found-again"
    STABILITY = "stability"
    ONE_STANDARD_ERROR = "one-standard-error"
    RMSE_ELBOW = "rmse-elbow"
    CPI_FLOOR = "cpi-floor"


class StartChoice(StrEnum):
    MIXED = "mixed"
    NMF = "nmf"
    RANDOM = "random"
    UNIFORM = "uniform"


def select(
    cohort: CohortFolder,
    ranks: Annotated[
        str, typer.Option(help="Numbers of phenotypes: 3:20, 3:20:2 or 3,5,8.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for everything found.", metavar="DIR", show_default=False)
    ],
    lams: Annotated[str, typer.Option(help="Weights of static features, with commas.")] = "0.1",
    mus: Annotated[str, typer.Option(help="Weights of the uniqueness term, with commas.")] = "1",
    n_init: Annotated[int, typer.Option(help="Starts of each cell of the grid.")] = 10,
    rule: Annotated[
        RuleChoice, typer.Option(help="What chooses the cell; stability is the paper's.")
    ] = RuleChoice.FOUND_AGAIN,
    bootstraps: Annotated[
        int, typer.Option(help="Resamples of the patients to find the chosen phenotypes in again.")
    ] = 20,
    holdout: Annotated[
        int, typer.Option(help="Splits into halves, each fitted and tried on the other, for every cell.")
    ] = 0,
    consensus: Annotated[
        bool, typer.Option("--consensus", help="Also average the phenotypes over the starts.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what DIR holds.")] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Processes; as many as cores by default.", show_default=False)
    ] = None,
    seed: Seed = 0,
    init: Annotated[
        StartChoice, typer.Option(help="How fits start; mixed takes turns between nmf and random.")
    ] = StartChoice.MIXED,
    weights: Annotated[
        WeightsChoice, typer.Option(help="Whether lams and mus are measured against the data's size.")
    ] = WeightsChoice.RELATIVE,
    normalize: Annotated[bool, typer.Option(help="Keep definitions at unit norm.")] = True,
    solver: Annotated[
        SolverChoice, typer.Option(help="Coordinate descent, or exact block pivoting as in the paper.")
    ] = SolverChoice.CD,
    max_iter: Annotated[int, typer.Option(help="Most iterations of a fit.")] = 200,
    tol: Annotated[float, typer.Option(help="Stop when the objective falls by less than this part.")] = 1e-4,
    dtype: Annotated[DtypeChoice, typer.Option(help="Precision of the courses.")] = DtypeChoice.FLOAT64,
    json_: Json = False,
) -> None:
    """Choose how many phenotypes, and see whether they would be found again.

    Fits every cell of ranks × lams × mus from several starts. Each finished fit is on disk at once: after a break,
    --resume goes on and ends as if there had been none. DIR holds nothing about single patients.

    Example:

        phenotaste select cohort --ranks 3:20 --out choice

    The paper's grid, gone on with after a break:

        phenotaste select cohort --ranks 3:20 --lams 0.01,0.1,1 --mus 0.01,0.1,1 --out choice --resume
    """
    grid = ranks_of(ranks), numbers_of(lams, "--lams"), numbers_of(mus, "--mus")
    from phenotaste import selection
    from phenotaste.cli.terminal import grid_progress, print_json

    try:
        with grid_progress() as callback:
            found = selection.select(
                cohort,
                *grid,
                n_init,
                rule.value,
                bootstraps=bootstraps,
                holdout=holdout,
                consensus=consensus,
                out=out,
                resume=resume,
                jobs=jobs,
                random_state=seed,
                init=init.value,
                weights=weights.value,
                normalize=normalize,
                solver=solver.value,
                max_iter=max_iter,
                tol=tol,
                dtype=dtype.value,
                callback=callback,
            )
    except KeyboardInterrupt:
        if (out / "table.csv").exists():
            typer.echo(f"{out / 'table.csv'} has what is finished; --resume goes on.", err=True)
        raise
    if json_:
        print_json({"folder": str(out), "model": str(out / "best"), **found.as_dict()})
    else:
        print_selection(found, out)


def ranks_of(text: str) -> list[int]:
    """3:20 is 3, 4, … 20; parts may be joined by commas."""
    found: list[int] = []
    try:
        for part in filter(None, (part.strip() for part in text.split(","))):
            first, *rest = (int(number) for number in part.split(":"))
            last, step = (rest + [first, 1][len(rest) :])[:2]
            if len(rest) > 2 or step < 1 or last - first > 10_000:
                raise ValueError(part)
            found += range(first, last + 1, step)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a range such as 3:20 or a list such as 3,5,8", param_hint="--ranks"
        ) from None
    return found


def numbers_of(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers such as 0.01,0.1,1", param_hint=option
        ) from None


def print_selection(found: "Selection", out: Path) -> None:
    from phenotaste.cli.terminal import print_list
    from phenotaste.selection.rules import by_rank

    chosen = found.as_dict()
    rows = by_rank(found.rule, found.table)
    print_list(
        "By number of phenotypes: dissimilarity, least found again, fit",
        [
            (
                str(int(row["rank"])),
                f"{row['dissimilarity']:.4f}   {row['found_again']:4.0%}   RMSE {row['rmse']:.4g}   "
                f"CPI {row['cpi']:.3f}" + ("   ← chosen" if row["rank"] == found.rank else ""),
            )
            for _, row in rows.iterrows()
        ],
    )
    short = found.found_again
    kinds = {"starts": "other starts", "bootstrap": "resamples"}
    lines = []
    for number, part in short[short["factor"] == "V"].groupby("phenotype"):
        shares = zip(part["kind"], part["found_again"], part["comparisons"], strict=True)
        text = ", ".join(f"in {share:.0%} of {count} {kinds[kind]}" for kind, share, count in shares)
        lines.append((f"Phenotype {number}", text))
    print_list("Found again (temporal definition, cosine of at least 0.8)", lines)
    print_list(
        f"{found.rank} phenotypes chosen by the rule {found.rule}",
        [
            ("Weights", f"lam {chosen['lam']:g}, mu {chosen['mu']:g}"),
            ("Model", str(out / "best")),
            ("Tables", str(out / "table.csv")),
            ("Page", str(out / "selection.md")),
            ("Figures", str(out / "figures")),
        ],
        wrap=False,
    )
