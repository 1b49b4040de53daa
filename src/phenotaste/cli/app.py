"""The commands under one name, and what becomes of everything that can go wrong: a sentence and an exit status."""

import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from phenotaste.cli.cohort import cohort
from phenotaste.cli.demo import demo
from phenotaste.cli.doctor import doctor
from phenotaste.cli.export import export
from phenotaste.cli.federated import federated
from phenotaste.cli.fit import fit
from phenotaste.cli.predict import predict
from phenotaste.cli.report import report
from phenotaste.cli.review import review
from phenotaste.cli.score import score
from phenotaste.cli.select import select
from phenotaste.cli.study import study
from phenotaste.errors import InputError

REFUSED, INTERRUPTED = 1, 130


class Commands(TyperGroup):
    """Runs a command; what it should say on the way are plain lines."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = print_note
            for category in (DeprecationWarning, FutureWarning):  # libraries speak to programmers with these
                warnings.simplefilter("ignore", category)
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                typer.echo("Stopped; nothing half-written is left behind.", err=True)
                raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    help="Phenotypes from visits and static facts: TASTE factorisation of health records.",
    epilog="Start with:  phenotaste demo",
    no_args_is_help=True,
    rich_markup_mode=None,  # boxes leave no room for the text at 80 columns
    pretty_exceptions_enable=False,  # they print local variables, which may hold patients' data
)
app.add_typer(cohort)
app.add_typer(review)
app.add_typer(federated)
for command in (demo, fit, score, export, select, predict, report, study, doctor):
    app.command()(command)


def show_version(wanted: bool) -> None:
    if wanted:
        from phenotaste.doctor import bug_report

        for name, version in bug_report():
            typer.echo(f"{name} {version}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the versions.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """What stands before the name of a command."""


def main() -> NoReturn:
    """Run the command line; the exit status is 0 done, 1 refused, 2 misused, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may lack letters that names have
    try:
        app(prog_name="phenotaste")
    except SystemExit as end:
        status = end.code
    except InputError as error:
        status = refuse(str(error))
    except MemoryError:
        status = refuse("There is not enough memory: use a larger machine, or fewer patients or phenotypes.")
    except OSError as error:
        status = refuse(os_sentence(error))
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Python would try once more at the end, and complain. A reader who has seen enough is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = status or (REFUSED if isinstance(error, BrokenPipeError) else refuse(os_sentence(error)))
    sys.exit(status)


def refuse(sentence: str) -> int:
    typer.echo(f"Error: {sentence}", err=True)
    return REFUSED


def os_sentence(error: OSError) -> str:
    reason = (error.strerror or "the system refused").lower()
    place = f"{error.filename} could not be used" if error.filename else "The system refused"
    return f"{place}: {reason}; check the path, the disk and your rights."


def print_note(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
    """Warnings as a line for readers, without the place in the code."""
    typer.echo(f"Note: {message}", err=True)
