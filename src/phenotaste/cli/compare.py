"""`phenotaste compare`: several methods on the same patients."""

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.options import CohortFolder, Json, Seed
from phenotaste.cli.select import parse_ranks

if TYPE_CHECKING:
    from phenotaste.comparison import Comparison


def compare(
    cohort: CohortFolder,
    out: Annotated[Path, typer.Option(help="Folder for all results.", metavar="DIR", show_default=False)],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas; by default all that the cohort allows and that do not take minutes. "
            "taste, taste-paper, copa, copa-plus, copa-static, spartan, cohen-plus, nmf, nmf-kl, visit-nmf, lda, svd, "
            "limestone, marble, granite, sustain, cp, swotted, cntf; without phenotypes: raw, raw-static, boosting, "
            "gru. swotted needs an interpreter of its own (PHENOTASTE_SWOTTED).",
            metavar="LIST",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[str, typer.Option(help="Numbers of phenotypes: 5,10 or 3:20.")] = "5,10",
    halves: Annotated[
        int, typer.Option(help="How often the patients are split into two halves that are fitted separately.")
    ] = 3,
    starts: Annotated[
        int, typer.Option(help="Fits of all patients with different seeds; times are measured here.")
    ] = 3,
    splits: Annotated[
        int, typer.Option(help="Splits of the patients for prediction, 75/10/15; 0 for none.")
    ] = 5,
    between: Annotated[
        str | None,
        typer.Option(
            help="Fit groups of the patients separately: a fact whose static columns are called FACT=value, such as "
            "site, or a CSV or Parquet file with the columns patient and group.",
            metavar="FACT|FILE",
            show_default=False,
        ),
    ] = None,
    modes: Annotated[
        str,
        typer.Option(
            help="Two prefixes of codes, for the methods that factorise counts of pairs of codes.",
            metavar="A,B",
        ),
    ] = "Dx_,Rx_",
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in DIR.")] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Processes; the number of cores by default.", show_default=False)
    ] = None,
    seed: Seed = 0,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Also show figures of fewer than 11 patients.")
    ] = False,
    json_: Json = False,
) -> None:
    """Compare methods on the same patients: replication, prediction, error, time.

    Each method is fitted to disjoint halves of the patients, to all of them with different seeds, and to training
    patients if the cohort has labels. Each finished fit is written at once: --resume continues an interrupted run, to
    which methods, ranks and numbers of fits may be added. Everything on the page and in the tables is about at least
    11 patients; the folder fits is not for passing on.

    Example:

        phenotaste compare cohort --methods taste,nmf,copa,raw --ranks 5,10 --out comparison

    Between sites, with every method:

        phenotaste compare cohort --between site --ranks 10 --out comparison
    """
    numbers = parse_ranks(ranks)
    pair = tuple(part.strip() for part in modes.split(",") if part.strip())
    if len(pair) != 2:
        raise typer.BadParameter(f"{modes!r} is not two prefixes such as Dx_,Rx_", param_hint="--modes")
    from phenotaste import Cohort, comparison
    from phenotaste.cli.options import groups_from
    from phenotaste.cli.terminal import comparison_progress, print_json

    if trusted:
        typer.echo(
            "Note: --trusted shows figures of fewer than 11 patients: keep these files with the data.",
            err=True,
        )
    groups: Any = between  # the name of a fact
    if between is not None and (Path(between).suffix or Path(between).is_file()):
        groups = groups_from(Path(between), Cohort.load(cohort))
    try:
        with comparison_progress() as callback:
            result = comparison.compare(
                cohort,
                None if methods is None else [name.strip() for name in methods.split(",") if name.strip()],
                numbers,
                halves=halves,
                starts=starts,
                splits=splits,
                between=groups,
                modes=pair,
                out=out,
                resume=resume,
                jobs=jobs,
                random_state=seed,
                trusted=trusted,
                callback=callback,
            )
    except KeyboardInterrupt:
        if (out / "table.csv").exists():
            typer.echo(f"{out / 'table.csv'} has the finished results; --resume continues the run.", err=True)
        raise
    if json_:
        print_json({"folder": str(out), "page": str(out / "comparison.html"), **result.as_dict()})
    else:
        print_comparison(result, out)


def print_comparison(result: "Comparison", out: Path) -> None:
    from phenotaste.cli.terminal import print_list
    from phenotaste.comparison.page import label, verdict

    names = {"halves_V": "codes", "halves_F": "static", "auc": "AUC", "auc_static": "AUC with static"}
    lines, several = [], len(result.plan.ranks) > 1
    for _, row in result.table.iterrows():
        parts = [
            f"{words} {row[name]:.3f}"
            for name, words in names.items()
            if name in row and not isnan(row[name])
        ]
        lines.append((label(row, several), "  ".join(parts) or "–"))
    print_list("Replication between halves of the patients (mean cosine), and prediction", lines)
    sentences = verdict(result.table)
    if sentences:
        print_list("In short", [("•", sentence) for sentence in sentences])
    print_list(
        f"{result.table['method'].nunique()} methods compared",
        [
            ("Page", str(out / "comparison.html")),
            ("Tables", f"{out / 'table.csv'}, {out / 'phenotypes.csv'}, {out / 'counterparts.csv'}"),
            ("Figures", str(out / "figures")),
        ],
        wrap=False,
    )
