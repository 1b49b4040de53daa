"""The page of a study in Markdown: its frame, tables, and numbers with their standard deviations."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from phenotaste.studies.study import Study

if TYPE_CHECKING:
    import pandas as pd


def page(study: Study, results: "pd.DataFrame") -> str:
    """Return the page, a function of the results."""
    parts = [
        f"# {study.TITLE}",
        study.QUESTION,
        f"![{study.TITLE}]({study.NAME}.png)",
        study.text(results, study.table(results)).strip(),
        f"*{environment_sentence(results)}*",
        f"`phenotaste study {study.NAME} --out DIR` writes this page.",
    ]
    return "\n\n".join(parts) + "\n"


def environment_sentence(results: "pd.DataFrame") -> str:
    """Return the processor, the versions and the time taken."""
    cells = results.drop_duplicates("cell")
    environments = cells[["processor", "threads", "versions"]].drop_duplicates()
    description = "; ".join(
        f"{row.processor}, {row.threads} thread{'s' if row.threads != 1 else ''} per fit, {row.versions}"
        for row in environments.itertuples()
    )
    processor, wall = cells["cell_processor_seconds"].sum(), cells["cell_seconds"].sum()
    return (
        f"{len(cells):,} cells took {format_duration(processor)} of processor time and {format_duration(wall)} of wall "
        f"time in sequence; {description}."
    )


def format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else str(timedelta(seconds=round(seconds)))


def markdown(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Return a table; the first column is text, the others are numbers."""
    lines = [list(header), ["---", *["---:"] * (len(header) - 1)]]
    lines += [[format_value(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def format_value(value: Any, digits: int = 4) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def mean_sd(mean: float, sd: float, digits: int = 3) -> str:
    """Return mean ± standard deviation."""
    if mean != mean:
        return "–"
    return f"{mean:.{digits}g}" + (f" ± {sd:.2g}" if sd == sd else "")


def fixed_mean_sd(mean: float, sd: float = float("nan"), decimals: int = 3) -> str:
    """Return mean ± standard deviation with a fixed number of decimals, for values on one scale."""
    if mean != mean:
        return "–"
    return f"{mean:.{decimals}f}" + (f" ± {sd:.{decimals}f}" if sd == sd else "")
