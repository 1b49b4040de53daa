"""The review page: one self-contained HTML file made of the content, our own style and our own script."""

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.report import counts
from phenotaste.report.files import replacing
from phenotaste.report.patients import Patients, patients_of
from phenotaste.report.record import Content
from phenotaste.report.summary import FitSummary, fit_summary
from phenotaste.report.text import readable
from phenotaste.taste import TASTE

STYLES = ("page.css", "card.css", "print.css")
# One script in the page, read in this order.
SCRIPTS = (
    "dom.js",
    "relevance.js",
    "bars.js",
    "charts.js",
    "review.js",
    "reading.js",
    "evidence.js",
    "card.js",
    "overview.js",
    "toolbar.js",
    "main.js",
)


def render(content: Content | Mapping[str, Any]) -> str:
    """The page as text. It asks the network for nothing, and may run no script and no style but its own."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    record = content.as_dict() if isinstance(content, Content) else content
    environment = Environment(
        loader=PackageLoader("phenotaste.report", "web"), autoescape=True, undefined=StrictUndefined
    )
    style = "\n".join(_part(name) for name in STYLES)
    script = '"use strict";\n(() => {\n' + "\n".join(_part(name) for name in SCRIPTS) + "})();\n"
    return environment.get_template("page.html").render(
        title=record["title"],
        trusted=record["trusted"],
        version=record["version"],
        fingerprint=record["fingerprint"],
        style=Markup(style),  # ours, and allowed by its hash
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        content=Markup(as_json(record)),  # as_json leaves nothing a browser could take for markup
    )


def as_json(record: Mapping[str, Any]) -> str:
    """JSON that can stand in a page: no name in it can end the script element or open a comment."""
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _part(name: str) -> str:
    return files("phenotaste.report").joinpath("web", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# The page before reviews; it goes when its callers have moved.
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
    page = _render_model(model, patients_of(model, cohort))
    with replacing(path) as file:
        file.write(page.encode())


def _render_model(model: TASTE, patients: Patients | None = None) -> str:
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
