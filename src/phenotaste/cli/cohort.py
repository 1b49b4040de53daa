"""`phenotaste cohort`: build a cohort with its attrition table from a database, claims or files."""

import warnings
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.cohort_flags import SOURCE, WINDOW, Flags, GroupedCommand, Out, flag, with_flags, words
from phenotaste.cli.cohort_run import Source, run

if TYPE_CHECKING:
    from phenotaste.build.settings import Settings
    from phenotaste.sources.records import Records
    from phenotaste.sources.workspace import Workspace

cohort = typer.Typer(
    name="cohort",
    help="Build a cohort from claims, OMOP, MEDS, Synthea or any tables.",
    epilog="Each has its own --help. Settings as a file:  phenotaste cohort --template > settings.toml",
    rich_markup_mode=None,
    add_completion=False,
)


def print_template(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        from phenotaste.build.settings import SOURCES
        from phenotaste.build.toml import template

        typer.echo(template(ctx.info_name if ctx.info_name in SOURCES else None), nl=False)
        raise typer.Exit


Template = Annotated[
    bool,
    typer.Option(
        "--template",
        help="Print a template of the settings file.",
        callback=print_template,
        is_eager=True,
    ),
]


class TimeUnitChoice(StrEnum):
    MINUTES = "minutes"
    HOURS = "hours"
    DAYS = "days"
    ORDER = "order"


class CodesChoice(StrEnum):
    STANDARD = "standard"
    SOURCE = "source"


@cohort.callback(invoke_without_command=True)
def every_source(ctx: typer.Context, template: Template = False) -> None:
    """Build a cohort from claims, OMOP, MEDS, Synthea or any tables."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(2)


@cohort.command(cls=GroupedCommand)
@with_flags
def synpuf(
    folder: Annotated[
        Path, typer.Argument(help="Folder of DE-SynPUF files, gzipped or not.", metavar="FOLDER")
    ],
    out: Out,
    claims: Annotated[
        list[str] | None,
        flag(panel=SOURCE, text="Claims to use: inpatient, outpatient, carrier.", metavar="LIST"),
    ] = None,
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from CMS claims in the format of DE-SynPUF.

    Diagnoses as CCS categories, a visit is a day, as in the paper.

    Example:

        phenotaste cohort synpuf FOLDER --min-visits 5 --min-patients 5 --out COHORT
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import synpuf

        return synpuf.read(workspace, folder, **options)

    options: dict[str, Any] = {"claims": words(claims)} if claims else {}
    run(Source("synpuf", str(folder), read, options), flags, out)


@cohort.command(cls=GroupedCommand)
@with_flags
def omop(
    ctx: typer.Context,
    location: Annotated[
        str,
        typer.Argument(help="DuckDB file, folder of Parquet or CSV, or postgresql://…", metavar="LOCATION"),
    ],
    out: Out,
    schema: Annotated[str | None, flag(panel=SOURCE, text="Schema of the CDM.", metavar="NAME")] = None,
    vocabulary_schema: Annotated[
        str | None,
        flag(panel=SOURCE, text="Schema of the vocabulary, if another.", metavar="NAME"),
    ] = None,
    vocabulary_folder: Annotated[
        Path | None,
        flag(panel=SOURCE, text="Folder of the vocabulary, as Athena delivers it.", metavar="FOLDER"),
    ] = None,
    codes: Annotated[
        CodesChoice | None,
        flag(panel=SOURCE, text="standard concepts, or source codes (default with --ccs).", metavar="WHICH"),
    ] = None,
    source_vocabulary: Annotated[
        str | None,
        flag(panel=SOURCE, text="Of source diagnoses without one; ICD by form.", metavar="NAME"),
    ] = None,
    drugs: Annotated[
        str | None,
        flag(panel=SOURCE, text="auto, ingredient, atc1 to atc5, era or exposure.", metavar="WHICH"),
    ] = None,
    condition_level: Annotated[
        int | None,
        flag(panel=SOURCE, text="Level below the top to roll conditions up to.", metavar="N"),
    ] = None,
    type_concepts: Annotated[
        list[str] | None,
        flag(panel=SOURCE, text="Type concepts to use, such as dx=32821; repeatable.", metavar="[KIND=]ID"),
    ] = None,
    cohort_table: Annotated[
        str | None, flag(panel=SOURCE, text="ATLAS cohort table, such as results.cohort.", metavar="TABLE")
    ] = None,
    cohort_id: Annotated[
        int | None, flag(panel=SOURCE, text="Cohort definition id: population and index.", metavar="N")
    ] = None,
    index_concepts: Annotated[
        Path | None, flag(panel=WINDOW, text="Concept set of ATLAS (JSON) as index codes.", metavar="FILE")
    ] = None,
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from an OMOP CDM 5.3, 5.4 or 5.5.

    A read-only role is sufficient. The password is taken from PGPASSWORD, ~/.pgpass or the address, where
    other users of the machine can see it, and is never printed or stored.

    Examples:

        phenotaste cohort omop cdm.duckdb --visit day --out COHORT

        phenotaste cohort omop postgresql://me@host/db --schema cdm --out COHORT
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import omop
        from phenotaste.sources.records import CODED_KINDS

        groups = settings.groups  # the groupers determine which codes are read
        options.setdefault("codes", "standard" if groups.ccs is None else "source")
        options.setdefault("drugs", "auto" if groups.atc is None else f"atc{groups.atc}")
        coded = index_concepts is not None or (settings.index is not None and settings.index.codes)
        # Index codes may be of another kind than features.
        kinds = tuple(dict.fromkeys((*settings.kinds, *(CODED_KINDS if coded else ()))))
        return omop.read(workspace, location, kinds=kinds, index_concepts=index_concepts, **options)

    from phenotaste.build.settings import Index
    from phenotaste.sources.omop import redacted
    from phenotaste.sources.omop.backends import holds_password

    if holds_password(location):
        warnings.warn(
            "Other users can see the password in the list of processes: use PGPASSWORD or ~/.pgpass instead.",
            stacklevel=2,
        )

    # A grouper given as a flag chooses the codes that are read, also where a settings file names others.
    regrouped = flags.ccs is not None and in_settings_file(ctx, "codes")
    reclassed = flags.atc is not None and in_settings_file(ctx, "drugs")
    options: dict[str, Any] = {
        name: value
        for name, value in (
            ("schema", schema),
            ("vocabulary_schema", vocabulary_schema),
            ("vocabulary_folder", vocabulary_folder),
            ("codes", None if regrouped else codes and str(codes)),
            ("source_vocabulary", source_vocabulary),
            ("drugs", None if reclassed else drugs),
            ("condition_level", condition_level),
            ("type_concepts", words(type_concepts or ()) or None),
            ("cohort_table", cohort_table),
            ("cohort_id", cohort_id),
        )
        if value is not None
    }
    index = None if cohort_id is None and index_concepts is None else Index()
    run(Source("omop", redacted(location), read, options, index), flags, out)


@cohort.command(cls=GroupedCommand)
@with_flags
def meds(
    folder: Annotated[
        Path, typer.Argument(help="Root of a MEDS 0.4 data set.", metavar="FOLDER", show_default=False)
    ],
    out: Out,
    split: Annotated[
        str | None, flag(panel=SOURCE, text="Only this split, as train or held_out.", metavar="NAME")
    ] = None,
    drugs: Annotated[
        str | None,
        flag(panel=SOURCE, text="Drugs with both a name and an NDC code by name or ndc.", metavar="WHICH"),
    ] = None,
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from a MEDS data set.

    With --labels, a file or folder of MEDS labels, windows end at the prediction time unless --gap says
    otherwise.

    Example:

        phenotaste cohort meds FOLDER --out COHORT
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import meds

        return meds.read(workspace, folder, kinds=settings.kinds, **options)

    from phenotaste.build.settings import Index

    index = None if flags.labels is None else Index(gap="0mo")
    options: dict[str, Any] = {
        name: value for name, value in (("split", split), ("drugs", drugs)) if value is not None
    }
    run(Source("meds", str(folder), read, options, index), flags, out)


@cohort.command(cls=GroupedCommand)
@with_flags
def synthea(
    folder: Annotated[Path, typer.Argument(help="Folder of Synthea's CSV files.", metavar="FOLDER")],
    out: Out,
    column: Annotated[
        list[str] | None,
        flag(
            panel=SOURCE, text="Column with another name in old exports; repeatable.", metavar="NAME=COLUMN"
        ),
    ] = None,
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from a CSV export of Synthea.

    Example:

        phenotaste cohort synthea FOLDER --min-visits 5 --min-patients 5 --out COHORT

    A column that has another name in one file of an old export: --column encounters.START=BEGIN
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import synthea

        return synthea.read(workspace, folder, kinds=settings.kinds, **options)

    options: dict[str, Any] = {}
    if column:
        options["columns"] = pairs_of(column, "--column", "NAME=COLUMN, such as START=BEGIN")
    run(Source("synthea", str(folder), read, options), flags, out)


@cohort.command(cls=GroupedCommand)
@with_flags
def tables(
    events: Annotated[
        list[Path],
        flag(panel=SOURCE, text="CSV or Parquet with patient, time, code; repeatable.", metavar="FILE"),
    ],
    out: Out,
    static: Annotated[
        Path | None, flag(panel=SOURCE, text="CSV or Parquet with one row per patient.", metavar="FILE")
    ] = None,
    column: Annotated[
        list[str] | None,
        flag(
            panel=SOURCE, text="Name of a column and its name in the file; repeatable.", metavar="NAME=COLUMN"
        ),
    ] = None,
    kind: Annotated[
        str | None, flag(panel=SOURCE, text="Kind of events without one.", metavar="KIND")
    ] = None,
    vocabulary: Annotated[
        list[str] | None,
        flag(panel=SOURCE, text="Of codes without one: NAME, or KIND=NAME; repeatable.", metavar="NAME"),
    ] = None,
    split_codes: Annotated[
        str | None,
        flag(panel=SOURCE, text='Characters between several codes in a field, ",;".', metavar="CHARACTERS"),
    ] = None,
    time_unit: Annotated[
        TimeUnitChoice | None,
        flag(panel=SOURCE, text="Times are minutes, hours, days from zero, or an order.", metavar="UNIT"),
    ] = None,
    missing: Annotated[
        list[float] | None,
        flag(panel=SOURCE, text="Number that stands for a missing value; repeatable.", metavar="NUMBER"),
    ] = None,
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from a table of events and one of static features.

    Events have patient, time and code, and may have visit, vocabulary or icd_version, kind, value, unit, low, high
    and flag. The static table has patient, may have birth, death and sex, and every further column is a static
    feature.

    Example:

        phenotaste cohort tables --events E.parquet --static S.csv --out COHORT

    With another column name:

        phenotaste cohort tables --events E.csv --column patient=pid --out COHORT

    In the static table only: --column static.patient=subject; in the events: --column events.patient=pid.
    --column label=died makes a column of the static table the label of each patient.
    --vocabulary ICD reads codes as ICD-9-CM or ICD-10-CM by their form.
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import tables

        return tables.read(workspace, events, static, kinds=settings.kinds, **options)

    options: dict[str, Any] = {
        "columns": pairs_of(column or (), "--column", "NAME=COLUMN, such as patient=pid"),
        "kind": kind,
        "vocabulary": vocabularies(vocabulary or ()),
        "split": split_codes,
        "time_unit": None if time_unit is None else str(time_unit),
        "missing": tuple(missing or ()),
    }
    run(Source("tables", ", ".join(map(str, events)), read, options), flags, out)


def in_settings_file(ctx: typer.Context, name: str) -> bool:
    """Whether an option has its value from the settings file."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT_MAP"


def vocabularies(given: Sequence[str]) -> str | dict[str, str] | None:
    """One vocabulary for all kinds, or one for each."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    return pairs_of(given, "--vocabulary", "one NAME, or KIND=NAME, such as medication=NDC") or None


def pairs_of(given: Sequence[str], option: str, usage: str) -> dict[str, str]:
    """The pairs NAME=VALUE of a repeated option."""
    pairs: dict[str, str] = {}
    for pair in given:
        ours, equals, theirs = pair.partition("=")
        if not (ours.strip() and equals and theirs.strip()):
            raise typer.BadParameter(f"use {usage}", param_hint=option)
        if pairs.setdefault(ours.strip(), theirs.strip()) != theirs.strip():
            raise typer.BadParameter(f"{ours.strip()} is given twice", param_hint=option)
    return pairs
