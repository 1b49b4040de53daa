"""Definitions as a LaTeX table in the layout of the paper: static features in red, below the temporal ones."""

from collections.abc import Iterator

from phenotaste.report.record import Content, Phenotype

LEAST_WEIGHT = 0.1
PREFIXES = {"diagnosis": "Dx_", "medication": "Rx_", "procedure": "Px_", "other": ""}
SPECIAL = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",  # after a line's end it would open an option
    "]": "{]}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def definitions_tex(content: Content) -> str:
    """One table that breaks over pages; it needs longtable, booktabs and xcolor, and T1 fonts."""
    parts = [
        "% \\usepackage[T1]{fontenc} \\usepackage{booktabs} \\usepackage{longtable} \\usepackage{xcolor}\n"
    ]
    parts.append("\\definecolor{static}{rgb}{.867, .031, .024}\n")
    if content.trusted:
        parts.append("% DISCLOSURE CONTROL IS OFF: this table may show what very few patients have.\n")
    return "\n".join([*parts, table(content)])


def table(content: Content) -> str:
    body = "    & \\\\\n".join(
        "\n".join(lines(content, phenotype)) + "\n" for phenotype in content.phenotypes
    )
    off = " Disclosure control was OFF." if content.trusted else ""
    return (
        "\\begingroup\\footnotesize\n\\begin{longtable}{lr}\n"
        f"  \\caption{{{escaped(content.title)}. \\textcolor{{static}}{{Red}} indicates static features; Dx\\_ "
        "indicates diagnoses, Rx\\_ medications, Px\\_ procedures. "
        f"Weights of at least {LEAST_WEIGHT:g} are shown.{off}}} \\\\\n"
        f"{body}"
        "\\end{longtable}\n\\endgroup\n"
    )


def lines(content: Content, phenotype: Phenotype) -> Iterator[str]:
    name = escaped(phenotype.name) if phenotype.name else f"Phenotype {phenotype.number}"
    title = f"P{phenotype.number}. {name}" if phenotype.name else name
    yield f"    \\textbf{{{title}}} & \\textbf{{Weight}} \\\\*"
    yield "    \\midrule\\nopagebreak"
    for j, weight in phenotype.temporal:
        if weight >= LEAST_WEIGHT:
            feature = content.features.temporal[j]
            yield f"    {escaped(PREFIXES[feature.group] + feature.name)} & {weight:.3f} \\\\"
    for j, weight in phenotype.static:
        if weight >= LEAST_WEIGHT:
            static = escaped(content.features.static[j].name)
            yield f"    \\textcolor{{static}}{{{static}}} & \\textcolor{{static}}{{{weight:.3f}}} \\\\"


def escaped(text: str) -> str:
    """The text letter by letter, whatever LaTeX would make of it."""
    return "".join(SPECIAL.get(letter, letter) for letter in " ".join(text.split()))
