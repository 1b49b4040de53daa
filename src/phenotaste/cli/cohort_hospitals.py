"""`phenotaste cohort` for hospital records in their native tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.cohort import Template
from phenotaste.cli.cohort_flags import SOURCE, Flags, Out, flag, with_flags, words
from phenotaste.cli.cohort_run import Source, run

if TYPE_CHECKING:
    from phenotaste.build.settings import Settings
    from phenotaste.sources.records import Records
    from phenotaste.sources.workspace import Workspace


def kinds_to_read(settings: "Settings") -> tuple[str, ...]:
    """The kinds of features; with index codes, which may be of another kind, all that are codes."""
    from phenotaste.sources.records import DIAGNOSIS, MEDICATION, PROCEDURE

    coded = settings.index is not None and settings.index.codes
    return tuple(dict.fromkeys([*settings.kinds, *((DIAGNOSIS, MEDICATION, PROCEDURE) if coded else ())]))


@with_flags
def mimic4(
    folder: Annotated[
        Path, typer.Argument(help="Folder of MIMIC-IV's CSV files, or of hosp.", metavar="FOLDER")
    ],
    out: Out,
    drugs: Annotated[
        str | None, flag(panel=SOURCE, text="Prescriptions by name (default) or ndc.", metavar="WHICH")
    ] = None,
    drug_types: Annotated[
        list[str] | None,
        flag(panel=SOURCE, text="Of MAIN, ADDITIVE and BASE; default the first two.", metavar="LIST"),
    ] = None,
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from the native hospital tables of MIMIC-IV.

    Admissions are visits; diagnoses are dated at discharge. Missing tables are named.

    Example:

        phenotaste cohort mimic4 FOLDER --kinds diagnosis,medication,procedure --out COHORT
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import mimic4

        return mimic4.read(workspace, folder, kinds=kinds_to_read(settings), **options)

    options: dict[str, Any] = {"drugs": drugs} if drugs else {}
    if drug_types:
        options["drug_types"] = words(drug_types)
    run(Source("mimic4", str(folder), read, options), flags, out)


@with_flags
def eicu(
    folder: Annotated[Path, typer.Argument(help="Folder of eICU's CSV files.", metavar="FOLDER")],
    out: Out,
    stays: Annotated[
        str | None,
        flag(panel=SOURCE, text="A patient is a hospital (default) or unit stay.", metavar="WHICH"),
    ] = None,
    codes: Annotated[
        str | None, flag(panel=SOURCE, text="Diagnoses as icd9 (default), icd10 or text.", metavar="WHICH")
    ] = None,
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from the native tables of eICU.

    Each hospital stay is a patient, and visits are days from its admission. Missing tables are named.

    Example:

        phenotaste cohort eicu FOLDER --kinds diagnosis,medication,measurement --out COHORT
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import eicu

        return eicu.read(workspace, folder, kinds=kinds_to_read(settings), **options)

    options: dict[str, Any] = {
        name: value for name, value in (("stays", stays), ("codes", codes)) if value is not None
    }
    run(Source("eicu", str(folder), read, options), flags, out)


@with_flags
def fhir(
    folder: Annotated[Path, typer.Argument(help="Folder of NDJSON files.", metavar="FOLDER")],
    out: Out,
    medications: Annotated[
        list[str] | None,
        flag(panel=SOURCE, text="Of request, administration, statement; default all.", metavar="LIST"),
    ] = None,
    condition_date: Annotated[
        str | None,
        flag(panel=SOURCE, text="Date of conditions: recorded (default) or onset.", metavar="WHICH"),
    ] = None,
    template: Template = False,
    *,
    flags: Flags,
) -> None:
    """Build a cohort from a FHIR bulk export (NDJSON).

    Resources: Patient, Encounter, Condition, MedicationRequest, MedicationAdministration, MedicationStatement,
    Procedure, Observation. Missing ones are named.

    Example:

        phenotaste cohort fhir FOLDER --kinds diagnosis,medication,measurement --out COHORT
    """

    def read(workspace: "Workspace", settings: "Settings") -> "Records":
        from phenotaste.sources import fhir

        return fhir.read(workspace, folder, kinds=kinds_to_read(settings), **options)

    options: dict[str, Any] = {"condition_date": condition_date} if condition_date else {}
    if medications:
        options["medications"] = words(medications)
    run(Source("fhir", str(folder), read, options), flags, out)


HOSPITALS = (mimic4, eicu, fhir)
