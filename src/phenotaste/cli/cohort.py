"""`phenotaste cohort`: build a cohort with its attrition table from a database, claims or files."""

from collections.abc import Sequence
from dataclasses import replace
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
    location: Annotated[
        str,
        typer.Argument(help="DuckDB file, folder of Parquet or CSV, or postgresql://…", metavar="LOCATION"),
    ],
    out: Out,
    schema: Annotated[str | None, flag(panel=SOURCE, text="Schema of the CDM.", metavar="NAME")] = None,
    codes: Annotated[
        CodesChoice | None,
        flag(panel=SOURCE, text="standard concepts, or source codes (default with --ccs).", metavar="WHICH"),
    ] = None,
    source_vocabulary: Annotated[
        str | None,
        flag(panel=SOURCE, text="Vocabulary of source diagnoses without one.", metavar="NAME"),
    ] = None,
    drugs: Annotated[
        str | None,
        flag(panel=SOURCE, text="auto, ingredient, atc1 to atc5, era or exposure.", metavar="WHICH"),
    ] = None,
    condition_level: Annotated[
        int | None,
        flag(panel=SOURCE, text="Level below the top to roll conditions up to.", metavar="N"),
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
    """Build a cohort from an OMOP CDM 5.3 or 5.4.

    A read-only role is sufficient. The password is taken from the address, PGPASSWORD or ~/.pgpass, and is
    never printed or stored.

    Examples:

        phenotaste cohort omop cdm.duckdb --visit day --out COHORT

        phenotaste cohort omop postgresql://me@host/db --schema cdm --out COHORT
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import omop
        from phenotaste.sources.records import KINDS

        groups = settings.groups  # the groupers determine which codes are read
        options.setdefault("codes", "standard" if groups.ccs is None else "source")
        options.setdefault("drugs", "auto" if groups.atc is None else f"atc{groups.atc}")
        coded = index_concepts is not None or (settings.index is not None and settings.index.codes)
        kinds = KINDS if coded else settings.kinds  # index codes may be of another kind than features
        return omop.read(workspace, location, kinds=kinds, index_concepts=index_concepts, **options)

    from phenotaste.build.settings import Index
    from phenotaste.sources.omop import redacted

    options: dict[str, Any] = {
        name: value
        for name, value in (
            ("schema", schema),
            ("codes", codes and str(codes)),
            ("source_vocabulary", source_vocabulary),
            ("drugs", drugs),
            ("condition_level", condition_level),
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
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from a MEDS data set.

    With --labels, here a file or folder of MEDS labels, windows end at the prediction time unless --gap says
    otherwise.

    Example:

        phenotaste cohort meds FOLDER --out COHORT
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import meds

        return meds.read(workspace, folder, labels=flags.labels, split=split)

    from phenotaste.build.settings import Index

    index = None if flags.labels is None else Index(gap_months=0)
    options = {"labels": None if flags.labels is None else str(flags.labels), "split": split}
    run(Source("meds", str(folder), read, options, index), replace(flags, labels=None), out)


@cohort.command(cls=GroupedCommand)
@with_flags
def synthea(
    folder: Annotated[Path, typer.Argument(help="Folder of Synthea's CSV files.", metavar="FOLDER")],
    out: Out,
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from a CSV export of Synthea.

    Example:

        phenotaste cohort synthea FOLDER --min-visits 5 --min-patients 5 --out COHORT
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import synthea

        return synthea.read(workspace, folder)

    run(Source("synthea", str(folder), read, {}), flags, out)


@cohort.command(cls=GroupedCommand)
@with_flags
def tables(
    events: Annotated[
        Path,
        flag(panel=SOURCE, text="CSV or Parquet with patient, time, code.", metavar="FILE"),
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
        str | None, flag(panel=SOURCE, text="Vocabulary of codes without one.", metavar="NAME")
    ] = None,
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from a table of events and one of static features.

    Events have patient, time and code, and may have visit, vocabulary, kind and value. The static table
    has patient, may have birth, death and sex, and every further column is a static feature.

    Example:

        phenotaste cohort tables --events E.parquet --static S.csv --out COHORT

    With another column name:

        phenotaste cohort tables --events E.csv --column patient=pid --out COHORT
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import tables

        return tables.read(workspace, events, static, **options)

    options: dict[str, Any] = {"columns": column_names(column or ()), "kind": kind, "vocabulary": vocabulary}
    run(Source("tables", str(events), read, options), flags, out)


def column_names(pairs: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not (ours.strip() and equals and theirs.strip()):
            raise typer.BadParameter("use NAME=COLUMN, such as patient=pid", param_hint="--column")
        if names.setdefault(ours.strip(), theirs.strip()) != theirs.strip():
            raise typer.BadParameter(f"{ours.strip()} is given twice", param_hint="--column")
    return names
