"""`phenotaste review`: what reviewers made of a model's phenotypes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.options import Json

if TYPE_CHECKING:
    from phenotaste.review import Comparison

review = typer.Typer(
    name="review",
    help="Reviews that report pages saved.",
    epilog="Each has its own --help.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@review.callback()
def every_review() -> None:
    """Reviews that report pages saved."""


@review.command()
def compare(
    reviews: Annotated[
        list[Path], typer.Argument(help="Two review files or more.", metavar="REVIEW", show_default=False)
    ],
    json_: Json = False,
) -> None:
    """Put reviews of one model side by side: in which phenotypes reviewers agree.

    They agree where they give the same verdict and merge the same phenotypes. Cohen's kappa says how far that is beyond
    chance; of more than two reviews it is the mean over all pairs.

    Example:

        phenotaste review compare anna.json ben.json
    """
    from phenotaste.cli.terminal import print_json
    from phenotaste.review import compare as put_side_by_side

    found = put_side_by_side(reviews)
    if json_:
        print_json(found.as_dict())
    else:
        print_comparison(found)


def print_comparison(found: "Comparison") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from phenotaste.cli.terminal import console, print_list

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(Text("Phenotype"), justify="right")
    for reviewer in found.reviewers:
        table.add_column(Text(reviewer), overflow="fold")
    table.add_column(Text("Agree"))
    for row in found.table.to_dict("records"):
        said = [verdict(row, i + 1) for i in range(len(found.reviewers))]
        cells = [str(row["phenotype"]), *said, "yes" if row["agree"] else "no"]
        table.add_row(*(Text(cell) for cell in cells))
    screen = console()
    screen.print()
    screen.print(table)
    kappa = (
        "not defined: one verdict was given to everything" if found.kappa is None else f"{found.kappa:.2f}"
    )
    print_list(
        "Together",
        [
            ("Agreement", f"{found.agreed} of {found.phenotypes} phenotypes ({found.agreement:.0%})"),
            ("Kappa", kappa),
        ],
    )


def verdict(row: dict[Any, Any], reviewer: int) -> str:
    """What one reviewer said about one phenotype, in a line."""
    others = row[f"merged_with_{reviewer}"]
    status = f"merged with {others}" if others else str(row[f"status_{reviewer}"])
    return " · ".join(part for part in (status, str(row[f"name_{reviewer}"])) if part)
