"""Markdown of a study's page: its frame, tables with means and spreads, and the sentence about the machine."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from phenotaste.studies.study import Study

if TYPE_CHECKING:
    import pandas as pd


def page(study: Study, results: "pd.DataFrame") -> str:
    """The whole page, from the results alone."""
    parts = [
        f"# {study.TITLE}",
        study.QUESTION,
        f"![{study.TITLE}]({study.NAME}.png)",
        study.text(results, study.table(results)).strip(),
        f"*{machine(results)}*",
        f"`phenotaste study {study.NAME} --out DIR` writes this page.",
    ]
    return "\n\n".join(parts) + "\n"


def machine(results: "pd.DataFrame") -> str:
    """What it ran on and what it took, in a sentence."""
    once = results.drop_duplicates("cell")
    facts = once[["processor", "threads", "versions"]].drop_duplicates()
    where = "; ".join(
        f"{row.processor}, {row.threads} thread{'s' if row.threads != 1 else ''} a fit, {row.versions}"
        for row in facts.itertuples()
    )
    used, clock = once["cell_processor_seconds"].sum(), once["cell_seconds"].sum()
    return (
        f"{len(once):,} cells took {span(used)} of processor time, {span(clock)} on the clock one after the other; "
        f"{where}."
    )


def span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else str(timedelta(seconds=round(seconds)))


def markdown(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """A table; the first column is words, the others numbers."""
    lines = [list(header), ["---", *["---:"] * (len(header) - 1)]]
    lines += [[shown(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def shown(value: Any, digits: int = 4) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def spread(mean: float, sd: float, digits: int = 3) -> str:
    """Mean ± standard deviation."""
    if mean != mean:
        return "–"
    return f"{mean:.{digits}g}" + (f" ± {sd:.2g}" if sd == sd else "")


def fixed(mean: float, sd: float = float("nan"), decimals: int = 3) -> str:
    """The same with a fixed number of decimals, for figures on one scale."""
    if mean != mean:
        return "–"
    return f"{mean:.{decimals}f}" + (f" ± {sd:.{decimals}f}" if sd == sd else "")
