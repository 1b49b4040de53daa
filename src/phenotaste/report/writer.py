"""Write the page of a model, its figures and its tables, all from one content, so that they always agree."""

import base64
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate, printable
from phenotaste.errors import InputError
from phenotaste.report.schema import Content
from phenotaste.review import Review
from phenotaste.storage.atomic import (
    check_output_file,
    check_output_folder,
    remove_stale_drafts,
    replace_file,
    write_folder,
)

if TYPE_CHECKING:
    from phenotaste.factorization import Factorization
    from phenotaste.report.rounds import LastReview
    from phenotaste.report.schema import Content

PathLike = str | os.PathLike[str]
AnyReview = PathLike | Mapping[str, Any] | Review


def write(
    model: "Factorization",
    path: PathLike,
    cohort: Cohort | None = None,
    *,
    review: AnyReview | Sequence[AnyReview] | None = None,
    previous: "Factorization | None" = None,
    selection: PathLike | None = None,
    figures: PathLike | None = None,
    tables: PathLike | None = None,
    title: str = "Phenotypes",
    trusted: bool = False,
    on_step: Callable[[str], object] = lambda text: None,
) -> "Content":
    """Write the review page of a fitted model as one HTML file, and return its content.

    Nothing shown is about fewer than 11 patients unless `trusted`: counts are rounded, and small ones withheld (see
    `disclosure`). Either all files are written, or none.

    Parameters
    ----------
    model : a fitted model.
    path : the HTML file.
    cohort : patients to describe; by default those of the fit, if the model has them. Without either, the page shows
        definitions and fit only.
    review : a review whose names, merges and rejections are applied. Of several, nothing is applied: the page shows
        them side by side, first where they disagree, and starts from what they agree on.
    previous : the model that `review` is of, if it is not this one: the page shows what changed since, and starts from
        the decisions on the phenotypes that are the same.
    selection : the folder of `phenotaste select` that chose this model, for evidence of stability.
    figures, tables : folders for the same content as PNG and PDF, CSV and LaTeX.
    title : the title of the page.
    trusted : switch disclosure control off.
    on_step : called with the name of each step as it begins.

    Examples
    --------
    >>> from phenotaste import TASTE, report, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
    >>> content = report.write(model, "report.html", cohort)
    >>> len(content.phenotypes), content.min_cell_size  # nothing on the page is about fewer patients
    (3, 11)
    >>> open("report.html").read(15)
    '<!doctype html>'
    """
    from phenotaste.report import model_figures, table_files
    from phenotaste.report.content import build
    from phenotaste.report.stability import read_evidence
    from phenotaste.report.writer import render

    page = check_output_file(path)
    remove_stale_drafts(page)
    outputs = (
        ("drawing figures", model_figures.save_all, figures),
        ("writing tables", table_files.save_all, tables),
    )
    folders = [(step, save, check_output_folder(out)) for step, save, out in outputs if out is not None]
    if page in [folder for _, _, folder in folders]:
        raise InputError(f"{path} is given for the page and for a folder: choose two names.")
    check_signs(model)
    reviews = read_reviews(review)
    last = None if previous is None else last_review(previous, reviews)
    reviewed = model.apply_review(reviews[0]) if len(reviews) == 1 and last is None else None
    several = reviews if len(reviews) > 1 else []
    for each in several:
        each.check_model(model)
    evidence = None if selection is None else read_evidence(selection, model)
    on_step("describing the patients" if cohort is not None else "describing the model")
    content = build(
        reviewed or model,
        cohort,
        gate=Gate(trusted=trusted),
        selection=evidence,
        review=None if reviewed is None else reviewed.review,
        last=last,
        reviews=several,
        title=title,
    )
    with (
        ExitStack() as files
    ):  # the file entered last is renamed first, so that a failure leaves the others unwritten
        for step, save, folder in folders:
            on_step(step)
            save(content, files.enter_context(write_folder(folder, private=trusted, existing="merge")))
        on_step("writing the page")
        files.enter_context(replace_file(page, private=trusted, locked=True)).write(render(content).encode())
    return content


def read_reviews(given: AnyReview | Sequence[AnyReview] | None) -> list[Review]:
    if given is None:
        return []
    if isinstance(given, str | os.PathLike | Mapping | Review):
        return [Review.read(given)]
    return [Review.read(each) for each in given]


def last_review(previous: "Factorization", reviews: list[Review]) -> "LastReview":
    from phenotaste.report.rounds import LastReview

    if len(reviews) != 1:
        raise InputError(
            f"There are {len(reviews)} reviews of the previous model, and one is needed: of several, write a report of "
            "that model first, and save one review from it."
        )
    check_signs(previous)
    return LastReview.of(previous, reviews[0])


def check_signs(model: "Factorization") -> None:
    if model.get_params().get("nonnegative") is False:
        raise InputError(
            "The definitions of this model may be negative, and a page shows non-negative weights only: "
            "fit it with nonnegative=True."
        )


STYLES = ("page.css", "card.css", "rounds.css", "print.css")
# Joined to one script, in this order.
SCRIPTS = (
    "dom.js",
    "relevance.js",
    "bars.js",
    "charts.js",
    "review.js",
    "review_file.js",
    "evidence.js",
    "rounds.js",
    "card.js",
    "overview.js",
    "toolbar.js",
    "main.js",
)


def render(content: Content | Mapping[str, Any]) -> str:
    """Render the page. It makes no network requests, and its security policy allows only its own script and style."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    record = content.as_dict() if isinstance(content, Content) else content
    environment = Environment(
        loader=PackageLoader("phenotaste.report", "web"), autoescape=True, undefined=StrictUndefined
    )
    style = "\n".join(read_asset(name) for name in STYLES)
    script = '"use strict";\n(() => {\n' + "\n".join(read_asset(name) for name in SCRIPTS) + "})();\n"
    return environment.get_template("page.html").render(
        title=printable(record["title"]),
        trusted=record["trusted"],
        version=record["version"],
        fingerprint=record["fingerprint"],
        style=Markup(style),  # part of the package, and allowed by its hash
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        content=Markup(as_json(record)),  # escaped by as_json
    )


def as_json(record: Mapping[str, Any]) -> str:
    """Encode as JSON in which no name can end the script element or open a comment."""
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def read_asset(name: str) -> str:
    return files("phenotaste.report").joinpath("web", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
