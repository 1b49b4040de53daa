"""`phenotaste score`: the scores of patients under a saved model."""

from pathlib import Path
from typing import Annotated

import typer

from phenotaste.cli.options import CohortFolder, Json, ModelFolder, ReviewFile, Threads
from phenotaste.errors import InputError

NOT_PARQUET = (".csv", ".tsv", ".txt", ".json", ".xlsx")


def score(
    model: ModelFolder,
    cohort: CohortFolder,
    out: Annotated[Path, typer.Option(help="Parquet file, a row for each patient.", show_default=False)],
    courses: Annotated[
        Path | None, typer.Option(help="Parquet file, a row for each visit.", show_default=False)
    ] = None,
    review: ReviewFile = None,
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Score patients under a saved model, each patient on its own.

    Each patient gets a score for every phenotype (phenotype_1, ...), its share of what is explained of the
    patient (share_1, ...), its intensity whatever the length of the history (intensity_1, ...), the number of
    visits, whether that is fewer than phenotypes, and the loss. The files are patient-level: only you can
    read them. An earlier file of the same name is replaced.

    With --review the columns have the reviewer's names (phenotype_Heart failure, ...), merged phenotypes are
    added up and rejected ones left out.

    Example:

        phenotaste score model cohort --out scores.parquet
    """
    from phenotaste import TASTE, Cohort
    from phenotaste.cli.printing import print_json, print_list
    from phenotaste.report.files import check_file
    from phenotaste.report.scores import write_scores

    targets = [check_file(file, (model, cohort)) for file in (out, courses) if file is not None]
    if len(set(targets)) < len(targets):
        raise InputError(f"{courses} is given for both scores and courses: choose two files.")
    if review is not None and review.resolve() in targets:
        raise InputError(f"{review} is the review that is read here: choose another place for the scores.")
    for file in (out, courses):
        if file is not None and file.suffix.lower() in NOT_PARQUET:
            raise InputError(f"{file} would hold Parquet under a misleading name: let it end in .parquet.")
    fitted = TASTE.load(model)
    fitted.n_jobs = threads
    reviewed = None if review is None else fitted.apply_review(review)
    found = write_scores(reviewed or fitted, Cohort.load(cohort), out, courses)
    files = {"scores": str(out)} | ({} if courses is None else {"courses": str(courses)})
    if json_:
        names = {} if reviewed is None else {"names": reviewed.names}
        print_json({**files, **found._asdict(), **names})
        return
    lines = [] if reviewed is None else [("Phenotypes", "; ".join(reviewed.names))]
    lines += [
        ("Patients", f"{found.patients:,}"),
        ("Visits", f"{found.visits:,}"),
        ("Short histories", f"{found.short_histories:,} (fewer visits than phenotypes)"),
        ("Unknown features", f"{found.unknown_features:,} (not in the model, dropped)"),
        ("Absent features", f"{found.absent_features:,} (not in the cohort, taken as zero)"),
    ]
    print_list(f"Scored by {model}", lines + [(name.capitalize(), path) for name, path in files.items()])
