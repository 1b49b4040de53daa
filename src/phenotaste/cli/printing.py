"""How results look on a terminal: two-column lists, the paper's phenotype tables, and JSON for machines."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from phenotaste.report.text import readable

if TYPE_CHECKING:
    import pandas as pd

STYLES = {"temporal": "cyan", "static": "red"}
NARROWEST, WIDEST = 50, 60  # of a phenotype's table, in letters


def console() -> Console:
    # Names such as "Dx_Gout [54.]" must come out as they are: no markup, no colours for numbers.
    return Console(highlight=False, markup=False, emoji=False)


def print_json(record: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(record, allow_nan=False))


def print_list(title: str, lines: Sequence[tuple[str, str]], *, wrap: bool = True) -> None:
    """A title and labelled lines; without `wrap` long ones stay whole, for copying."""
    screen = console()
    width = max(len(name) for name, _ in lines) + 2
    screen.print(Text(f"\n{title}", "bold"))
    for name, text in lines:
        line = Table.grid(padding=(0, 0))
        line.add_column(width=width + 2)
        line.add_row(Text(f"  {name}", "dim"), Text(text))
        whole = Text.assemble((f"  {name:<{width}}", "dim"), text)
        screen.print(line if wrap else whole, soft_wrap=not wrap)


def print_phenotypes(table: "pd.DataFrame", headings: Sequence[str]) -> None:
    """The definitions as the paper's table has them, temporal and static features in two colours."""
    screen = console()
    across = max(screen.width // NARROWEST, 1)
    width = min(WIDEST, screen.width // across - 2)
    parts = [table[table["phenotype"] == number + 1] for number in range(len(headings))]
    tables = [phenotype_table(rows, heading, width) for rows, heading in zip(parts, headings, strict=True)]
    legend = Text.assemble(
        ("  temporal features", STYLES["temporal"]),
        " and ",
        ("static features", STYLES["static"]),
        "; patients it leads in beside the name",
    )
    screen.print(Text("\nPhenotypes", "bold"))
    screen.print(legend)
    for first in range(0, len(tables), across):
        row = Table.grid(padding=(0, 2))
        row.add_row(*tables[first : first + across])
        screen.print()
        screen.print(row)


def phenotype_table(rows: "pd.DataFrame", heading: str, width: int) -> RenderableType:
    found = Table(width=width, box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)
    found.add_column(Text(heading), ratio=1, overflow="fold")
    found.add_column(Text("Weight"), justify="right", width=6)
    for _, kind, feature, weight in rows.itertuples(index=False):
        found.add_row(Text(readable(feature), STYLES[kind]), Text(f"{weight:.3f}", STYLES[kind]))
    return found
