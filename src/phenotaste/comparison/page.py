"""The page of a comparison: one HTML file in the style of the review page."""

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phenotaste import __version__
from phenotaste.comparison import figures
from phenotaste.comparison.methods import METHODS
from phenotaste.plotting import encode_figure
from phenotaste.report.writer import read_asset
from phenotaste.selection.matching import MIN_COSINE

if TYPE_CHECKING:
    import pandas as pd

    from phenotaste.comparison.comparison import Comparison


class Column(NamedTuple):
    """A column of the page's table."""

    heading: str
    name: str  # in `Comparison.table`
    format: str
    hint: str


COLUMNS = (
    Column(
        "Codes, halves",
        "halves_V",
        ".3f",
        "mean cosine of the codes between disjoint halves of the patients, and its range over the repetitions",
    ),
    Column(
        "Found",
        "halves_V_found",
        ".0%",
        f"share of the phenotypes that the other half has, too, with a cosine of at least {MIN_COSINE:g}",
    ),
    Column("Static, halves", "halves_F", ".3f", "the same for static facts, of the same pairs of phenotypes"),
    Column("Codes, starts", "starts_V", ".3f", "mean cosine between fits of all patients with other seeds"),
    Column("Codes, groups", "groups_V", ".3f", "mean cosine between groups fitted separately, such as sites"),
    Column(
        "AUC",
        "auc",
        ".3f",
        "of the outcome in test patients, by a lasso regression on the scores, or by the method itself if it has no "
        "phenotypes; with the 95 % interval of the mean over splits",
    ),
    Column("AUC with static", "auc_static", ".3f", "the same with scores and static features"),
    Column(
        "AUC with size",
        "auc_size",
        ".3f",
        "the same with scores, static features and the size of the record, which relative scores leave out",
    ),
    Column(
        "Error",
        "held_out_error",
        ".3f",
        "share of the squares of the sums of codes, in patients of the other half, that the definitions leave",
    ),
    Column(
        "CPI", "cpi", ".3f", "cross-product invariance of methods with courses; near 1, phenotypes are unique"
    ),
    Column(
        "Seconds", "processor_seconds", ".3g", "of processor time for a fit of all patients, once compiled"
    ),
    Column("Memory, MB", "memory_mb", ".0f", "the most that a fit needs beyond the cohort"),
)


def render(result: "Comparison") -> str:
    """The page; it makes no network requests and runs no scripts."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    style = read_asset("page.css") + "\n" + read_own("comparison.css")
    environment = Environment(
        loader=PackageLoader("phenotaste.comparison", "web"), autoescape=True, undefined=StrictUndefined
    )
    columns = [column for column in COLUMNS if column.name in result.table]
    drawn = figures.drawable(result)
    return environment.get_template("comparison.html").render(
        title=title(result),
        lead=lead(result),
        trusted=result.trusted,
        style=Markup(style),  # part of the package, and allowed by its hash
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        verdict=verdict(result.table),
        columns=[("Method", ""), ("Phenotypes", ""), *[(column.heading, column.hint) for column in columns]],
        rows=[table_row(row, columns) for _, row in result.table.iterrows()],
        methods=image(result, "methods"),
        counterparts=image(result, "counterparts") if "counterparts" in drawn else None,
        models=models(result),
        min_cosine=MIN_COSINE,
        how=how(result),
        audit=result.audit,
        version=__version__,
    )


def read_own(name: str) -> str:
    return files("phenotaste.comparison").joinpath("web", name).read_text(encoding="utf-8")


def image(result: "Comparison", what: str) -> str:
    """A figure as a data URI."""
    content = base64.b64encode(encode_figure(figures.draw(result, what), "svg")).decode()
    return f"data:image/svg+xml;base64,{content}"


def title(result: "Comparison") -> str:
    n = result.table["method"].nunique()
    patients = "" if result.n_patients is None else f" on {result.n_patients:,} patients"
    return f"{n} method{'' if n == 1 else 's'}{patients}"


def lead(result: "Comparison") -> str:
    """What the page is about, in two sentences."""
    ranks = " and ".join(f"{rank}" for rank in result.plan.ranks)
    text = f"Every method was fitted to the same patients with {ranks} phenotypes."
    if result.plan.halves:
        text += (
            " What separate fits of disjoint halves of the patients agree on does not depend on the sample."
        )
    return text


# Sentences ---------------------------------------------------------------------------------------------------------

NAMED = {
    "halves_V": "The codes replicate best between halves of the patients with",
    "halves_F": "The static facts replicate best with",
    "auc": "The outcome is predicted best, from the scores alone, by",
    "auc_static": "From scores and static features, it is predicted best by",
    "auc_size": "From scores, static features and the size of the record, it is predicted best by",
    "held_out_error": "The codes of other patients are described best by",
}
LOWEST = ("held_out_error",)


def verdict(table: "pd.DataFrame") -> list[str]:
    """Which method is first in what, and which others cannot be told apart from it."""
    sentences, several = [], table["rank"].nunique() > 1
    for name, words in NAMED.items():
        known = table[table[name].notna() & table["rank"].notna()] if name in table else table[:0]
        if not len(known):  # methods without phenotypes have no scores
            continue
        best = known.iloc[int((known[name].argmin if name in LOWEST else known[name].argmax)())]
        alike = [other for _, other in known.iterrows() if overlap(best, other, name)]
        others = list(
            dict.fromkeys(label(other, several) for other in alike if other["method"] != best["method"])
        )
        sentence = f"{words} {label(best, several)}: {best[name]:.3f}"
        if f"{name}_low" in table and others:
            count = f"{len(others)} other{'' if len(others) == 1 else 's'}"
            sentence += f"; its interval overlaps with {count}: {shortened(others)}"
        sentences.append(sentence + ".")
    return sentences


def overlap(one: "pd.Series[Any]", other: "pd.Series[Any]", name: str) -> bool:
    """Whether the ranges of two rows overlap; False without ranges."""
    ends = [(row.get(f"{name}_low", np.nan), row.get(f"{name}_high", np.nan)) for row in (one, other)]
    (low, high), (other_low, other_high) = ends
    return bool(low <= other_high and other_low <= high)


def shortened(names: list[str], n: int = 6) -> str:
    """The first n names, which may contain commas themselves."""
    return "; ".join(names[:n]) + (f"; and {len(names) - n} more" if len(names) > n else "")


def label(row: "pd.Series[Any]", several: bool) -> str:
    """The name of a method, with the number of phenotypes if the comparison has several."""
    text = METHODS[row["method"]].label
    return f"{text} (R = {row['rank']:g})" if several and not np.isnan(row["rank"]) else text


def how(result: "Comparison") -> list[str]:
    plan = result.plan
    sentences = [
        "Each method has its own default settings unless others were given; halves, splits and seeds are the same for "
        "all. Patients are scored as new ones, under fixed definitions.",
    ]
    if plan.halves:
        sentences.append(
            f"Halves: the patients were split at random {times(plan.halves)}; both halves were fitted separately and "
            "the phenotypes matched one to one by the cosine of their codes. Signed definitions are matched up to "
            "their sign."
        )
    if plan.splits:
        sentences.append(
            f"Prediction: {plan.splits} split{'' if plan.splits == 1 else 's'} into 75 % training, 10 % validation and "
            "15 % test patients. Definitions and regression are learnt from training patients, the strength of the "
            "lasso is chosen on validation patients, and the interval of the mean accounts for splits that share "
            "patients (Nadeau and Bengio 2003)."
        )
    if plan.groups:
        sentences.append(
            f"Groups: {', '.join(plan.groups)}; the static features that name them were left out."
        )
    if "kinds" in {need for name in plan.methods for need in METHODS[name].needs}:
        sentences.append(
            "Limestone, Marble, Granite, SUSTain and non-negative CP see counts of pairs of two kinds of codes that "
            "occur in the same visit, and no other codes: their cosines are those of fewer features."
        )
    return sentences


def times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


# Tables ------------------------------------------------------------------------------------------------------------


def table_row(row: "pd.Series[Any]", columns: list[Column]) -> list[str]:
    rank = "" if np.isnan(row["rank"]) else f"{row['rank']:g}"
    return [METHODS[row["method"]].label, rank, *[cell(row, column) for column in columns]]


def cell(row: "pd.Series[Any]", column: Column) -> str:
    """A value, with its range or interval if it has one."""
    value = row[column.name]
    if np.isnan(value):
        return "–"
    text = f"{value:{column.format}}"
    low, high = row.get(f"{column.name}_low", np.nan), row.get(f"{column.name}_high", np.nan)
    if np.isnan(low) or low == high:
        return text
    return f"{text} ({low:{column.format}} to {high:{column.format}})"


class PhenotypeRow(NamedTuple):
    number: int
    found: str
    outcome: str
    features: str
    static: str


def models(result: "Comparison") -> list[tuple[str, bool, bool, list[PhenotypeRow]]]:
    """For each method and number of phenotypes: heading, whether it has outcomes and static facts, phenotypes."""
    table = result.phenotypes
    found = []
    for (method, rank), part in table.groupby(["method", "rank"], sort=False):
        rows = [phenotype_row(row) for _, row in part.iterrows()]
        has_outcome = "outcome_top" in part and bool(part["outcome_top"].notna().any())
        heading = f"{METHODS[str(method)].label}, {rank} phenotypes"
        found.append((heading, has_outcome, any(row.static for row in rows), rows))
    return found


def phenotype_row(row: "pd.Series[Any]") -> PhenotypeRow:
    found = f"{row['found']} of {row['halves']}" if row["halves"] else "–"
    outcome = row.get("outcome_top", np.nan)
    return PhenotypeRow(
        int(row["phenotype"]),
        found,
        "withheld" if np.isnan(outcome) else f"{outcome:.0%}",
        row["features"],
        row["static"],
    )
