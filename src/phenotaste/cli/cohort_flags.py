"""The options that all `phenotaste cohort` commands share, and their conversion to build settings."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from phenotaste.cli.options import Json, ThreadCount

if TYPE_CHECKING:
    from phenotaste.build.settings import Index, Match, Settings

SOURCE, CODES, PATIENTS = "Source", "Visits and features", "Patients and static features"
WINDOW, RUN = "Index, window and controls", "Output and resources"
PANELS = ("Arguments", SOURCE, CODES, PATIENTS, WINDOW, RUN)  # as --help shows them


class VisitChoice(StrEnum):
    ENCOUNTER = "encounter"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    AUTO = "auto"


class ValuesChoice(StrEnum):
    COUNTS = "counts"
    BINARY = "binary"
    LOG = "log"


class CcsChoice(StrEnum):
    SINGLE = "single"
    MULTI3 = "multi3"
    NONE = "none"


def flag(*names: str, panel: str, text: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, show_default=False, **more)


Out = Annotated[Path, flag(panel=RUN, text="Folder of the saved cohort.", metavar="COHORT")]


@dataclass(frozen=True)
class Flags:
    """The options given on the command line; None or empty if not given."""

    visit: Annotated[
        VisitChoice | None,
        flag(panel=CODES, text="Unit of visits: encounter, day, week, month, or auto.", metavar="UNIT"),
    ] = None
    values: Annotated[
        ValuesChoice | None,
        flag(panel=CODES, text="Values of entries: counts, binary or log (of 1 + count).", metavar="KIND"),
    ] = None
    kinds: Annotated[
        list[str] | None,
        flag(panel=CODES, text="Events to use: diagnosis, medication, procedure.", metavar="LIST"),
    ] = None
    ccs: Annotated[
        CcsChoice | None,
        flag(panel=CODES, text="ICD diagnoses as CCS categories: single, multi3 or none.", metavar="LEVEL"),
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
        flag("--ccs-table", panel=CODES, text="Table of code and category for --ccs multi3.", metavar="FILE"),
    ] = None
    keep_unmapped: Annotated[
        bool, flag("--keep-unmapped", panel=CODES, text="Keep ungrouped codes as features of their own.")
    ] = False
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
    window: Annotated[
        int | None, flag(panel=WINDOW, text="Length of the observation window (24).", metavar="MONTHS")
    ] = None
    gap: Annotated[
        int | None,
        flag(panel=WINDOW, text="Time between window and index (6).", metavar="MONTHS"),
    ] = None
    washout: Annotated[
        int | None,
        flag(panel=WINDOW, text="Required history without index codes before the index.", metavar="MONTHS"),
    ] = None
    short_history: Annotated[
        bool, flag("--short-history", panel=WINDOW, text="Include histories that do not cover the window.")
    ] = False
    match: Annotated[
        int | None, flag(panel=WINDOW, text="Maximum number of controls per case.", metavar="RATIO")
    ] = None
    match_same: Annotated[
        list[str] | None,
        flag(panel=WINDOW, text="Columns to match exactly, such as sex.", metavar="LIST"),
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
    drop_implausible: Annotated[
        bool,
        flag(
            "--drop-implausible",
            panel=PATIENTS,
            text="Drop events before birth, after death or in the future.",
        ),
    ] = False
    like: Annotated[
        Path | None,
        flag(panel=PATIENTS, text="Use the features of a fitted model.", metavar="MODEL"),
    ] = None
    settings: Annotated[
        Path | None, flag(panel=RUN, text="TOML file of settings; options override it.", metavar="FILE")
    ] = None
    overwrite: Annotated[bool, flag("--overwrite", panel=RUN, text="Replace an existing COHORT.")] = False
    threads: ThreadCount = None
    memory: Annotated[
        float | None,
        flag(panel=RUN, text="Memory limit of the database, in GB (3).", metavar="GB", min=0.25),
    ] = None
    json_: Json = False


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
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in fields(Flags)
    ]

    @wraps(command)
    def spelt_out(**given: Any) -> None:
        flags = Flags(**{field.name: given.pop(field.name) for field in fields(Flags)})
        command(**given, flags=flags)

    parameters = [*(param.replace(kind=inspect.Parameter.KEYWORD_ONLY) for param in own), *shared]
    spelt_out.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spelt_out.__annotations__ = {param.name: param.annotation for param in parameters}
    return spelt_out


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
        unmapped="keep" if flags.keep_unmapped else None,
    )
    static = given(
        columns=None if flags.static_columns is None else columns(flags.static_columns),
        age_bands=None if flags.age_bands is None else ages(flags.age_bands),
    )
    return replace(
        settings,
        **given(
            visit=None if flags.visit is None else word(flags.visit, "auto"),
            values=None if flags.values is None else str(flags.values),
            kinds=None if not flags.kinds else words(flags.kinds),
            min_visits=flags.min_visits,
            min_patients=flags.min_patients,
            implausible="drop" if flags.drop_implausible else None,
        ),
        groups=replace(settings.groups, **groups),
        static=replace(settings.static, **static),
        index=index_of(flags, settings.index or index),
        match=match_of(flags, settings.match),
    )


def index_of(flags: Flags, index: "Index | None") -> "Index | None":
    from phenotaste.build.settings import Index

    changes = given(
        codes=tuple(flags.index) if flags.index else None,
        labels=path_text(flags.labels),
        window_months=flags.window,
        gap_months=flags.gap,
        washout_months=flags.washout,
        covered=False if flags.short_history else None,
    )
    return replace(index or Index(), **changes) if changes else index


def match_of(flags: Flags, match: "Match | None") -> "Match | None":
    from phenotaste.build.settings import Match

    changes = given(ratio=flags.match, same=words(flags.match_same) if flags.match_same else None)
    return replace(match or Match(), **changes) if changes else match


NONE = object()  # an option whose value stands for None


def given(**values: Any) -> dict[str, Any]:
    return {name: None if value is NONE else value for name, value in values.items() if value is not None}


def word(choice: str, none: str) -> Any:
    return NONE if choice == none else str(choice)


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
