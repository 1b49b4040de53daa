"""`phenotaste review`: compare reviews of the phenotypes of a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.options import Json

if TYPE_CHECKING:
    from phenotaste.review import Comparison

review = typer.Typer(
    name="review",
    help="Work with review files saved by report pages.",
    epilog="Each command has its own --help.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@review.callback()
def every_review() -> None:
    """Work with review files saved by report pages."""


@review.command()
def compare(
    reviews: Annotated[
        list[Path], typer.Argument(help="Two review files or more.", metavar="REVIEW", show_default=False)
    ],
    json_: Json = False,
) -> None:
    """Compare reviews of one model: on which phenotypes reviewers agree.

    They agree on a phenotype if they give it the same verdict and merge it with the same others. Cohen's kappa corrects
    for agreement by chance; of more than two reviews it is the mean over all pairs.

    Example:

        phenotaste review compare anna.json ben.json
    """
    from phenotaste.cli.terminal import print_json
    from phenotaste.review import compare as compare_reviews

    comparison = compare_reviews(reviews)
    if json_:
        print_json(comparison.as_dict())
    else:
        print_comparison(comparison)


def print_comparison(comparison: "Comparison") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from phenotaste.cli.terminal import console, print_list
    from phenotaste.review.comparison import kappa_in_words

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(Text("Phenotype"), justify="right")
    for reviewer in comparison.reviewers:
        table.add_column(Text(reviewer), overflow="fold")
    table.add_column(Text("Agree"))
    for row in comparison.table.to_dict("records"):
        verdicts = [verdict(row, i + 1) for i in range(len(comparison.reviewers))]
        cells = [str(row["phenotype"]), *verdicts, "yes" if row["agree"] else "no"]
        table.add_row(*(Text(cell) for cell in cells))
    screen = console()
    screen.print()
    screen.print(table)
    kappa = "undefined: all verdicts are the same"
    if comparison.kappa is not None:
        kappa = (
            f"{comparison.kappa:.2f} ({kappa_in_words(comparison.kappa)} agreement: Landis and Koch, 1977)"
        )
    print_list(
        "Agreement of the reviews",
        [
            (
                "Same verdict",
                f"{comparison.agreed} of {comparison.phenotypes} phenotypes ({comparison.agreement:.0%})",
            ),
            ("Kappa", kappa),
        ],
    )


def verdict(row: dict[Any, Any], reviewer: int) -> str:
    """Return the verdict of one reviewer on one phenotype, as a line."""
    others = row[f"merged_with_{reviewer}"]
    status = f"merged with {others}" if others else str(row[f"status_{reviewer}"])
    return " · ".join(part for part in (status, str(row[f"name_{reviewer}"])) if part)
