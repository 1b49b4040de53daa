"""`phenotaste score`: scores of patients under a saved model."""

from pathlib import Path
from typing import Annotated

import typer

from phenotaste.cli.options import CohortFolder, Json, ModelFolder, ReviewFile, ThreadCount
from phenotaste.errors import InputError

NOT_PARQUET = (".csv", ".tsv", ".txt", ".json", ".xlsx")


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

    Patients are scored independently of each other. The columns are, for every phenotype, its score
    (phenotype_1, ...), its share of what the model explains of the patient (share_1, ...) and its intensity,
    which does not depend on the length of the history (intensity_1, ...); then the number of visits, whether
    that is less than the number of phenotypes, and the loss. The files are patient-level and readable by
    their owner only. An existing file is replaced.

    With --review the columns have the reviewer's names (phenotype_Heart failure, ...), merged phenotypes are
    summed and rejected ones omitted.

    Example:

        phenotaste score model cohort --out scores.parquet
    """
    from phenotaste import TASTE, Cohort
    from phenotaste.cli.terminal import print_json, print_list
    from phenotaste.report.scores import write_scores
    from phenotaste.storage.atomic import check_output_file

    targets = [check_output_file(file, (model, cohort)) for file in (out, courses) if file is not None]
    if len(set(targets)) < len(targets):
        raise InputError(f"{courses} is given for both scores and courses: choose two files.")
    if review is not None and review.resolve() in targets:
        raise InputError(f"{review} is the review given by --review: choose another file for the scores.")
    for file in (out, courses):
        if file is not None and file.suffix.lower() in NOT_PARQUET:
            raise InputError(f"{file} does not have the suffix of a Parquet file: end its name in .parquet.")
    fitted = TASTE.load(model)
    fitted.n_jobs = threads
    reviewed = None if review is None else fitted.apply_review(review)
    written = write_scores(reviewed or fitted, Cohort.load(cohort), out, courses)
    files = {"scores": str(out)} | ({} if courses is None else {"courses": str(courses)})
    if json_:
        names = {} if reviewed is None else {"names": reviewed.names}
        print_json({**files, **written._asdict(), **names})
        return
    lines = [] if reviewed is None else [("Phenotypes", "; ".join(reviewed.names))]
    lines += [
        ("Patients", f"{written.patients:,}"),
        ("Visits", f"{written.visits:,}"),
        ("Short histories", f"{written.short_histories:,} (fewer visits than phenotypes)"),
        ("Unknown features", f"{written.unknown_features:,} (not in the model, dropped)"),
        ("Absent features", f"{written.absent_features:,} (not in the cohort, set to zero)"),
    ]
    print_list(f"Scored with {model}", lines + [(name.capitalize(), path) for name, path in files.items()])
