"""`phenotaste export`: phenotype membership in the formats of other tools, and models that may be passed on."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phenotaste.cli.options import Json, ModelFolder, ReviewFile, ThreadCount
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste import Cohort
    from phenotaste.ecosystem.membership import Exported, Rule

PATIENT_LEVEL = "patient-level: only you can read it; keep it where the data is"


class FormatChoice(StrEnum):
    MEDS_LABELS = "meds-labels"
    OMOP_COHORT = "omop-cohort"
    ANNDATA = "anndata"
    MODEL = "model"


class MeasureChoice(StrEnum):
    SHARE = "share"
    SCORE = "score"
    AMOUNT = "amount"


def export(
    model: ModelFolder,
    to: Annotated[FormatChoice, typer.Option(help="What to write.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="Folder to write; for anndata a file, as x.h5ad.", show_default=False)
    ],
    cohort: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of a saved cohort; none with --to model.", metavar="[COHORT]", show_default=False
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="A patient has a phenotype from here on; one half of the share by default."),
    ] = None,
    by: Annotated[
        MeasureChoice, typer.Option(help="What the threshold is of, as phenotaste score has it.")
    ] = MeasureChoice.SHARE,
    first_id: Annotated[
        int | None,
        typer.Option(help="The first phenotype's cohort_definition_id; 1 by default.", show_default=False),
    ] = None,
    review: ReviewFile = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    threads: ThreadCount = None,
    json_: Json = False,
) -> None:
    """Write who has which phenotype for other tools: MEDS labels, OMOP cohort rows, AnnData; or a shareable model.

    meds-labels: a Parquet file for each phenotype, in the label schema of MEDS. omop-cohort: cohort.csv and
    cohort_definition.csv, to load into a results schema. Both come with definition.json, which records the threshold,
    the model and what each phenotype is made of. anndata: one file with totals, static facts, scores, definitions and
    visits. With --review, phenotypes have the reviewer's names.

    The first two need visits with dates and whole numbers as patient ids. All three are patient-level: only you can
    read them.

    model: a copy of the model that may be passed on. Features and levels that fewer than 11 patients of the fit have
    are dropped, counts are rounded, and it scores new patients as before without them. It needs no cohort.

    Example:

        phenotaste export model cohort --to omop-cohort --out cohorts

        phenotaste export model --to model --out shareable
    """
    if to is FormatChoice.MODEL:
        unused = (cohort, threshold, first_id, review)
        if any(option is not None for option in unused) or by is not MeasureChoice.SHARE:
            raise InputError(
                "--to model takes the model only: leave out the cohort and all options but --out."
            )
        export_model(model, out, overwrite, json_)
        return
    if cohort is None:
        raise InputError(
            f"--to {to} writes patients: give the folder of their cohort after that of the model."
        )
    from phenotaste import TASTE, Cohort
    from phenotaste.ecosystem import write_anndata, write_meds_labels, write_omop_cohort
    from phenotaste.ecosystem.anndata import import_anndata

    rule = membership_rule(to, by, threshold, first_id)
    check_output(out, to is FormatChoice.ANNDATA, overwrite, (model, cohort), review)
    if to is FormatChoice.ANNDATA:
        import_anndata()
    fitted = TASTE.load(model)
    fitted.n_jobs = threads
    chosen = fitted.reviewed(review) or fitted
    patients = Cohort.load(cohort)
    if to is FormatChoice.ANNDATA:
        write_anndata(patients, out, chosen)
        print_object(patients, out, json_)
    elif to is FormatChoice.MEDS_LABELS:
        print_members(write_meds_labels(chosen, patients, out, rule, overwrite=overwrite), out, to, json_)
    else:
        written = write_omop_cohort(
            chosen, patients, out, rule, first_id=1 if first_id is None else first_id, overwrite=overwrite
        )
        print_members(written, out, to, json_)


def export_model(model: Path, out: Path, overwrite: bool, json_: bool) -> None:
    """Write the shareable copy of a model of any method that has one."""
    from phenotaste.cli.options import check_replaceable, load_factorization
    from phenotaste.cli.terminal import print_json, print_list

    if out.resolve() == model.resolve():
        raise InputError(f"{out} is the model itself: choose another --out.")
    fitted = load_factorization(model)
    check_replaceable(out, overwrite, type(fitted).load)
    dropped = fitted.save(out, shareable=True)
    assert dropped is not None
    if json_:
        print_json(
            {"format": "model", "files": [str(out)], "patient_level": False, "dropped": dropped._asdict()}
        )
        return
    rounded = "numbers of patients are rounded to multiples of 5, and small ones withheld"
    print_list(f"Shareable model written to {out}", [("Left out", dropped.text()), ("Counts", rounded)])


def membership_rule(
    to: FormatChoice, by: MeasureChoice, threshold: float | None, first_id: int | None
) -> "Rule":
    """The membership rule; options that do not apply to the format are refused rather than ignored."""
    from phenotaste.ecosystem.membership import MAJORITY, Rule

    if to is FormatChoice.ANNDATA and (threshold is not None or by is not MeasureChoice.SHARE):
        raise InputError("AnnData holds scores, not memberships: leave out --threshold and --by.")
    if to is not FormatChoice.OMOP_COHORT and first_id is not None:
        raise InputError(f"{to} has no cohort ids: leave out --first-id.")
    if threshold is None and by is not MeasureChoice.SHARE:
        raise InputError(
            f"There is no threshold that suits every {by}: look at those that phenotaste score writes, and give "
            "--threshold."
        )
    rule = Rule(by.value, MAJORITY if threshold is None else threshold)
    rule.check()
    return rule


def check_output(
    out: Path, one_file: bool, overwrite: bool, inputs: tuple[Path, ...], review: Path | None
) -> None:
    """Check the output before the projection."""
    from phenotaste.ecosystem.exports import check_export_folder
    from phenotaste.storage.atomic import check_output_file

    if review is not None and review.resolve() == out.resolve():
        raise InputError(f"{review} is the review that is read here: choose another --out.")
    if not one_file:
        check_export_folder(out, overwrite, inputs)
    elif check_output_file(out, inputs).exists() and not overwrite:
        raise InputError(f"{out} exists already: choose another place, or add --overwrite to replace it.")


def print_members(found: "Exported", out: Path, to: str, json_: bool) -> None:
    from phenotaste.cli.terminal import print_json, print_list

    if json_:
        files = [str(out / name) for name in found.files]
        print_json({"format": str(to), **found._asdict(), "files": files, "patient_level": True})
        return
    members = zip(found.names, found.members, strict=True)
    few = "withheld: too few have it, or have not"

    def about(count: int | None) -> str:
        return "withheld" if count is None else f"about {count:,}"

    advice = [
        ("Advice", "look at the shares that phenotaste score writes: another --threshold may suit better")
    ]
    print_list(
        f"Written to {out}",
        [
            ("Patients", about(found.patients)),
            ("Left out", f"{about(found.without_visits)} (without visits, so without a date)"),
            *((name, few if count is None else f"{about(count)} patients") for name, count in members),
            *(advice if not all(found.members) else []),  # some phenotype has few members or none
            ("Files", ", ".join(found.files)),
            ("Note", PATIENT_LEVEL),
        ],
    )


def print_object(patients: "Cohort", out: Path, json_: bool) -> None:
    from phenotaste.cli.terminal import print_json, print_list

    if json_:
        counts = {"patients": len(patients), "features": patients.n_features, "visits": patients.n_visits}
        print_json({"format": "anndata", **counts, "files": [str(out)], "patient_level": True})
        return
    print_list(
        f"Written to {out}",
        [
            ("Patients", f"{len(patients):,}"),
            ("Features", f"{patients.n_features:,}"),
            ("Visits", f"{patients.n_visits:,}"),
            ("Note", PATIENT_LEVEL),
        ],
    )
