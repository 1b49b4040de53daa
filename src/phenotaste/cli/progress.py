"""Progress on standard error: a bar on a terminal, elsewhere a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from phenotaste.core.loop import Progress as Report
    from phenotaste.prediction import Progress as PredictionReport
    from phenotaste.selection.run import Progress as GridReport
    from phenotaste.studies.run import Progress as StudyReport

SECONDS_BETWEEN_LINES = 30.0


class FitProgress:
    """The callback of a fit: keeps the bar where the fit is."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.task = bar.add_task(
            "Preparing", total=None, where="the first run compiles for about a minute", left=""
        )
        self.earlier: list[int] = []  # iterations of the starts that are done
        self.iteration = 0
        self.began: float | None = None  # when the first iteration was done: compiling comes before it
        self.last_line = time.monotonic()

    def __call__(self, report: "Report") -> None:
        if report.start > len(self.earlier):
            self.earlier.append(self.iteration)
        self.iteration = report.iteration
        done, left = sum(self.earlier) + report.iteration, self.iterations_left(report)
        start = f"Start {report.start + 1}/{report.n_starts}"
        where = f"iteration {report.iteration}, objective {report.loss:.6g}"
        self.bar.update(
            self.task,
            description=start,
            completed=done / (done + left),
            total=1.0,
            where=where,
            left=self.time_left(done, left),
        )
        self.print_line(f"{start}, {where}")

    def iterations_left(self, report: "Report") -> float:
        """Later starts are taken to last as long as the earlier ones did, the first one as long as it may."""
        usual = sum(self.earlier) / len(self.earlier) if self.earlier else report.max_iter
        return max(usual - report.iteration, 0.0) + usual * (report.n_starts - report.start - 1)

    def time_left(self, done: int, left: float) -> str:
        if self.began is None:
            self.began = time.monotonic()
            return ""
        seconds = round((time.monotonic() - self.began) / (done - 1) * left)
        return f"{'about' if self.earlier else 'at most'} {timedelta(seconds=seconds)} left"

    def print_line(self, text: str) -> None:
        if not self.bar.disable or time.monotonic() - self.last_line < SECONDS_BETWEEN_LINES:
            return
        self.last_line = time.monotonic()
        self.bar.console.print(text)


@contextmanager
def fit_progress() -> Iterator[FitProgress]:
    screen = Console(stderr=True, highlight=False, markup=False)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=14),
        TextColumn("{task.fields[where]}"),
        TextColumn("{task.fields[left]}"),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    with bar:
        yield FitProgress(bar)


@contextmanager
def step_progress() -> Iterator[Callable[[str], None]]:
    """For work in steps of unknown length: a bar that names the step and the time so far, elsewhere a line for each."""
    screen = Console(stderr=True, highlight=False, markup=False)
    bar = Progress(
        BarColumn(bar_width=14),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    task = bar.add_task("Preparing", total=None)

    def step(text: str) -> None:
        text = text[:1].upper() + text[1:]
        if bar.disable:
            screen.print(f"{text} …", soft_wrap=True)
        else:
            bar.update(task, description=text)

    with bar:
        yield step


@contextmanager
def grid_progress() -> Iterator[Callable[["GridReport"], None]]:
    """For the many fits of a selection."""
    with share_progress() as show:
        yield lambda now: show(
            f"Fit {now.done:,} of {now.total:,}", f"{now.task.rank} phenotypes", now.share, now.seconds_left
        )


@contextmanager
def study_progress() -> Iterator[Callable[["StudyReport"], None]]:
    """For the cells of a study."""
    with share_progress() as show:
        yield lambda now: show(f"{now.done:,} of {now.total:,} done", "", now.share, now.seconds_left)


@contextmanager
def prediction_progress() -> Iterator[Callable[["PredictionReport"], None]]:
    """For the fits of an evaluation."""
    with share_progress() as show:
        yield lambda now: show(
            f"Fit {now.done:,} of {now.total:,}",
            f"{now.method} on split {now.split + 1}",
            now.share,
            now.seconds_left,
        )


@contextmanager
def share_progress() -> Iterator[Callable[[str, str, float, float], None]]:
    """For work in many parts: a bar over all of them with the time left, elsewhere a line now and then."""
    screen = Console(stderr=True, highlight=False, markup=False)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[where]}"),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    task = bar.add_task("Preparing", total=1.0, where="")
    last_line = time.monotonic()

    def show(count: str, what: str, share: float, seconds_left: float) -> None:
        nonlocal last_line
        parts = [*filter(None, [what]), f"about {timedelta(seconds=round(seconds_left))} left"]
        bar.update(task, description=count, completed=share, where=", ".join([f"{share:.0%}", *parts]))
        if bar.disable and time.monotonic() - last_line >= SECONDS_BETWEEN_LINES:
            last_line = time.monotonic()
            screen.print(", ".join([count, *parts]))

    with bar:
        yield show
