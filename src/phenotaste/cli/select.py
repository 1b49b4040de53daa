"""`phenotaste select`: fit a grid of models from several starts and choose one."""

from enum import StrEnum
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.options import (
    Balance,
    CohortFolder,
    DtypeChoice,
    InitChoice,
    Json,
    ObjectiveChoice,
    Seed,
)

if TYPE_CHECKING:
    from phenotaste.selection import Selection


class RuleChoice(StrEnum):
    """The names in `selection.RULES`, repeated here so that `--help` does not import them."""

    REPLICATION = "replication"
    REPRODUCIBILITY = "reproducibility"
    STABILITY = "stability"
    ONE_STANDARD_ERROR = "one-standard-error"
    RMSE_ELBOW = "rmse-elbow"
    CPI_FLOOR = "cpi-floor"


def select(
    cohort: CohortFolder,
    ranks: Annotated[
        str, typer.Option(help="Numbers of phenotypes: 3:20, 3:20:2 or 3,5,8.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for all results.", metavar="DIR", show_default=False)],
    lams: Annotated[str, typer.Option(help="Weights of static features, separated by commas.")] = "0.01",
    mus: Annotated[str, typer.Option(help="Weights of the uniqueness term, separated by commas.")] = "1",
    smooths: Annotated[
        str | None,
        typer.Option(
            help="Weights of the smoothness of courses, separated by commas; as for fit by default.",
            show_default=False,
        ),
    ] = None,
    n_init: Annotated[int, typer.Option(help="Starts of each cell of the grid.")] = 10,
    rule: Annotated[
        RuleChoice | None,
        typer.Option(
            help="Rule that chooses the cell: replication by default, reproducibility with --halves 0; stability is "
            "the paper's.",
            show_default=False,
        ),
    ] = None,
    bootstraps: Annotated[
        int,
        typer.Option(
            help="Bootstrap samples of the patients, for the reproducibility of the chosen phenotypes."
        ),
    ] = 20,
    halves: Annotated[
        int,
        typer.Option(
            help="Splits of the patients into two halves, fitted separately for every cell: do their phenotypes "
            "match? Each costs about as much as five starts; 0 for none."
        ),
    ] = 2,
    consensus: Annotated[
        bool, typer.Option("--consensus", help="Also average the phenotypes over the starts.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in DIR.")] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Processes; the number of cores by default.", show_default=False)
    ] = None,
    seed: Seed = 0,
    init: Annotated[
        InitChoice, typer.Option(help="Where a fit begins: short_fits is a short fit with spare phenotypes.")
    ] = InitChoice.SHORT_FITS,
    objective: Annotated[
        ObjectiveChoice, typer.Option(help="The default objective, or the paper's with absolute weights.")
    ] = ObjectiveChoice.RELATIVE,
    balance: Balance = 0.5,
    max_iter: Annotated[int, typer.Option(help="Maximum number of iterations of a fit.")] = 200,
    tol: Annotated[
        float, typer.Option(help="Stop when the relative decrease of the objective is below this.")
    ] = 1e-5,
    dtype: Annotated[DtypeChoice, typer.Option(help="Precision of the courses.")] = DtypeChoice.FLOAT64,
    json_: Json = False,
) -> None:
    """Choose the number of phenotypes, and measure their reproducibility.

    Fits every cell of ranks × lams × mus × smooths from several starts. Each finished fit is written at once:
    --resume continues an interrupted run and gives the same result. DIR contains no patients, but its models name
    every feature: keep it where the data is.

    Example:

        phenotaste select cohort --ranks 3:20 --out choice

    The same with other weights, resumed after an interruption:

        phenotaste select cohort --ranks 3:20 --lams 0.003,0.01,0.03 --smooths 0.1,0.3,1 --out choice --resume
    """
    grid = parse_ranks(ranks), parse_numbers(lams, "--lams"), parse_numbers(mus, "--mus")
    smoothness = None if smooths is None else parse_numbers(smooths, "--smooths")
    from phenotaste import selection
    from phenotaste.cli.terminal import grid_progress, print_json

    try:
        with grid_progress() as callback:
            result = selection.select(
                cohort,
                *grid,
                n_init,
                None if rule is None else rule.value,
                smooths=smoothness,
                bootstraps=bootstraps,
                halves=halves,
                consensus=consensus,
                out=out,
                resume=resume,
                jobs=jobs,
                random_state=seed,
                init=init.value,
                objective=objective.value,
                balance=balance,
                max_iter=max_iter,
                tol=tol,
                dtype=dtype.value,
                callback=callback,
            )
    except KeyboardInterrupt:
        if (out / "table.csv").exists():
            typer.echo(f"{out / 'table.csv'} has the finished results; --resume continues the run.", err=True)
        raise
    if json_:
        print_json({"folder": str(out), "model": str(out / "best"), **result.as_dict()})
    else:
        print_selection(result, out)


def parse_ranks(text: str) -> list[int]:
    """Return the integers of a list of numbers and ranges: 3:20 is 3, 4, …, 20."""
    ranks: list[int] = []
    try:
        for part in filter(None, (part.strip() for part in text.split(","))):
            first, *rest = (int(number) for number in part.split(":"))
            last, step = (rest + [first, 1][len(rest) :])[:2]
            if len(rest) > 2 or step < 1 or last - first > 10_000:
                raise ValueError(part)
            ranks += range(first, last + 1, step)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a range such as 3:20 or a list such as 3,5,8", param_hint="--ranks"
        ) from None
    return ranks


def parse_numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers such as 0.01,0.1,1", param_hint=option
        ) from None


def halves_text(row: Any) -> str:
    """How alike the definitions of halves of the patients are: temporal and, where there are any, static ones."""
    names = {"V": "split_half_cosine", "F": "split_half_cosine_static"}
    known = [(factor, row[name]) for factor, name in names.items() if name in row and not isnan(row[name])]
    return "".join(f"  {factor} {cosine:.3f}" for factor, cosine in known)


def print_selection(result: "Selection", out: Path) -> None:
    from phenotaste.cli.terminal import print_list
    from phenotaste.selection.matching import KINDS
    from phenotaste.selection.rules import by_rank

    chosen = result.as_dict()
    rows = by_rank(result.rule, result.table)
    print_list(
        "By number of phenotypes: dissimilarity, lowest reproducibility, fit"
        + (", halves" if "split_half_cosine" in rows else ""),
        [
            (
                str(int(row["rank"])),
                f"{row['dissimilarity']:.4f}  {row['reproducibility']:4.0%}  RMSE {row['rmse']:.4g}  "
                f"CPI {row['cpi']:.3f}{halves_text(row)}"
                + ("  ← chosen" if row["rank"] == result.rank else ""),
            )
            for _, row in rows.iterrows()
        ],
    )
    table = result.reproducibility
    names = {
        kind: text.removesuffix(" of the patients") for kind, text in KINDS.items()
    }  # to fit into a line
    lines = []
    for number, part in table[table["factor"] == "V"].groupby("phenotype"):
        fractions = zip(part["kind"], part["reproducibility"], part["comparisons"], strict=True)
        found = [f"{round(fraction * count)} of {count} {names[kind]}" for kind, fraction, count in fractions]
        lines.append((f"Phenotype {number}", ", ".join(found)))
    print_list("Reproduced in (temporal definition, cosine of at least 0.8)", lines)
    print_list(
        f"{result.rank} phenotypes chosen by the rule {result.rule}",
        [
            ("Weights", f"lam {chosen['lam']:g}, mu {chosen['mu']:g}, smooth {chosen['smooth']:g}"),
            ("Model", str(out / "best")),
            ("Tables", str(out / "table.csv")),
            ("Page", str(out / "selection.md")),
            ("Figures", str(out / "figures")),
        ],
        wrap=False,
    )
