"""Terminal output: lists, phenotype tables and JSON on standard output, progress on standard error.

Progress is a bar on a terminal; elsewhere a line is printed every half minute.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from phenotaste.disclosure import printable
from phenotaste.errors import safe

if TYPE_CHECKING:
    import pandas as pd

    from phenotaste.comparison.tasks import Task as ComparisonTask
    from phenotaste.core.loop import Progress as FitReport
    from phenotaste.prediction.repeated_splits import Fit
    from phenotaste.runs.progress import Progress as RunReport
    from phenotaste.selection.grid import Task

STYLES = {"temporal": "cyan", "static": "red"}
MIN_TABLE_WIDTH, MAX_TABLE_WIDTH = 50, 60  # of a phenotype's table, in characters
SECONDS_BETWEEN_LINES = 30.0
TASK_NAMES = {
    "start": "all patients",
    "half": "half of the patients",
    "bootstrap": "bootstrap sample",
    "group": "group of the patients",
    "split": "training patients",
}


def console() -> Console:
    # Names such as "Dx_Gout [54.]" are printed unchanged: no markup, no highlighting of numbers.
    return Console(highlight=False, markup=False, emoji=False)


def print_json(record: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(record, allow_nan=False))


def print_list(title: str, lines: Sequence[tuple[str, str]], *, wrap: bool = True) -> None:
    """Print a title and labelled lines; without `wrap`, long lines are not broken and can be copied."""
    screen = console()
    width = max(len(name) for name, _ in lines) + 2
    screen.print(Text(f"\n{safe(title)}", "bold"))
    for name, text in lines:
        wrapped = Table.grid(padding=(0, 0))
        wrapped.add_column(width=width + 2)
        text = "\n".join(map(safe, text.split("\n")))  # names of columns and files are in it
        wrapped.add_row(Text(f"  {name}", "dim"), Text(text))
        unwrapped = Text.assemble((f"  {name:<{width}}", "dim"), text)
        screen.print(wrapped if wrap else unwrapped, soft_wrap=not wrap)


def print_phenotypes(table: "pd.DataFrame", headings: Sequence[str]) -> None:
    """Print the definitions like the table in the paper, temporal and static features in two colours."""
    screen = console()
    n_columns = max(screen.width // MIN_TABLE_WIDTH, 1)
    width = min(MAX_TABLE_WIDTH, screen.width // n_columns - 2)
    parts = [table[table["phenotype"] == number + 1] for number in range(len(headings))]
    tables = [phenotype_table(rows, heading, width) for rows, heading in zip(parts, headings, strict=True)]
    legend = Text.assemble(
        ("  temporal features", STYLES["temporal"]),
        " and ",
        ("static features", STYLES["static"]),
        "; after the name, the number of patients in whom it leads",
    )
    screen.print(Text("\nPhenotypes", "bold"))
    screen.print(legend)
    for first in range(0, len(tables), n_columns):
        row = Table.grid(padding=(0, 2))
        row.add_row(*tables[first : first + n_columns])
        screen.print()
        screen.print(row)


def phenotype_table(rows: "pd.DataFrame", heading: str, width: int) -> RenderableType:
    table = Table(width=width, box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)
    table.add_column(Text(heading), ratio=1, overflow="fold")
    table.add_column(Text("Weight"), justify="right", width=6)
    for kind, feature, weight in rows[["kind", "feature", "weight"]].itertuples(index=False):
        table.add_row(Text(printable(feature), STYLES[kind]), Text(f"{weight:.3f}", STYLES[kind]))
    return table


class LineTimer:
    """Whether a line of progress is due where there is no terminal for a bar."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def due(self) -> bool:
        if time.monotonic() - self.last < SECONDS_BETWEEN_LINES:
            return False
        self.last = time.monotonic()
        return True


def progress_bar(*columns: ProgressColumn) -> Progress:
    screen = Console(stderr=True, highlight=False, markup=False)
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)


class FitProgress:
    """The callback of a fit: updates the bar after every iteration."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.task = bar.add_task("Preparing", total=None, state="", left="")
        self.compiles = False
        self.finished_starts: list[int] = []  # their numbers of iterations
        self.iteration = 0
        self.began: float | None = None  # the end of the first iteration, which excludes compilation
        self.timer = LineTimer()

    def compiling(self) -> None:
        if self.compiles:
            return
        self.compiles = True
        self.bar.update(self.task, description="Compiling", state="once on this machine, about 20 seconds")
        if self.bar.disable:
            self.bar.console.print("Compiling, once on this machine; about 20 seconds …")

    def __call__(self, report: "FitReport") -> None:
        if report.start > len(self.finished_starts):
            self.finished_starts.append(self.iteration)
        self.iteration = report.iteration
        done, left = sum(self.finished_starts) + report.iteration, self.iterations_left(report)
        start = f"Start {report.start + 1}/{report.n_starts}"
        state = f"iteration {report.iteration}, objective {report.loss:.6g}"
        self.bar.update(
            self.task,
            description=start,
            completed=done / (done + left),
            total=1.0,
            state=state,
            left=self.time_left(done, left),
        )
        if self.bar.disable and self.timer.due():
            self.bar.console.print(f"{start}, {state}")

    def iterations_left(self, report: "FitReport") -> float:
        """Estimate by the mean of the finished starts; before one has finished, by the maximum."""
        usual = (
            sum(self.finished_starts) / len(self.finished_starts) if self.finished_starts else report.max_iter
        )
        return max(usual - report.iteration, 0.0) + usual * (report.n_starts - report.start - 1)

    def time_left(self, done: int, left: float) -> str:
        if self.began is None:
            self.began = time.monotonic()
            return ""
        seconds = round((time.monotonic() - self.began) / (done - 1) * left)
        return f"{'about' if self.finished_starts else 'at most'} {timedelta(seconds=seconds)} left"


@contextmanager
def fit_progress() -> Iterator[FitProgress]:
    from phenotaste.core.kernels.jit import on_compile

    with progress_bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=14),
        TextColumn("{task.fields[state]}"),
        TextColumn("{task.fields[left]}"),
    ) as bar:
        progress = FitProgress(bar)
        with on_compile(progress.compiling):
            yield progress


@contextmanager
def step_progress() -> Iterator[Callable[[str], None]]:
    """Show the current step and the elapsed time of work whose duration is unknown."""
    with progress_bar(BarColumn(bar_width=14), TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task = bar.add_task("Preparing", total=None)

        def step(text: str) -> None:
            text = safe(text[:1].upper() + text[1:])
            if bar.disable:
                bar.console.print(f"{text} …", soft_wrap=True)
            else:
                bar.update(task, description=text)

        yield step


@contextmanager
def grid_progress() -> Iterator[Callable[["RunReport[Task]"], None]]:
    """Show the progress of a model selection."""
    with share_progress() as show:
        yield lambda now: show(
            f"Fit {now.done:,} of {now.total:,}",
            f"{now.task.rank} phenotypes, {TASK_NAMES[now.task.kind]}",
            now.fraction,
            now.seconds_left,
        )


@contextmanager
def comparison_progress() -> Iterator[Callable[["RunReport[ComparisonTask]"], None]]:
    """Show the progress of a comparison."""
    with share_progress() as show:
        yield lambda now: show(
            f"Fit {now.done:,} of {now.total:,}",
            f"{now.task.method}, {TASK_NAMES[now.task.kind]}",
            now.fraction,
            now.seconds_left,
        )


@contextmanager
def study_progress() -> Iterator[Callable[["RunReport[dict[str, Any]]"], None]]:
    """Show the progress of a study."""
    with share_progress() as show:
        yield lambda now: show(f"{now.done:,} of {now.total:,} done", "", now.fraction, now.seconds_left)


@contextmanager
def prediction_progress() -> Iterator[Callable[["RunReport[Fit]"], None]]:
    """Show the progress of an evaluation."""
    with share_progress() as show:
        yield lambda now: show(
            f"Fit {now.done:,} of {now.total:,}",
            f"{now.task.method} on split {now.task.split + 1}",
            now.fraction,
            now.seconds_left,
        )


@contextmanager
def share_progress() -> Iterator[Callable[[str, str, float, float], None]]:
    """Show the completed share of many tasks and the estimated time left."""
    timer = LineTimer()
    with progress_bar(
        TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[state]}")
    ) as bar:
        task = bar.add_task("Preparing", total=1.0, state="")

        def show(count: str, detail: str, share: float, seconds_left: float) -> None:
            parts = [*filter(None, [detail]), f"about {timedelta(seconds=round(seconds_left))} left"]
            bar.update(task, description=count, completed=share, state=", ".join([f"{share:.0%}", *parts]))
            if bar.disable and timer.due():
                bar.console.print(", ".join([count, *parts]))

        yield show
