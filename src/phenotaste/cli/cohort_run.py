"""Builds a cohort from a source for the command line: checks the output, builds, saves and prints."""

import json
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phenotaste.cli.cohort_flags import Flags, settings_of
from phenotaste.cli.options import check_replaceable
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste.build import Built, ModelColumns
    from phenotaste.build.settings import Index, Settings, SourceOptions
    from phenotaste.sources.records import Records
    from phenotaste.sources.workspace import Workspace

GIGABYTE = 2**30


@dataclass(frozen=True)
class Source:
    name: str
    location: str  # without secrets, for messages
    read: "Callable[[Workspace, Settings], Records]"
    options: "Mapping[str, Any]"  # of the reader; it adds those that it derives from the settings
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

    model_columns, expected = (None, None) if settings.like is None else columns_of(Path(settings.like))
    memory = MEMORY if flags.memory is None else int(flags.memory * GIGABYTE)
    with (
        step_progress() as step,
        stoppable(),
        translate_errors(source.location),
        Workspace(memory=memory, threads=flags.threads) as workspace,
    ):
        step(f"reading {source.location}")
        records = source.read(workspace, settings)
        settings = replace(settings, source=saved_options(source, flags))
        built = build.cohort(workspace, records, settings, model_columns=model_columns, progress=step)
        built = compared(built, expected)
        step("saving")
        options = {} if settings.source is None else dict(settings.source.options)
        origin = {"source": source.name, "location": source.location, "options": options}
        built.cohort.origin = origin | (built.cohort.origin or {})
        built.save(out)
    return built


def saved_options(source: Source, flags: Flags) -> "SourceOptions":
    """The options with which a source was read: those given, and those that the reader derived from the settings.

    They are in the order of the command's options, so that given and derived ones make the same file.
    """
    from phenotaste.build.settings import SourceOptions

    derived = {
        name: value
        for name, value in source.options.items()
        if name in flags.own_names and isinstance(value, str | int | float)
    }
    options = {**flags.own, **derived}
    return SourceOptions(source.name, {name: options[name] for name in flags.own_names if name in options})


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


def columns_of(path: Path) -> "tuple[ModelColumns, dict[str, Any] | None]":
    """The columns of a fitted model or of a cohort, and the settings that the cohort was built with."""
    from phenotaste import TASTE, Cohort
    from phenotaste.build import ModelColumns
    from phenotaste.build.measurements import Threshold
    from phenotaste.cohort.origin import build_settings, thresholds

    if is_cohort(path):
        cohort = Cohort.load(path)
        features, static = cohort.feature_names, cohort.static_names
        learnt, settings = thresholds(cohort.origin), build_settings(cohort.origin)
    else:
        model = TASTE.load(path)
        features, static = model.feature_names_in_, model.static_names_in_
        learnt = list(getattr(model, "cohort_thresholds_", ()))
        settings = getattr(model, "cohort_settings_", None)
    if features is None:
        raise InputError(f"{path} has no feature names; use one that was built from records.")
    try:
        limits = tuple(Threshold(**row) for row in learnt)
    except TypeError:
        raise InputError(
            f"{path} has limits of measurements that this version cannot read: build or fit it again."
        ) from None
    columns = ModelColumns(
        tuple(map(str, features)), None if static is None else tuple(map(str, static)), limits
    )
    return columns, settings


def is_cohort(path: Path) -> bool:
    manifest = path / "manifest.json"
    with suppress(OSError, ValueError, AttributeError):
        # A pipe would never end.
        return manifest.is_file() and bool(json.loads(manifest.read_text("utf-8")).get("kind") == "cohort")
    return False


def compared(built: "Built", expected: "dict[str, Any] | None") -> "Built":
    """Warn, and note, when a cohort was built with other settings than those of the model or cohort of --like."""
    from phenotaste.cohort.origin import build_settings, warning

    sentence = warning(expected, build_settings(built.cohort.origin))
    if sentence is None:
        return built
    warnings.warn(sentence, stacklevel=2)
    notes = (*built.notes, sentence)
    built.cohort.origin = {**(built.cohort.origin or {}), "notes": list(notes)}
    return replace(built, notes=notes)
