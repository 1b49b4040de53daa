"""The page, and with it figures and tables, of a model: all from one content, so that they never disagree."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate
from phenotaste.errors import InputError
from phenotaste.report import evidence
from phenotaste.report.files import check_file, check_folder, filling, replacing
from phenotaste.review import Review

if TYPE_CHECKING:
    from phenotaste.factorization import Factorization
    from phenotaste.report.record import Content

Place = str | os.PathLike[str]


def write(
    model: "Factorization",
    path: Place,
    cohort: Cohort | None = None,
    *,
    review: Place | Mapping[str, Any] | Review | None = None,
    selection: Place | None = None,
    figures: Place | None = None,
    tables: Place | None = None,
    title: str | None = None,
    trusted: bool = False,
    step: Callable[[str], object] = lambda text: None,
) -> "Content":
    """Write the review page of a fitted model as one HTML file, and return what is on it.

    Who has the phenotypes, and how they run, is told of `cohort`, else of the patients that the model holds; without
    either, definitions and fit are all there is. `review` names, merges and drops phenotypes; `selection` is the
    folder of `phenotaste select`, for how stable they are. `figures` and `tables` are folders for the same as
    PNG and PDF, CSV and LaTeX. Nothing shown stands for fewer than 11 patients, unless `trusted` switches that off.
    All files are there at the end, or none. `step` is told what is being done.

    Examples
    --------
    >>> from phenotaste import TASTE, report, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> model = TASTE(rank=3, random_state=0).fit(cohort)
    >>> content = report.write(model, "report.html", cohort)
    >>> len(content.phenotypes), content.fewest  # nothing on the page stands for fewer patients than that
    (3, 11)
    >>> open("report.html").read(15)
    '<!doctype html>'
    """
    folders = [check_folder(folder) for folder in (figures, tables) if folder is not None]
    if check_file(path) in folders:
        raise InputError(f"{path} is given for the page and for a folder: choose two names.")
    check_signs(model)
    content = content_of(model, cohort, review, selection, title, trusted, step)
    with ExitStack() as files:  # what is entered last takes its place first, and fails before the rest does
        if figures is not None:
            from phenotaste.report.model_figures import save_all as save_figures

            step("drawing figures")
            save_figures(content, files.enter_context(filling(figures, private=trusted)))
        if tables is not None:
            from phenotaste.report.tables import save_all as save_tables

            step("writing tables")
            save_tables(content, files.enter_context(filling(tables, private=trusted)))
        step("writing the page")
        files.enter_context(replacing(path, private=trusted)).write(page_of(content))
    return content


def content_of(
    model: "Factorization",
    cohort: Cohort | None,
    review: Place | Mapping[str, Any] | Review | None,
    selection: Place | None,
    title: str | None,
    trusted: bool,
    step: Callable[[str], object],
) -> "Content":
    from phenotaste.report import content

    reviewed = None if review is None else model.apply_review(review)
    found = None if selection is None else evidence.read(selection, model)
    named = {} if title is None else {"title": title}
    step("looking at the patients" if cohort is not None else "looking at the model")
    return content.build(
        reviewed or model,
        cohort,
        gate=Gate(trusted=trusted),
        selection=found,
        review=None if reviewed is None else reviewed.review,
        **named,
    )


def page_of(content: "Content") -> bytes:
    from phenotaste.report.page import render

    return render(content).encode()


def check_signs(model: "Factorization") -> None:
    if model.get_params().get("nonnegative") is False:
        raise InputError(
            "The definitions of this model may be negative, which no page can show as weights: "
            "fit it with nonnegative=True."
        )
