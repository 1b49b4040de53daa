"""The `phenotaste` command: its subcommands, and the conversion of errors to one sentence and an exit status."""

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from phenotaste.cli.cohort import cohort
from phenotaste.cli.cohort_flags import GroupedCommand
from phenotaste.cli.cohort_hospitals import HOSPITALS
from phenotaste.cli.compare import compare
from phenotaste.cli.demo import demo
from phenotaste.cli.doctor import doctor
from phenotaste.cli.export import export
from phenotaste.cli.federated import federated
from phenotaste.cli.fit import fit
from phenotaste.cli.predict import predict
from phenotaste.cli.refit import refit
from phenotaste.cli.report import report
from phenotaste.cli.review import review
from phenotaste.cli.score import score
from phenotaste.cli.select import select
from phenotaste.cli.study import study
from phenotaste.errors import InputError, safe

FAILED, INTERRUPTED, TERMINATED = 1, 130, 143


class Commands(TyperGroup):
    """Runs a subcommand and prints warnings as plain lines."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with safe_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings(), safe_errors():
            warnings.showwarning = print_note
            for category in (DeprecationWarning, FutureWarning):  # meant for programmers
                warnings.simplefilter("ignore", category)
            return super().invoke(ctx)


@contextmanager
def safe_errors() -> Iterator[None]:
    """Report an interrupt, and hide passwords: messages about arguments quote them."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Interrupted; no incomplete files were left.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if hasattr(error, "format_message"):  # of Click, which some versions of Typer include
            error.message = safe(str(error.message))  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    cls=Commands,
    help="Phenotypes from visits and static features: TASTE factorisation of health records.",
    epilog="Start with:  phenotaste demo",
    no_args_is_help=True,
    rich_markup_mode=None,  # boxes take too much of 80 columns
    pretty_exceptions_enable=False,  # they print local variables, which may hold patients' data
)
app.add_typer(cohort)
for source in HOSPITALS:
    cohort.command(cls=GroupedCommand)(source)
app.add_typer(review)
app.add_typer(federated)
for command in (demo, fit, refit, score, export, select, predict, compare, report, study, doctor):
    app.command()(command)


def show_version(requested: bool) -> None:
    if requested:
        from phenotaste.doctor import bug_report

        for name, version in bug_report():
            typer.echo(f"{name} {version}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print version information.",
            callback=show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Options that precede the name of a command."""


def main() -> NoReturn:
    """Run the command line; exit status 0 success, 1 error, 2 invalid usage, 130 interrupted, 143 killed."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # the terminal's encoding may lack characters of names
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that drafts are removed
    try:
        app(prog_name="phenotaste")
    except SystemExit as end:
        status = end.code
    except InputError as error:
        status = fail(str(error))
    except MemoryError:
        status = fail(
            "Out of memory: use fewer patients or phenotypes, --memory, or a machine with more memory."
        )
    except OSError as error:
        status = fail(os_sentence(error))
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Python would flush again at exit and report the error. A closed pipe is not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = status or (FAILED if isinstance(error, BrokenPipeError) else fail(os_sentence(error)))
    sys.exit(status)


def fail(sentence: str) -> int:
    typer.echo(f"Error: {safe(sentence)}", err=True)
    return FAILED


def os_sentence(error: OSError) -> str:
    reason = (error.strerror or "the operating system reported an error").lower()
    subject = f"{error.filename} cannot be accessed" if error.filename else "The operation failed"
    return f"{subject}: {reason}; check the path, the disk and your permissions."


def print_note(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
    """Print a warning as one line, without its location in the code."""
    typer.echo(f"Note: {safe(str(message))}", err=True)
