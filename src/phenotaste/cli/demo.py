"""`phenotaste demo`: a made-up heart-failure cohort from start to finish."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from phenotaste.cli.options import Json, Seed
from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste import TASTE
    from phenotaste.report import FitSummary
    from phenotaste.report.schema import Content, Phenotype
    from phenotaste.simulate import Truth

RANK, STARTS = 5, 5
# By its first line a folder is known for a demo's, whose files may be replaced.
README = """Made by `phenotaste demo` from made-up patients.

report.html     the phenotypes found, to read, name and judge in a browser
figures         the same as pictures
tables          the same as tables
cohort          the made-up patients; their true phenotypes are not in it
model           the fitted model
scores.parquet  a row for each patient: scores, shares, intensities
"""


class Demo(NamedTuple):
    model: "TASTE"
    content: "Content"  # of the page
    summary: "FitSummary"
    found: dict[str, float]  # how alike the planted and the found definitions are, from 0 to 1
    seconds: float


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path(
        "phenotaste-demo"
    ),
    patients: Annotated[int, typer.Option(help="Number of made-up patients.")] = 3000,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Make up a heart-failure cohort and find its phenotypes.

    The five phenotypes of the paper are planted in the cohort, so it can be told how well they were found. Writes
    the cohort, the model, the scores, figures, tables and the page to read and review them on.

    Example:

        phenotaste demo --out demo
    """
    from phenotaste.cli.terminal import print_json

    check_demo_folder(out)
    done = make_demo(out, patients, seed)
    if not json_:
        print_demo(done, out)
        return
    print_json(
        {name: str(path) for name, path in places(out).items()}
        | done.summary.as_dict()
        | {"total_seconds": done.seconds, "similarity": done.found}
        | {"definitions": done.model.phenotypes().to_dict("records")}
    )


def check_demo_folder(out: Path) -> None:
    """A new or empty folder, or one from an earlier demo: anything else is somebody's."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: choose another --out.")
    readme = places(out)["readme"]
    ours = readme.is_file() and README.splitlines()[0] in readme.read_text(errors="replace")
    if out.is_dir() and any(out.iterdir()) and not ours:
        raise InputError(f"{out} holds files that are not from an earlier demo: choose another --out.")


def places(out: Path) -> dict[str, Path]:
    names = {
        "report": "report.html",
        "figures": "figures",
        "tables": "tables",
        "cohort": "cohort",
        "model": "model",
        "scores": "scores.parquet",
        "readme": "README.txt",
    }
    return {name: out / path for name, path in names.items()}


def make_demo(out: Path, patients: int, seed: int) -> Demo:
    """Simulate, fit, and write all files."""
    from phenotaste import TASTE, report, simulate
    from phenotaste.cli.terminal import fit_progress
    from phenotaste.report.scores import write_scores

    began = time.perf_counter()
    at = places(out)
    step(f"Making up {patients:,} patients")
    cohort, truth = simulate.heart_failure(patients, random_state=seed)
    out.mkdir(parents=True, exist_ok=True)
    at["readme"].write_text(README)
    cohort.save(at["cohort"])
    step(f"Looking for {RANK} phenotypes, {STARTS} times from different starts")
    model = TASTE(RANK, n_init=STARTS, random_state=seed)
    fit_began = time.perf_counter()
    with fit_progress() as model.callback:
        model.fit(cohort)
    summary = report.fit_summary(model, time.perf_counter() - fit_began)
    model.save(at["model"])
    step("Scoring the patients")
    write_scores(model, cohort, at["scores"])
    step("Drawing figures and writing the page")
    content = report.write(
        model,
        at["report"],
        cohort,
        figures=at["figures"],
        tables=at["tables"],
        title="Heart failure, made up",
    )
    return Demo(model, content, summary, similarity(model, truth), time.perf_counter() - began)


def step(text: str) -> None:
    typer.echo(f"{text} …", err=True)


def similarity(model: "TASTE", truth: "Truth") -> dict[str, float]:
    from phenotaste import metrics

    assert model.F_ is not None  # the cohort has static features
    return {
        "temporal": metrics.matched_similarity(truth.V, model.V_),
        "static": metrics.matched_similarity(truth.F, model.F_),
    }


def heading(phenotype: "Phenotype") -> str:
    """A line above a phenotype's table: its number, and the patients it leads in where they may be known."""
    leading = phenotype.leading
    if leading.patients is None or leading.share is None:
        return f"Phenotype {phenotype.number} · few patients"
    return f"Phenotype {phenotype.number} · {leading.patients:,} patients ({leading.share:.0%})"


def print_demo(done: Demo, out: Path) -> None:
    from phenotaste.cli.terminal import print_list, print_phenotypes

    at = places(out)
    print_phenotypes(done.model.phenotypes(), [heading(kind) for kind in done.content.phenotypes])
    print_list("The fit", done.summary.lines())
    print_list(
        "Planted and found, alike from 0 to 1 (mean cosine, matched one to one)",
        [(f"{kind.capitalize()} features", f"{value:.3f}") for kind, value in done.found.items()],
    )
    print_list(
        f"Made in {done.seconds:.0f} s",
        [(name.capitalize(), str(path)) for name, path in at.items()],
        wrap=False,
    )
    quoted = {name: shlex.quote(str(path)) for name, path in at.items()}
    print_list(
        "What to try next",
        [
            ("Look", f"open {at['report']} in a browser, name the phenotypes, save review.json"),
            ("Refit", f"phenotaste fit {quoted['cohort']} --rank 4 --n-init 5 --out {quoted['model']}-4"),
            ("Score", f"phenotaste score {quoted['model']} {quoted['cohort']} --out scores.parquet"),
            ("With names", "the same, with --review review.json"),
        ],
        wrap=False,
    )
