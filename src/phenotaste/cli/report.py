"""`phenotaste report`: write the page on which a clinician reviews the phenotypes of a model."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.options import Json, ModelFolder, ThreadCount
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste.report.schema import Content


def report(
    model: ModelFolder,
    out: Annotated[Path, typer.Option(help="HTML file to write.", show_default=False)],
    cohort: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a saved cohort; without one the page shows definitions and fit only.",
            metavar="COHORT",
            show_default=False,
        ),
    ] = None,
    review: Annotated[
        list[Path] | None,
        typer.Option(
            help="A review.json saved by a report page: names, merges, rejections. May be given several times.",
            show_default=False,
        ),
    ] = None,
    previous: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the model that the review is of, for a second round with MODEL.",
            metavar="MODEL",
            show_default=False,
        ),
    ] = None,
    selection: Annotated[
        Path | None,
        typer.Option(
            help="Folder of phenotaste select that chose this model, for stability.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Folder for figures, as PNG and PDF.", metavar="DIR", show_default=False),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(help="Folder for tables, as CSV and LaTeX.", metavar="DIR", show_default=False),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Phenotypes",
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted",
            help="SHOW SMALL COUNTS TOO: numbers of fewer than 11 patients. Only those who may see patient data "
            "may receive such a page.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files of an earlier report.")
    ] = False,
    threads: ThreadCount = None,
    json_: Json = False,
) -> None:
    """Write the page on which clinicians review phenotypes.

    The page is a single HTML file that opens in any browser, without a network. Its button saves review.json; with
    --review the names, merges and rejections in that file are applied to the page, the figures and the tables. Nothing
    shown is about fewer than 11 patients unless --trusted is given.

    With --previous the review is of that model: the page shows what changed since, and phenotypes that are the same
    keep their names and decisions. With --review given twice the page shows both, first where the reviewers disagree.

    Example:

        phenotaste report model --cohort cohort --out report.html

    With a review, and everything for a paper:

        phenotaste report model --cohort cohort --review review.json --tables t --figures f --out r.html

    A second round, with a new model:

        phenotaste report model2 --cohort cohort --previous model --review review.json --out report2.html
    """
    from phenotaste import Cohort
    from phenotaste import report as reports
    from phenotaste.cli.options import load_model
    from phenotaste.cli.terminal import step_progress

    inputs = tuple(folder for folder in (model, cohort, previous) if folder is not None)
    check_outputs(out, figures, tables, inputs, review or [], overwrite)
    if trusted:
        typer.echo(
            "Note: --trusted shows numbers of fewer than 11 patients: protect these files like the data.",
            err=True,
        )
    fitted = load_model(model)
    patients = None if cohort is None else Cohort.load(cohort)
    fitted.set_params(n_jobs=threads)
    with step_progress() as step:
        content = reports.write(
            fitted,
            out,
            patients,
            review=review,
            previous=None if previous is None else load_model(previous),
            selection=selection,
            figures=figures,
            tables=tables,
            title=title,
            trusted=trusted,
            on_step=step,
        )
    print_report(content, {"report": out, "figures": figures, "tables": tables}, json_)


def check_outputs(
    out: Path,
    figures: Path | None,
    tables: Path | None,
    inputs: tuple[Path, ...],
    reviews: list[Path],
    overwrite: bool,
) -> None:
    """Refuse invalid outputs before any work is done."""
    from phenotaste.storage.atomic import check_output_file, check_output_folder

    page = check_output_file(out, inputs)
    folders = [check_output_folder(folder, inputs) for folder in (figures, tables) if folder is not None]
    if page in [review.resolve() for review in reviews]:
        raise InputError(f"{out} is the review file to read: choose another --out.")
    existing = [out] if page.exists() else []
    existing += [folder for folder in folders if folder.is_dir() and any(os.scandir(folder))]
    if existing and not overwrite:
        raise InputError(
            f"{existing[0]} exists already: choose another path, or add --overwrite to replace it."
        )


def print_report(content: "Content", paths: dict[str, Path | None], json_: bool) -> None:
    from phenotaste.cli.terminal import print_json, print_list

    files = {name: str(path) for name, path in paths.items() if path is not None}
    names = [phenotype.name or f"Phenotype {phenotype.number}" for phenotype in content.phenotypes]
    if json_:
        record: dict[str, Any] = {**files, "phenotypes": names, "fingerprint": content.fingerprint}
        if content.changes is not None:
            record["changes"] = count_changes(content)
        if content.agreement is not None:
            record["agreement"] = content.agreement
        print_json({**record, "hidden": len(content.audit), "trusted": content.trusted})
        return
    changed = ", ".join(f"{count} {kind}" for kind, count in count_changes(content).items())
    hidden = f"{len(content.audit):,} (numbers of too few patients; the page lists them)"
    print_list(
        "Report written",
        [
            ("Phenotypes", "; ".join(names)),
            *([] if content.agreement is None else [("Reviews", content.agreement)]),
            *([] if content.changes is None else [("Since the last review", changed)]),
            ("Not shown", "nothing is hidden: --trusted" if content.trusted else hidden),
            *((name.capitalize(), path) for name, path in files.items()),
        ],
    )


def count_changes(content: "Content") -> dict[str, int]:
    """Numbers of phenotypes that are the same as in the last review, moved, new and gone."""
    kinds = [phenotype.change.kind for phenotype in content.phenotypes if phenotype.change is not None]
    gone = 0 if content.changes is None else len(content.changes.gone)
    return {
        "same": kinds.count("same"),
        "moved": kinds.count("moved"),
        "new": kinds.count("new"),
        "gone": gone,
    }
