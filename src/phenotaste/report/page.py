"""One self-contained HTML page about a model: definitions and fit, nothing about single patients."""

import os
from typing import NamedTuple

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.report import counts
from phenotaste.report.files import replacing
from phenotaste.report.patients import Patients, patients_of
from phenotaste.report.summary import FitSummary, fit_summary
from phenotaste.report.text import readable
from phenotaste.taste import TASTE

TOP = 10
MIN_WEIGHT = 0.1
SETTINGS = ("lam", "mu", "weights", "normalize", "solver", "init", "n_init", "max_iter", "tol", "dtype")


class Row(NamedTuple):
    feature: str
    weight: float


class Card(NamedTuple):
    title: str
    temporal: list[Row]
    static: list[Row]
    leading: str | None  # the patients it leads in, as they may be shown


def write(model: TASTE, path: str | os.PathLike[str], cohort: Cohort | None = None) -> None:
    """Write the page. Who leads where is counted over `cohort`, else over the patients the model was fitted on."""
    page = render(model, patients_of(model, cohort))
    with replacing(path) as file:
        file.write(page.encode())


def render(model: TASTE, patients: Patients | None = None) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("phenotaste.report", "."),
        autoescape=True,  # feature names come from the data
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    leading, nobody = leading_parts(patients)
    summary = fit_summary(model)
    lines = summary.lines(hide_small=True)
    return environment.get_template("page.html").render(
        cards=cards(model, leading),
        nobody=nobody,
        summary=summary,
        lines=lines,
        short=in_short(summary, dict(lines)),
        settings=[(name, getattr(model, name)) for name in SETTINGS],
        min_weight=MIN_WEIGHT,
        top=TOP,
        fewest=counts.FEWEST,
        version=__version__,
    )


def in_short(summary: FitSummary, lines: dict[str, str]) -> list[tuple[str, str]]:
    """The figures at the head of the page."""
    return [
        ("Patients", lines["Patients"]),
        ("Visits", lines["Visits"]),
        ("CPI", f"{summary.cpi:.3f}"),
        ("RMSE", lines["RMSE"]),
        ("Outcome", summary.outcome.replace("_", " ")),
    ]


def cards(model: TASTE, leading: list[str] | None) -> list[Card]:
    table = model.phenotypes(top=TOP, min_weight=MIN_WEIGHT)
    rows: dict[tuple[int, str], list[Row]] = {}
    for number, kind, feature, weight in table.itertuples(index=False):
        rows.setdefault((number, kind), []).append(Row(readable(feature), float(weight)))
    return [
        Card(
            f"Phenotype {r + 1}",
            rows.get((r + 1, "temporal"), []),
            rows.get((r + 1, "static"), []),
            None if leading is None else leading[r],
        )
        for r in range(model.V_.shape[1])
    ]


def headings(model: TASTE, cohort: Cohort | None = None) -> list[str]:
    """A line above each phenotype's table: its name, and the patients it leads in where they are known."""
    return [
        card.title if card.leading is None else f"{card.title} · {card.leading}"
        for card in cards(model, leading_parts(patients_of(model, cohort))[0])
    ]


def leading_parts(patients: Patients | None) -> tuple[list[str] | None, str | None]:
    """The patients each phenotype leads in, and those without one; small counts hidden."""
    if patients is None:
        return None, None
    *leading, nobody = counts.shown_parts(patients.leading_counts())
    return leading, nobody
