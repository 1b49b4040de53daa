"""The model card: data, settings and fit of the model, and what it may and may not be used for."""

import platform
from collections.abc import Mapping
from typing import Any

from phenotaste import __version__
from phenotaste.disclosure import BASE, Gate, printable
from phenotaste.patients import MIN_PRESENT_SHARE
from phenotaste.report.names import OLDEST, without_dates
from phenotaste.report.schema import CardSection, Lines

SETTINGS = {
    "rank": "Phenotypes",
    "objective": "Objective",
    "lam": "Weight of static features",
    "mu": "Weight of the uniqueness term",
    "smooth": "Weight of smooth courses",
    "balance": "Influence of a patient",
    "weights": "Kind of weights",
    "init": "Initialisation",
    "n_init": "Number of starts",
    "max_iter": "Maximum number of iterations",
    "tol": "Tolerance",
    "dtype": "Precision of courses",
    "loss": "Loss",
    "threshold": "Threshold of small entries",
    "diversity": "Weight of the penalty on similar columns",
    "max_cosine": "Cosine from which columns are penalised",
    "max_score": "Largest integer",
}
VALUES = {
    "counts": "how often a code occurs at a visit",
    "binary": "whether a code occurs at a visit",
    "log": "log(1 + how often a code occurs at a visit)",
}
MAX_SOURCE_LENGTH = 60


def model_card(
    model: Any, origin: Mapping[str, Any] | None, data: Lines, fit: Lines, gate: Gate
) -> list[CardSection]:
    courses = model.has_courses
    return [
        CardSection("What this is", purpose(model)),
        CardSection("Data", [], [*source(origin), *data]),
        CardSection("Settings", [], settings(model)),
        CardSection("Fit", [], [*fit, ("Iterations", f"{model.n_iter_:,}")]),
        CardSection("What it may be used for", [MAY.format(when=" and when" if courses else "")]),
        CardSection("What it may not be used for", [MAY_NOT.format(courses=" courses," if courses else "")]),
        CardSection("Limits", [*LIMITS, ACTIVITY] if courses else LIMITS),
        CardSection("Disclosure control", [disclosure(gate)]),
        CardSection("Versions", [], [("phenotaste", __version__), ("Python", platform.python_version())]),
    ]


def purpose(model: Any) -> list[str]:
    base = getattr(model, "model", model)
    method = {"TASTE": "TASTE (temporal and static tensor factorisation)"}.get(
        type(base).__name__, type(base).__name__
    )
    what = "codes" if model.F_ is None else "codes and patient characteristics"
    found = f"in patients' {base.codes_occur_in}, found by {method}"
    if model.has_courses:
        found = f"over time, found by {method} in health records"
    text = [
        f"Groups of {what} that occur together {found}. They were found without any medical knowledge, and are "
        "proposals until a clinician has reviewed them."
    ]
    if not model.has_courses:
        text.append(
            f"{method} has no courses: the page does not show when a phenotype is active, and neither CPI nor RMSE."
        )
    return text


MAY = (
    "To describe groups of patients, to form hypotheses, to let clinicians name and judge the phenotypes, and to "
    "compare how often{when} they occur in populations recorded in a similar way."
)
MAY_NOT = (
    "To diagnose or treat a single patient, or to conclude that one thing causes another. Shares,{courses} effects and "
    "odds ratios are not adjusted for anything, and describe the patients the model was fitted on unless another "
    "cohort is named."
)
LIMITS = [
    "Codes are recorded for billing and care: what was not recorded is not seen, and patients who visit more often "
    "have more codes.",
    "Weights are shares of the largest weight in the model, so they compare within it, not between models.",
    "The leading phenotype is the one that explains most of a patient's record; many patients have several. A patient "
    f"has a phenotype that leads, or whose share of the squared sizes is at least {MIN_PRESENT_SHARE:g}.",
]
ACTIVITY = (
    "Activity is the patient's score times the course over the visits, in the data's own units. Over visits it is "
    "averaged over five neighbouring ones, over months over the visits of a month."
)


def source(origin: Mapping[str, Any] | None) -> Lines:
    """The kind of source and of values, without paths and dates."""
    origin = origin or {}
    lines: Lines = []
    if isinstance(origin.get("source"), str):
        lines.append(("Source", without_dates(printable(origin["source"]))[:MAX_SOURCE_LENGTH]))
    build_settings = origin.get("settings")
    values = build_settings.get("values") if isinstance(build_settings, Mapping) else None
    if values in VALUES:
        lines.append(("Values", VALUES[values]))
    return lines


def settings(model: Any) -> Lines:
    base = getattr(model, "model", model)
    params = base.get_params() | {"n_init": base.n_starts_ or base._n_starts()}
    return [(label, str(params[name])) for name, label in SETTINGS.items() if name in params]


def disclosure(gate: Gate) -> str:
    if gate.trusted:
        return (
            "Disclosure control is OFF: figures of very few patients are shown. Do not pass this on to anyone who may "
            "not see the patients' records."
        )
    return (
        f"No figure here is of fewer than {gate.min_cell_size} patients: counts are rounded at random to multiples of "
        f"{BASE}, those rounded to less than {gate.min_shown} are withheld, zero included, and shares are computed "
        "from rounded counts. Means are winsorised and rounded. Features that fewer patients of the fit have are left "
        f"out; there are no patient identifiers and no dates; ages from {OLDEST} up are one band. What is withheld is "
        "listed at the end of the page."
    )
