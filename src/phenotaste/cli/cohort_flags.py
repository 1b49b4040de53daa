"""The options that all `phenotaste cohort` commands share, and their conversion to build settings."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from phenotaste.cli.options import Json, ThreadCount
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste.build.settings import Index, Match, Settings

SOURCE, CODES, PATIENTS = "Source", "Visits and features", "Patients and static features"
WINDOW, RUN = "Index, window and controls", "Output and resources"
PANELS = ("Arguments", SOURCE, CODES, PATIENTS, WINDOW, RUN)  # as --help shows them


class ValuesChoice(StrEnum):
    COUNTS = "counts"
    BINARY = "binary"
    LOG = "log"


class MeasurementsChoice(StrEnum):
    ABNORMAL = "abnormal"
    ALL = "all"
    COUNTS = "counts"


class LabelRowsChoice(StrEnum):
    ALL = "all"
    FIRST = "first"


class MatchChoice(StrEnum):
    CALENDAR = "calendar"
    HISTORY = "history"


class CcsChoice(StrEnum):
    SINGLE = "single"
    MULTI3 = "multi3"
    CCSR = "ccsr"
    NONE = "none"


def flag(*names: str, panel: str, text: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, show_default=False, **more)


OWN_OPTIONS: dict[str, dict[str, Any]] = {}  # by source: the names and annotations of its own options


def read_source_options(context: typer.Context, file: Path | None) -> Path | None:
    """Make the section [source] of a settings file the defaults of the source's own options."""
    from phenotaste.build.toml import from_toml

    source = None if file is None else from_toml(file).source
    if file is None or source is None:
        return file
    if source.name != context.info_name:
        raise InputError(
            f"{file} has settings of the source {source.name}: use phenotaste cohort {source.name}, or remove "
            "its section [source]."
        )
    own, folder = OWN_OPTIONS[source.name], file.absolute().parent
    for name in source.options:
        if name not in own:
            listed = ", ".join(own) or "none"
            raise InputError(
                f"in {file}, source.{name} is not an option of the source; its options are: {listed}."
            )
    context.default_map = {
        name: default_of(value, own[name], folder) for name, value in source.options.items()
    }
    return file


def default_of(value: Any, annotation: Any, folder: Path) -> Any:
    """An option's value in a settings file; its paths are relative to the folder of the file."""
    values = [os.path.normpath(folder / str(item)) if is_path(annotation) else item for item in items(value)]
    return values if holds(annotation, list) else values[0] if len(values) == 1 else values


def items(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


Out = Annotated[Path, flag(panel=RUN, text="Folder of the saved cohort.", metavar="COHORT")]


@dataclass(frozen=True)
class Flags:
    """The options given on the command line; None or empty if not given."""

    visit: Annotated[
        str | None,
        flag(panel=CODES, text="Visits: encounter, day, week, month, hours (6h), or auto.", metavar="UNIT"),
    ] = None
    place_within: Annotated[
        float | None,
        flag(
            panel=CODES, text="Place events without encounter in one this near (24).", metavar="HOURS", min=0
        ),
    ] = None
    values: Annotated[
        ValuesChoice | None,
        flag(panel=CODES, text="Values of entries: counts, binary or log (of 1 + count).", metavar="KIND"),
    ] = None
    kinds: Annotated[
        list[str] | None,
        flag(
            panel=CODES, text="Events to use: diagnosis, medication, procedure, measurement.", metavar="LIST"
        ),
    ] = None
    measurements: Annotated[
        MeasurementsChoice | None,
        flag(panel=CODES, text="Use measurements: abnormal, all (normal too), or counts.", metavar="WHICH"),
    ] = None
    ranges: Annotated[
        Path | None,
        flag(panel=CODES, text="Table of code, low, high for results without a range.", metavar="FILE"),
    ] = None
    quantiles: Annotated[
        str | None,
        flag(
            panel=CODES,
            text="Results without any range: low and high quantiles (0.1,0.9) or none.",
            metavar="LIST",
        ),
    ] = None
    learn_from: Annotated[
        Path | None,
        flag(panel=CODES, text="Table of the patients on whom quantiles are learnt.", metavar="FILE"),
    ] = None
    weight: Annotated[
        list[str] | None,
        flag(
            panel=CODES,
            text="Factor of the entries of a kind, such as lab=0.5; repeatable.",
            metavar="KIND=X",
        ),
    ] = None
    ccs: Annotated[
        CcsChoice | None,
        flag(
            panel=CODES,
            text="ICD diagnoses as CCS categories: single, multi3, ccsr or none.",
            metavar="LEVEL",
        ),
    ] = None
    atc: Annotated[
        int | None,
        flag(panel=CODES, text="Truncate ATC codes to this level, 1 to 5.", metavar="LEVEL"),
    ] = None
    groups: Annotated[
        Path | None,
        flag(panel=CODES, text="Table of code and group for codes not yet grouped.", metavar="FILE"),
    ] = None
    multi3: Annotated[
        Path | None,
        flag(
            "--ccs-table",
            panel=CODES,
            text="Table of code and category for --ccs multi3 or ccsr.",
            metavar="FILE",
        ),
    ] = None
    names: Annotated[
        Path | None,
        flag(panel=CODES, text="Table of code, name and, optionally, vocabulary.", metavar="FILE"),
    ] = None
    keep_unmapped: Annotated[
        bool | None,
        flag(
            "--keep-unmapped/--drop-unmapped",
            panel=CODES,
            text="Keep ungrouped codes as features of their own.",
        ),
    ] = None
    allow_loss: Annotated[
        bool | None,
        flag(
            "--allow-loss/--refuse-loss",
            panel=CODES,
            text="Build although most events of a kind are in no group.",
        ),
    ] = None
    min_patients: Annotated[
        int | None,
        flag(panel=CODES, text="Minimum number of patients per feature.", metavar="N"),
    ] = None
    index: Annotated[
        list[str] | None,
        flag(panel=WINDOW, text='Index code, "ICD9CM:428*" or "CCS:108"; repeatable.', metavar="CODE"),
    ] = None
    labels: Annotated[
        Path | None,
        flag(panel=WINDOW, text="Table of patient, time, value (1 case, 0 control).", metavar="FILE"),
    ] = None
    label_rows: Annotated[
        LabelRowsChoice | None,
        flag(
            panel=WINDOW, text="Labels of a patient that are rows: all (default) or first.", metavar="WHICH"
        ),
    ] = None
    first: Annotated[
        str | None,
        flag(panel=WINDOW, text="Window: the first part of each history, such as 48h.", metavar="LENGTH"),
    ] = None
    window: Annotated[
        str | None,
        flag(panel=WINDOW, text="Window before the index: 48h, 30d, 24mo (default).", metavar="LENGTH"),
    ] = None
    gap: Annotated[
        str | None,
        flag(panel=WINDOW, text="Time between window and index (6mo).", metavar="LENGTH"),
    ] = None
    washout: Annotated[
        str | None,
        flag(panel=WINDOW, text="Required history without index codes before the index.", metavar="LENGTH"),
    ] = None
    short_history: Annotated[
        bool | None,
        flag(
            "--short-history/--full-history",
            panel=WINDOW,
            text="Include histories that do not cover the window.",
        ),
    ] = None
    match: Annotated[
        int | None,
        flag(panel=WINDOW, text="Maximum number of controls per case; 0 for no matching.", metavar="RATIO"),
    ] = None
    match_same: Annotated[
        list[str] | None,
        flag(panel=WINDOW, text="Columns to match exactly, such as sex, or none.", metavar="LIST"),
    ] = None
    match_age: Annotated[
        float | None, flag(panel=WINDOW, text="Maximum difference in age (5).", metavar="YEARS")
    ] = None
    match_days: Annotated[
        int | None,
        flag(panel=WINDOW, text="Maximum distance of an encounter from the index (30).", metavar="DAYS"),
    ] = None
    match_seed: Annotated[
        int | None, flag(panel=WINDOW, text="Seed for ties between controls (0).", metavar="N")
    ] = None
    match_by: Annotated[
        MatchChoice | None,
        flag(
            panel=WINDOW,
            text="By calendar date, or history (time since the first record).",
            metavar="WHICH",
        ),
    ] = None
    min_visits: Annotated[
        int | None, flag(panel=PATIENTS, text="Minimum number of visits per patient.", metavar="N")
    ] = None
    static_columns: Annotated[
        str | None,
        flag(
            "--static-columns",
            panel=PATIENTS,
            text="Static columns, such as sex,race; default all.",
            metavar="LIST",
        ),
    ] = None
    age_bands: Annotated[
        str | None,
        flag(panel=PATIENTS, text="Lower bounds of the age bands, such as 60,70,80.", metavar="AGES"),
    ] = None
    bands: Annotated[
        list[str] | None,
        flag(panel=PATIENTS, text="Bounds of bands of a numeric column; repeatable.", metavar="COLUMN=LIST"),
    ] = None
    drop_implausible: Annotated[
        bool | None,
        flag(
            "--drop-implausible/--keep-implausible",
            panel=PATIENTS,
            text="Drop events before birth, after death or in the future.",
        ),
    ] = None
    like: Annotated[
        Path | None,
        flag(panel=PATIENTS, text="Use the features of a fitted model or a cohort.", metavar="FOLDER"),
    ] = None
    settings: Annotated[
        Path | None,
        flag(
            panel=RUN,
            text="TOML file of settings; options override it.",
            metavar="FILE",
            is_eager=True,
            callback=read_source_options,
        ),
    ] = None
    overwrite: Annotated[bool, flag("--overwrite", panel=RUN, text="Replace an existing COHORT.")] = False
    threads: ThreadCount = None
    memory: Annotated[
        float | None,
        flag(panel=RUN, text="Memory limit of the database, in GB (3).", metavar="GB", min=0.25),
    ] = None
    json_: Json = False
    # The source's own options that were given, by the command line or the settings file, and the names of all.
    own: Mapping[str, Any] = field(default_factory=dict)
    own_names: tuple[str, ...] = ()


OPTIONS = tuple(option for option in fields(Flags) if option.name not in ("own", "own_names"))


class GroupedCommand(TyperCommand):
    """Shows options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in PANELS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if param.param_type_name == "argument" else RUN
                panels[getattr(param, "rich_help_panel", None) or usual].append(record)
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `flags` of a command by one option per field of Flags."""
    own = [param for param in inspect.signature(command).parameters.values() if param.name != "flags"]
    shared = [
        inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type
        )
        for option in OPTIONS
    ]
    options = {param.name: param.annotation for param in own if is_own_option(param)}
    OWN_OPTIONS[command.__name__] = options
    names = tuple(options)

    @wraps(command)
    def spelt_out(**given: Any) -> None:
        shared = {option.name: given.pop(option.name) for option in OPTIONS}
        options = {name: setting_value(given[name]) for name in names if given[name] not in (None, [], ())}
        command(**given, flags=Flags(**shared, own=options, own_names=names))

    parameters = [*(param.replace(kind=inspect.Parameter.KEYWORD_ONLY) for param in own), *shared]
    spelt_out.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spelt_out.__annotations__ = {param.name: param.annotation for param in parameters}
    return spelt_out


def is_own_option(param: inspect.Parameter) -> bool:
    """Whether a parameter of a command is an option that shapes the cohort."""
    options = [part for part in get_args(param.annotation) if isinstance(part, OptionInfo)]
    return bool(options) and param.name not in ("out", "template")


def is_path(annotation: Any) -> bool:
    """Whether values of an annotated option are paths, one or several, optional or not."""
    return annotation is Path or any(is_path(part) for part in get_args(annotation))


def holds(annotation: Any, kind: type) -> bool:
    return get_origin(annotation) is kind or any(holds(part, kind) for part in get_args(annotation))


def setting_value(value: Any) -> Any:
    """The value of an option as it is saved: paths are absolute, choices are text."""
    if isinstance(value, Path):
        return path_text(value)
    if isinstance(value, list | tuple):
        return tuple(setting_value(item) for item in value)
    return str(value) if isinstance(value, str) else value


def settings_of(flags: Flags, source: str, index: "Index | None" = None) -> "Settings":
    """Settings from the defaults of the source, overridden by the file, overridden by the options.

    `index` is the default if the source itself defines index dates.
    """
    from phenotaste.build.settings import source_defaults
    from phenotaste.build.toml import from_toml

    settings = source_defaults(source)
    if flags.settings is not None:
        settings = from_toml(flags.settings, settings)
    groups = given(
        ccs=None if flags.ccs is None else word(flags.ccs, "none"),
        atc=None if flags.atc is None else flags.atc or NONE,
        table=path_text(flags.groups),
        multi3=path_text(flags.multi3),
        names=path_text(flags.names),
        unmapped=choice(flags.keep_unmapped, "keep", "drop"),
        allow_loss=flags.allow_loss,
    )
    static = given(
        columns=None if flags.static_columns is None else columns(flags.static_columns),
        age_bands=None if flags.age_bands is None else ages(flags.age_bands),
        bands=tuple(flags.bands) if flags.bands else None,
    )
    return replace(
        settings,
        **given(
            visit=None if flags.visit is None else word(flags.visit, "auto"),
            place_hours=flags.place_within,
            values=None if flags.values is None else str(flags.values),
            kinds=kinds_of(flags, settings.kinds),
            min_visits=flags.min_visits,
            min_patients=flags.min_patients,
            implausible=choice(flags.drop_implausible, "drop", "keep"),
            like=path_text(flags.like),
        ),
        groups=replace(settings.groups, **groups),
        static=replace(settings.static, **static),
        index=index_of(flags, settings.index or index),
        match=match_of(flags, settings.match),
        measurements=replace(settings.measurements, **measurements_of(flags)),
        weights=replace(settings.weights, **weights_of(flags.weight or ())),
    )


def kinds_of(flags: Flags, kinds: tuple[str, ...]) -> tuple[str, ...] | None:
    """The kinds asked for; --measurements and --ranges ask for measurements."""
    if flags.kinds:
        return words(flags.kinds)
    asked = flags.measurements is not None or flags.ranges is not None
    return (*kinds, "measurement") if asked and "measurement" not in kinds else None


def measurements_of(flags: Flags) -> dict[str, Any]:
    return given(
        level=None if flags.measurements is None else str(flags.measurements),
        ranges=path_text(flags.ranges),
        quantiles=None if flags.quantiles is None else quantiles(flags.quantiles),
        learn_from=path_text(flags.learn_from),
    )


def quantiles(text: str) -> Any:
    if text.strip() == "none":
        return NONE
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            "use two numbers, such as 0.1,0.9, or none", param_hint="--quantiles"
        ) from None


def weights_of(pairs: Iterable[str]) -> dict[str, float]:
    from phenotaste.sources.records import KIND_WORDS

    weights = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        kind = next(
            (kind for kind, spellings in KIND_WORDS.items() if name.strip().lower() in spellings), None
        )
        try:
            weights[kind or ""] = float(number)
        except ValueError:
            kind = None
        if kind is None:
            raise typer.BadParameter("use KIND=NUMBER, such as lab=0.5", param_hint="--weight")
    return weights


def index_of(flags: Flags, index: "Index | None") -> "Index | None":
    from phenotaste.build.settings import Index

    changes = given(
        codes=tuple(flags.index) if flags.index else None,
        labels=path_text(flags.labels),
        label_rows=None if flags.label_rows is None else str(flags.label_rows),
        first=None if flags.first is None else word(flags.first, "none"),
        window=flags.window,
        gap=flags.gap,
        washout=flags.washout,
        covered=None if flags.short_history is None else not flags.short_history,
    )
    return replace(index or Index(), **changes) if changes else index


def match_of(flags: Flags, match: "Match | None") -> "Match | None":
    from phenotaste.build.settings import Match

    if flags.match == 0:
        return None
    same = words(flags.match_same or ())
    changes = given(
        ratio=flags.match,
        same=(() if same == ("none",) else same) if flags.match_same else None,
        age_years=flags.match_age,
        encounter_days=flags.match_days,
        seed=flags.match_seed,
        by=None if flags.match_by is None else str(flags.match_by),
    )
    return replace(match or Match(), **changes) if changes else match


NONE = object()  # an option whose value stands for None


def given(**values: Any) -> dict[str, Any]:
    return {name: None if value is NONE else value for name, value in values.items() if value is not None}


def word(text: str, none: str) -> Any:
    return NONE if text == none else str(text)


def choice(flag: bool | None, yes: str, no: str) -> str | None:
    return None if flag is None else yes if flag else no


def words(items: Iterable[str]) -> tuple[str, ...]:
    """Join repeated options, each of which may be a comma-separated list."""
    return tuple(part.strip() for item in items for part in item.split(",") if part.strip())


def columns(text: str) -> Any:
    return NONE if text.strip() == "all" else words([text])


def ages(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter("use integers, such as 60,70,80", param_hint="--age-bands") from None


def path_text(path: Path | None) -> str | None:
    """The absolute path, which stays valid in the settings saved with the cohort."""
    return None if path is None else str(path.absolute())
