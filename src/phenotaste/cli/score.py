"""`phenotaste score`: scores of patients under a saved model."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from phenotaste.cli.options import CohortFolder, Json, ModelFolder, ReviewFile, ThreadCount
from phenotaste.errors import InputError

NOT_PARQUET = (".csv", ".tsv", ".txt", ".json", ".xlsx")
SHAREABLE = "shareable: without features that too few patients of its fit have"
NOT_SHAREABLE = "not shareable: it may name what a single patient of its fit has"
EXPORT = " (phenotaste export --to model)"


def score(
    model: ModelFolder,
    cohort: CohortFolder,
    out: Annotated[Path, typer.Option(help="Parquet file with one row per patient.", show_default=False)],
    courses: Annotated[
        Path | None, typer.Option(help="Parquet file with one row per visit.", show_default=False)
    ] = None,
    review: ReviewFile = None,
    threads: ThreadCount = None,
    json_: Json = False,
) -> None:
    """Score patients with a saved model.

    Patients are scored independently of each other. A row of --out has three columns for every phenotype, then
    the number of visits, whether that is less than the number of phenotypes, and the loss:

    phenotype_1, ...: the score, the size of the phenotype relative to the patient's whole record.

    amount_1, ...: the same in the data's own units, which grows with the length of the history.

    share_1, ...: its part of the squared sizes of all phenotypes, which add up to 1 or, without a history, are 0.

    Where a patient has several rows, one for each index time, the column group has the patient.

    MODEL is one of phenotaste fit, or of any baseline with phenotypes, as its save() writes it. Of a method without
    courses, such as PatientNMF or Limestone, the score is in the data's own units, as the amount is; there is no loss,
    no history is too short, and --courses is refused.

    A row of --courses has the size of every phenotype at that visit, score × course. The files are patient-level
    and readable by their owner only. An existing file is replaced.

    With --review the columns have the reviewer's names (phenotype_Heart failure, ...), merged phenotypes are
    summed and rejected ones omitted.

    Example:

        phenotaste score model cohort --out scores.parquet
    """
    from phenotaste import Cohort
    from phenotaste.cli.options import load_model
    from phenotaste.cli.terminal import print_json, print_list
    from phenotaste.cohort.origin import build_settings, warning
    from phenotaste.report.scores import check_courses, write_scores
    from phenotaste.storage.atomic import check_output_file

    targets = [check_output_file(file, (model, cohort)) for file in (out, courses) if file is not None]
    if len(set(targets)) < len(targets):
        raise InputError(f"{courses} is given for both scores and courses: choose two files.")
    if review is not None and review.resolve() in targets:
        raise InputError(f"{review} is the review given by --review: choose another file for the scores.")
    for file in (out, courses):
        if file is not None and file.suffix.lower() in NOT_PARQUET:
            raise InputError(f"{file} does not have the suffix of a Parquet file: end its name in .parquet.")
    fitted = load_model(model, threads)
    if courses is not None:
        check_courses(fitted)
    reviewed = fitted.reviewed(review)
    loaded = Cohort.load(cohort)
    sentence = warning(getattr(fitted, "cohort_settings_", None), build_settings(loaded.origin))
    if sentence is not None:
        warnings.warn(sentence, stacklevel=2)
    written = write_scores(reviewed or fitted, loaded, out, courses)
    files = {"scores": str(out)} | ({} if courses is None else {"courses": str(courses)})
    if json_:
        names = {} if reviewed is None else {"names": reviewed.names}
        notes = {"warnings": [sentence] if sentence else [], "model_shareable": fitted.shareable_}
        figures = {name: value for name, value in written._asdict().items() if value is not None}
        print_json({**files, **figures, **names, **notes})
        return
    lines = [] if reviewed is None else [("Phenotypes", "; ".join(reviewed.names))]
    lines += [("Patients", f"{written.patients:,}"), ("Visits", f"{written.visits:,}")]
    if written.short_histories is not None:
        lines.append(("Short histories", f"{written.short_histories:,} (fewer visits than phenotypes)"))
    lines += [
        ("Unknown features", f"{written.unknown_features:,} (not in the model, dropped)"),
        ("Absent features", f"{written.absent_features:,} (not in the cohort, set to zero)"),
    ]
    lines.append(("Model", SHAREABLE if fitted.shareable_ else NOT_SHAREABLE + EXPORT * fitted.has_courses))
    print_list(f"Scored with {model}", lines + [(name.capitalize(), path) for name, path in files.items()])
