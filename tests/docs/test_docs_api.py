"""The reference is complete: it lists every public name, and each has a docstring with an example.

The examples run as doctests of src, each in an empty folder (src/conftest.py).
"""

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import phenotaste

pytest.importorskip("torch", reason="two of the public names need torch")

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"

# Public names by module, as listed in docs/reference/index.md; constants are in CONSTANTS.
PUBLIC = {
    "phenotaste.cohort": ["Cohort", "CohortSummary", "PatientIndexError", "check_cohort"],
    "phenotaste.taste": ["TASTE", "Projection"],
    "phenotaste.courses": ["course_features"],
    "phenotaste.guides": ["read_guides"],
    "phenotaste.metrics": ["cpi", "dissimilarity", "matched_similarity", "objective", "rmse", "similarity"],
    "phenotaste.simulate": ["Truth", "care_intensity", "ehr", "heart_failure", "rare_phenotype", "recovery"],
    "phenotaste.selection": ["Selection", "select"],
    "phenotaste.prediction": ["Evaluation", "Progress", "evaluate"],
    "phenotaste.comparison": ["Comparison", "compare"],
    "phenotaste.baselines": [
        "CNTF", "CohenPlus", "Copa", "CopaPlus", "CopaStatic", "GRUClassifier", "Granite", "Limestone", "Marble",
        "NonnegativeCP", "PatientLDA", "PatientNMF", "PatientSVD", "RawGradientBoosting", "RawLogistic", "SUSTain",
        "SWoTTeD", "Spartan", "VisitNMF",
    ],
    "phenotaste.ecosystem": [
        "Rule", "from_anndata", "from_ehrdata", "to_anndata", "write_anndata", "write_meds_labels", "write_omop_cohort",
    ],
    "phenotaste.report": ["FitSummary", "fit_summary", "write"],
    "phenotaste.report.scores": ["Scoring", "write_scores"],
    "phenotaste.review": [
        "Comparison", "Decision", "Group", "Provenance", "Review", "Reviewed", "compare", "fingerprint",
    ],
    "phenotaste.disclosure": ["Gate", "Suppressed", "rounded", "rounding_key"],
    "phenotaste.shareable": ["Dropped", "shareable_copy"],
    "phenotaste.build": ["Built", "ModelColumns", "cohort"],
    "phenotaste.build.settings": ["Groups", "Index", "Match", "Settings", "SourceOptions", "Static"],
    "phenotaste.sources.meds": ["read"],
    "phenotaste.sources.omop": ["read", "redacted"],
    "phenotaste.sources.records": ["Records"],
    "phenotaste.sources.synpuf": ["read"],
    "phenotaste.sources.eicu": ["read"],
    "phenotaste.sources.fhir": ["read"],
    "phenotaste.sources.mimic4": ["read"],
    "phenotaste.sources.synthea": ["read"],
    "phenotaste.sources.tables": ["read"],
    "phenotaste.sources.workspace": ["Workspace"],
    "phenotaste.engines": ["Checkpoint", "CudaEngine", "DaskEngine", "DiskEngine", "ThreadEngine"],
    "phenotaste.plan": ["Plan", "plan"],
    "phenotaste.federated": ["CombineReport", "Settings", "StepReport", "combine", "init", "status", "step"],
    "phenotaste.studies": ["Options", "run"],
    "phenotaste.doctor": ["DoctorReport", "bug_report", "examine"],
    "phenotaste.storage.tensors": ["read", "write"],
    "phenotaste.errors": ["InputError"],
}  # fmt: skip
CONSTANTS = {
    "phenotaste.comparison": ["METHODS"],
    "phenotaste.selection": ["RULES"],
    "phenotaste.sources.eicu": ["STAYS", "CODES"],
    "phenotaste.sources.fhir": ["DATES", "MEDICATIONS"],
    "phenotaste.sources.meds": ["DRUGS"],
    "phenotaste.sources.mimic4": ["DRUGS", "DRUG_TYPES"],
    "phenotaste.sources.omop": ["CODES", "DRUGS"],
    "phenotaste.studies": ["NAMES"],
}
# Methods used only by other parts of the package.
INTERNAL = {
    "Comparison.of",
    "Comparison.save",
    "Evaluation.save",
    "Selection.save",
    "Workspace.confine",
    "Workspace.ingest",
    "Workspace.materialise",
    "Workspace.materialise_sql",
    "Workspace.read_files",
} | {
    f"{engine}.{method}"
    for engine in ("CudaEngine", "DaskEngine", "DiskEngine", "ThreadEngine")
    for method in ("allocate", "memory_limit", "open")
}
INTERFACES = {"Engine", "EngineSession"}  # exported for annotations and new engines
DOCUMENTED_DUNDERS = {"Cohort.__getitem__"}  # public, though the name begins with an underscore


class Public(NamedTuple):
    """A public name and its object."""

    path: str
    what: Any

    @property
    def home(self) -> str:
        """The dotted name of its definition, which is also that of its doctest."""
        what = getattr(self.what, "__func__", self.what)
        return f"{what.__module__}.{what.__qualname__}"


@cache
def names() -> tuple[Public, ...]:
    return tuple(
        Public(f"{module}.{name}", getattr(importlib.import_module(module), name))
        for module, listed in PUBLIC.items()
        for name in listed
    )


def members(public: Public) -> list[Public]:
    """The public members of a class, without those inherited from other packages."""
    if not inspect.isclass(public.what):
        return []
    public_members = []
    for name, what in inspect.getmembers_static(public.what):
        owner = next(owner for owner in public.what.__mro__ if name in vars(owner))
        full = f"{public.what.__name__}.{name}"
        shown = full in DOCUMENTED_DUNDERS or not (name.startswith("_") or full in INTERNAL)
        is_code = isinstance(what, property | classmethod | staticmethod) or inspect.isfunction(what)
        if shown and is_code and owner.__module__.startswith("phenotaste."):
            value = what if isinstance(what, property) else getattr(public.what, name)
            public_members.append(Public(f"{public.path}.{name}", value))
    return public_members


@cache
def everything() -> tuple[Public, ...]:
    return tuple(each for public in names() for each in (public, *members(public)))


def with_code() -> list[Public]:
    return [each for each in everything() if not isinstance(each.what, property)]


def examples_of(public: Public) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(public.what.__doc__ or "")


def test_every_public_name_has_a_docstring():
    # Python gives a record without a docstring its signature as one.
    undocumented = [
        public.path
        for public in everything()
        if not (public.what.__doc__ or "").strip()
        or public.what.__doc__.startswith(f"{public.path.rsplit('.', 1)[-1]}(")
    ]
    assert not undocumented


def test_every_public_name_has_an_example_with_a_result():
    assert not [public.path for public in with_code() if not any(each.want for each in examples_of(public))]


def test_no_example_is_skipped():
    skipping = {doctest.SKIP}
    skipped = [each for each in with_code() if any(skipping & set(one.options) for one in examples_of(each))]
    assert not skipped


def test_every_example_is_collected():
    """A docstring that `make test` does not collect as a doctest would never run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "src"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    collected = {line.rpartition("::")[2] for line in done.stdout.splitlines()}
    assert not {public.home for public in with_code()} - collected


def test_exported_names_are_public():
    for module, listed in PUBLIC.items():
        named = getattr(importlib.import_module(module), "__all__", ())
        assert set(named) <= {*listed, *CONSTANTS.get(module, ()), *INTERFACES}, module
    known = {module.removeprefix("phenotaste.") for module in PUBLIC}
    assert set(phenotaste.__all__) <= known | {public.what.__name__ for public in names()}


def directives() -> dict[str, str]:
    """The names described by mkdocstrings, and their pages."""
    described = {}
    for page in sorted(REFERENCE.glob("*.md")):
        for identifier in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M):
            assert identifier not in described, f"{identifier} is described twice"
            described[identifier] = page.name
    return described


def test_the_index_lists_exactly_the_public_names():
    described, rows = directives(), (REFERENCE / "index.md").read_text().splitlines()
    known = set()
    for module, listed in PUBLIC.items():
        row = next((row for row in rows if row.startswith(f"| [`{module}`](")), "")
        assert set(re.findall(r"`(\w+)`", row)) == {*listed, *CONSTANTS.get(module, ())} - {module}
        for name in [*listed, *CONSTANTS.get(module, ())]:
            known.add(f"{module}.{name}")
            assert f"({described.get(f'{module}.{name}')})" in row
    assert set(described) == known


def test_every_public_name_and_method_is_on_the_site(site):
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    anchors = set(re.findall(r'id="(phenotaste\.[\w.]+)"', pages))
    constants = {f"{module}.{name}" for module, listed in CONSTANTS.items() for name in listed}
    assert not ({public.path for public in everything()} | constants) - anchors


def test_docstrings_are_shown_as_lists_and_code(site):
    for page in (site / "reference").glob("*.html"):
        text = page.read_text()
        assert not re.findall(r"<h\d[^>]*>(?:Parameters|Attributes|Examples)", text), page.name
        outside = re.sub(r"<pre.*?</pre>", "", text, flags=re.S)
        assert "&gt;&gt;&gt;" not in outside, page.name
    taste = (site / "reference" / "taste.html").read_text()
    assert "<li><code>rank</code>: number of phenotypes.</li>" in re.sub(r"\s*</?p>\s*", "", taste)
    built = (site / "reference" / "build.html").read_text()  # the fields of a record, with their comments
    assert "<code>attrition</code>: step, patients, visits, events," in built
