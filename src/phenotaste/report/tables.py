"""The same content as tables: CSV files, and the definitions as LaTeX in the layout of the paper."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from phenotaste.report.files import replacing
from phenotaste.report.latex import definitions_tex
from phenotaste.report.record import Content, Phenotype

Rows = Iterable[Sequence[Any]]
OFF = "DISCLOSURE_CONTROL_IS_OFF.txt"
OFF_TEXT = (
    "These tables were made with disclosure control switched off: they hold figures of very few patients.\n"
    "Do not pass them on to anybody who may not see the patients' records.\n"
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the start of a formula


def save_all(content: Content, folder: str | os.PathLike[str]) -> list[Path]:
    """Write every table into a folder; what is hidden is an empty cell, and hidden.csv says why."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    files = {f"{name}.csv": as_csv(header, rows) for name, (header, rows) in tables(content).items()}
    files["definitions.tex"] = definitions_tex(content)
    if content.trusted:
        files[OFF] = OFF_TEXT
    for name, text in files.items():
        with replacing(place / name) as file:
            file.write(text.encode())
    return [place / name for name in files]


def tables(content: Content) -> dict[str, tuple[list[str], Rows]]:
    """Header and rows of each table that has any; those that are always there may be empty."""
    found: dict[str, tuple[list[str], list[Sequence[Any]]]] = {
        "overview": (["what", "value"], [*content.overview.figures, *content.overview.cohort]),
        "definitions": (
            ["phenotype", "name", "kind", "group", "feature", "weight", "share_of_patients"],
            [row for p in content.phenotypes for row in definition_rows(content, p)],
        ),
        "phenotypes": (list(PHENOTYPE_COLUMNS), [phenotype_row(p) for p in content.phenotypes]),
        "profiles": (
            ["phenotype", "feature", "kind", "here", "rest", "effect"],
            [
                (p.number, c.feature, c.kind, c.here, c.rest, c.effect)
                for p in content.phenotypes
                for c in p.profile
            ],
        ),
        "courses": (
            ["phenotype", "over", "x", "median", "low", "high"],
            [row for p in content.phenotypes for row in band_rows(p)],
        ),
        "typical_courses": (
            ["phenotype", "group", "patients", "part_of_history", "activity"],
            [row for p in content.phenotypes for row in typical_rows(p)],
        ),
        "similar": (
            ["phenotype", "similar_to", "cosine"],
            [(p.number, s.phenotype, s.cosine) for p in content.phenotypes for s in p.similar],
        ),
        "attrition": (
            ["step", "patients", "removed"],
            [(s.step, s.patients, s.removed) for s in content.overview.attrition or ()],
        ),
        "hidden": (["where", "what", "reason"], [(s.where, s.what, s.reason) for s in content.audit]),
    }
    always = ("overview", "definitions", "phenotypes", "hidden")
    return {name: (header, rows) for name, (header, rows) in found.items() if rows or name in always}


def definition_rows(content: Content, phenotype: Phenotype) -> Rows:
    name = phenotype.name or ""
    for j, weight in phenotype.temporal:
        feature = content.features.temporal[j]
        yield phenotype.number, name, "temporal", feature.group, feature.name, weight, feature.share
    for j, weight in phenotype.static:
        static = content.features.static[j]
        yield phenotype.number, name, "static", "", static.name, weight, static.share


PHENOTYPE_COLUMNS = (
    "phenotype",
    "name",
    "status",
    "merged_from",
    "prevalence",
    "leading_patients",
    "leading_share",
    "outcome",
    "outcome_here",
    "outcome_rest",
    "odds_ratio",
    "odds_ratio_low",
    "odds_ratio_high",
    "starts_median",
    "starts_found",
    "bootstrap_median",
    "bootstrap_found",
)


def phenotype_row(phenotype: Phenotype) -> Sequence[Any]:
    link, stability = phenotype.outcome, phenotype.stability
    starts = stability and stability.starts
    bootstrap = stability and stability.bootstrap
    return (
        phenotype.number,
        phenotype.name,
        phenotype.status,
        " ".join(map(str, phenotype.merged_from)),
        phenotype.prevalence,
        phenotype.leading.patients,
        phenotype.leading.share,
        *((link.name, link.here, link.rest, link.odds_ratio, link.low, link.high) if link else [None] * 6),
        *((starts.median, starts.found) if starts else [None] * 2),
        *((bootstrap.median, bootstrap.found) if bootstrap else [None] * 2),
    )


def band_rows(phenotype: Phenotype) -> Rows:
    for over, band in (("visits", phenotype.course.visits), ("months", phenotype.course.months)):
        if band is not None:
            for point in zip(band.x, band.median, band.low, band.high, strict=True):
                yield phenotype.number, over, *point


def typical_rows(phenotype: Phenotype) -> Rows:
    for group in phenotype.typical:
        for i, value in enumerate(group.curve):
            part = round(i / max(len(group.curve) - 1, 1), 4)
            yield phenotype.number, group.label, group.patients, part, value


def as_csv(header: Sequence[str], rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell(value) for value in row] for row in rows)
    return text.getvalue()


def cell(value: Any) -> Any:
    """A text that a spreadsheet would run as a formula gets an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
