"""The content as tables: CSV files, and the definitions as LaTeX in the layout of the paper."""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from phenotaste.disclosure import rounded
from phenotaste.report.schema import Content, EarlierPhenotype, Phenotype, StaticFeature
from phenotaste.storage.atomic import write_file

Rows = Iterable[Sequence[Any]]
OFF = "DISCLOSURE_CONTROL_IS_OFF.txt"
OFF_TEXT = (
    "These tables were written with disclosure control switched off: they hold figures of very few patients.\n"
    "Do not pass them on to anyone who may not see the patients' records.\n"
)
MIN_WEIGHT = 0.1
PREFIXES = {"diagnosis": "Dx_", "medication": "Rx_", "procedure": "Px_", "other": ""}
SPECIAL = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",  # after the end of a line it would open an option
    "]": "{]}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a formula starts in a spreadsheet


def save_all(content: Content, folder: str | os.PathLike[str]) -> list[Path]:
    """Write every table into a folder; hidden values are empty cells, and hidden.csv lists the reasons."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = {f"{name}.csv": as_csv(header, rows) for name, (header, rows) in tables(content).items()}
    files["definitions.tex"] = definitions_tex(content)
    if content.trusted:
        files[OFF] = OFF_TEXT
    for name, text in files.items():
        write_file(target / name, text)
    return [target / name for name in files]


def tables(content: Content) -> dict[str, tuple[list[str], Rows]]:
    """Return header and rows of each table; those that not every report has are left out if empty."""
    result: dict[str, tuple[list[str], list[Sequence[Any]]]] = {
        "overview": (["what", "value"], [*content.overview.figures, *content.overview.cohort]),
        "definitions": (
            [*DEFINITION_COLUMNS],
            [row for p in content.phenotypes for row in definition_rows(content, p)],
        ),
        "phenotypes": (list(PHENOTYPE_COLUMNS), [phenotype_row(p) for p in content.phenotypes]),
        "profiles": (
            ["phenotype", "feature", "kind", "leading", "rest", "effect"],
            [
                (p.number, c.feature, c.kind, c.leading, c.rest, c.effect)
                for p in content.phenotypes
                for c in p.profile
            ],
        ),
        "courses": (
            ["phenotype", "over", "x", "median", "low", "high"],
            [row for p in content.phenotypes for row in band_rows(p)],
        ),
        "typical_courses": (
            ["phenotype", "group", "time", "activity"],
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
    result |= review_tables(content)
    always = ("overview", "definitions", "phenotypes", "hidden")
    return {name: (header, rows) for name, (header, rows) in result.items() if rows or name in always}


DEFINITION_COLUMNS = (
    "phenotype", "name", "kind", "group", "feature", "weight", "share_of_patients", "rate", "cohort_rate", "lift"
)  # fmt: skip


def definition_rows(content: Content, phenotype: Phenotype) -> Rows:
    name = phenotype.name or ""
    for j, weight in phenotype.temporal:
        feature = content.features.temporal[j]
        row = phenotype.number, name, "temporal", feature.group, feature.name, weight, feature.share
        yield *row, None, None, None
    for j, weight in phenotype.static:
        static = content.features.static[j]
        rate = phenotype.rates[j] if phenotype.rates else None
        lift = rounded(rate / static.rate) if rate is not None and static.rate else None
        yield phenotype.number, name, "static", "", static.name, weight, static.share, rate, static.rate, lift


def review_tables(content: Content) -> dict[str, tuple[list[str], list[Sequence[Any]]]]:
    """What became of each phenotype since the last review, and what several reviewers decided."""
    changes: list[Sequence[Any]] = [
        (p.number, p.change.kind, p.change.similarity, *earlier_cells(p.change.earlier))
        for p in content.phenotypes
        if p.change is not None
    ]
    if content.changes is not None:
        changes += [(None, "gone", None, *earlier_cells(gone.earlier)) for gone in content.changes.gone]
    opinions: list[Sequence[Any]] = [
        (
            p.number,
            each.author.reviewer,
            each.author.date,
            each.status,
            each.merge_with,
            each.name,
            each.comment,
        )
        for p in content.phenotypes
        for each in p.opinions
    ]
    return {
        "changes": (
            ["phenotype", "change", "similarity", "earlier_phenotype", "earlier_name", "earlier_status"],
            changes,
        ),
        "reviews": (
            ["phenotype", "reviewer", "date", "status", "merge_with", "name", "comment"],
            opinions,
        ),
    }


def earlier_cells(earlier: EarlierPhenotype | None) -> Sequence[Any]:
    return (None, None, None) if earlier is None else (earlier.number, earlier.name, earlier.status)


PHENOTYPE_COLUMNS = (
    "phenotype",
    "name",
    "status",
    "decided_by",
    "decided_on",
    "merged_from",
    "prevalence",
    "leading_patients",
    "leading_share",
    "outcome",
    "outcome_leading",
    "outcome_rest",
    "odds_ratio",
    "odds_ratio_low",
    "odds_ratio_high",
    "halves_median",
    "halves_reproducibility",
    "starts_median",
    "starts_reproducibility",
    "bootstrap_median",
    "bootstrap_reproducibility",
)


def phenotype_row(phenotype: Phenotype) -> Sequence[Any]:
    link, stability = phenotype.outcome, phenotype.stability
    runs = (stability.halves, stability.starts, stability.bootstrap) if stability else (None, None, None)
    return (
        phenotype.number,
        phenotype.name,
        phenotype.status,
        "; ".join(author.reviewer for author in phenotype.authors),
        "; ".join(author.date for author in phenotype.authors),
        " ".join(map(str, phenotype.merged_from)),
        phenotype.prevalence,
        phenotype.leading.patients,
        phenotype.leading.share,
        *((link.name, link.leading, link.rest, link.odds_ratio, link.low, link.high) if link else [None] * 6),
        *(value for each in runs for value in ((each.median, each.share) if each else (None, None))),
    )


def band_rows(phenotype: Phenotype) -> Rows:
    for over, band in (("visits", phenotype.course.visits), ("months", phenotype.course.months)):
        if band is not None:
            for point in zip(band.x, band.median, band.low, band.high, strict=True):
                yield phenotype.number, over, *point


def typical_rows(phenotype: Phenotype) -> Rows:
    for group in phenotype.typical:
        for i, value in enumerate(group.curve):
            time = round(i / max(len(group.curve) - 1, 1), 4)  # from 0 (first visit) to 1 (last)
            yield phenotype.number, group.label, time, value


def as_csv(header: Sequence[str], rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell(value) for value in row] for row in rows)
    return text.getvalue()


def cell(value: Any) -> Any:
    """Prefix text that a spreadsheet would evaluate as a formula with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def definitions_tex(content: Content) -> str:
    """Return one table that breaks over pages; it needs longtable, booktabs and xcolor, and T1 fonts."""
    parts = [
        "% \\usepackage[T1]{fontenc} \\usepackage{booktabs} \\usepackage{longtable} \\usepackage{xcolor}\n"
    ]
    parts.append("\\definecolor{static}{rgb}{.867, .031, .024}\n")
    if content.trusted:
        parts.append("% DISCLOSURE CONTROL IS OFF: this table may show what very few patients have.\n")
    return "\n".join([*parts, longtable(content)])


def longtable(content: Content) -> str:
    body = "    & & \\\\\n".join(
        "\n".join(tex_rows(content, phenotype)) + "\n" for phenotype in content.phenotypes
    )
    off = " Disclosure control was OFF." if content.trusted else ""
    return (
        "\\begingroup\\footnotesize\n\\begin{longtable}{lrr}\n"
        f"  \\caption{{{escape_tex(content.title)}. \\textcolor{{static}}{{Red}} indicates static features; Dx\\_ "
        "indicates diagnoses, Rx\\_ medications, Px\\_ procedures. "
        f"Weights of at least {MIN_WEIGHT:g} are shown; rates are of static features among the patients who have the "
        f"phenotype and, in brackets, among all.{off}}} \\\\\n"
        f"{body}"
        "\\end{longtable}\n\\endgroup\n"
    )


def tex_rows(content: Content, phenotype: Phenotype) -> Iterator[str]:
    name = escape_tex(phenotype.name) if phenotype.name else f"Phenotype {phenotype.number}"
    title = f"P{phenotype.number}. {name}" if phenotype.name else name
    yield f"    \\textbf{{{title}}} & \\textbf{{Weight}} & \\textbf{{Rate}} \\\\*"
    yield "    \\midrule\\nopagebreak"
    for j, weight in phenotype.temporal:
        if weight >= MIN_WEIGHT:
            feature = content.features.temporal[j]
            yield f"    {escape_tex(PREFIXES[feature.group] + feature.name)} & {weight:.3f} & \\\\"
    for j, weight in phenotype.static:
        if weight >= MIN_WEIGHT:
            static = content.features.static[j]
            rate = tex_rate(phenotype.rates[j] if phenotype.rates else None, static)
            cells = (escape_tex(static.name), f"{weight:.3f}", rate)
            yield "    " + " & ".join(f"\\textcolor{{static}}{{{cell}}}" for cell in cells) + " \\\\"


def tex_rate(rate: float | None, static: StaticFeature) -> str:
    if rate is None or static.rate is None:
        return ""
    if static.numeric:
        return f"{rate:g} ({static.rate:g})"
    return f"{100 * rate:.0f}\\,\\% ({100 * static.rate:.0f}\\,\\%)"


def escape_tex(text: str) -> str:
    """Escape what LaTeX would interpret."""
    return "".join(SPECIAL.get(letter, letter) for letter in " ".join(text.split()))
