"""Builds a cohort from a source for the command line: checks the output, builds, saves and prints."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phenotaste.cli.cohort_flags import Flags, settings_of
from phenotaste.cli.options import check_replaceable
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste.build import Built, ModelColumns
    from phenotaste.build.settings import Index, Settings
    from phenotaste.sources.records import Records
    from phenotaste.sources.workspace import Workspace

GIGABYTE = 2**30


@dataclass(frozen=True)
class Source:
    name: str
    location: str  # without secrets, for messages
    read: "Callable[[Workspace, Settings], Records]"
    options: "Mapping[str, Any]"  # of the reader, stored with the cohort
    index: "Index | None" = None  # the default, if the source defines index dates


def run(source: Source, flags: Flags, out: Path) -> None:
    from phenotaste import Cohort
    from phenotaste.cli.cohort_printing import as_record, print_built
    from phenotaste.cli.terminal import print_json

    settings = settings_of(flags, source.name, source.index)
    check_replaceable(out, flags.overwrite, Cohort.load)
    built = build_and_save(source, settings, flags, out)
    if flags.json_:
        print_json(as_record(built, source.name, source.location, out))
    else:
        print_built(built, source.location, out)


def build_and_save(source: Source, settings: "Settings", flags: Flags, out: Path) -> "Built":
    from phenotaste import build
    from phenotaste.cli.terminal import step_progress
    from phenotaste.sources.workspace import MEMORY, Workspace, translate_errors

    model_columns = None if flags.like is None else features_of(flags.like)
    memory = MEMORY if flags.memory is None else int(flags.memory * GIGABYTE)
    with (
        step_progress() as step,
        stoppable(),
        translate_errors(source.location),
        Workspace(memory=memory, threads=flags.threads) as workspace,
    ):
        step(f"reading {source.location}")
        records = source.read(workspace, settings)
        built = build.cohort(workspace, records, settings, model_columns=model_columns, progress=step)
        step("saving")
        origin = {"source": source.name, "location": source.location, "options": dict(source.options)}
        built.cohort.origin = origin | (built.cohort.origin or {})
        built.save(out)
    return built


@contextmanager
def stoppable() -> Iterator[None]:
    """Remove temporary patient data on Ctrl-C and SIGTERM, which DuckDB reports as errors of its own."""
    earlier = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except Exception as error:
        if "interrupted" in str(error).lower() and not isinstance(error, InputError):
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGTERM, earlier)


def features_of(model: Path) -> "ModelColumns":
    """The feature names of a fitted model."""
    from phenotaste import TASTE
    from phenotaste.build import ModelColumns

    fitted = TASTE.load(model)
    if fitted.feature_names_in_ is None:
        raise InputError(f"{model} was fitted without feature names; fit it to a cohort that has them.")
    static = fitted.static_names_in_
    return ModelColumns(
        tuple(map(str, fitted.feature_names_in_)), None if static is None else tuple(map(str, static))
    )
