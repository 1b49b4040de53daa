"""`phenotaste demo`: a simulated heart-failure cohort from start to finish."""

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

RANK = 5
# The first line marks the folder of a demo, whose files may be replaced.
README = """Written by `phenotaste demo` from simulated patients.

report.html     the phenotypes found, to review in a browser
figures         the same content as figures
tables          the same content as tables
cohort          the simulated patients, without their true phenotypes
model           the fitted model
scores.parquet  a row for each patient: scores, amounts, shares
"""


class Demo(NamedTuple):
    model: "TASTE"
    content: "Content"  # of the page
    summary: "FitSummary"
    similarity: dict[str, float]  # of the planted and the estimated definitions, from 0 to 1
    seconds: float


def demo(
    out: Annotated[Path, typer.Option(help="Folder for all files of the demo.")] = Path("phenotaste-demo"),
    patients: Annotated[int, typer.Option(help="Number of simulated patients.")] = 3000,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Simulate a heart-failure cohort and find its phenotypes.

    The five phenotypes of the paper are planted in the cohort, so that their recovery can be measured. Writes the
    cohort, the model, the scores, figures, tables and the page for reviewing the phenotypes.

    Example:

        phenotaste demo --out demo
    """
    from phenotaste.cli.terminal import print_json
    from phenotaste.storage.encoding import json_value

    check_demo_folder(out)
    done = make_demo(out, patients, seed)
    if not json_:
        print_demo(done, out)
        return
    print_json(
        {name: str(path) for name, path in demo_paths(out).items()}
        | done.summary.as_dict()
        | {"total_seconds": done.seconds, "similarity": done.similarity}
        | {"definitions": json_value(done.model.phenotypes().to_dict("records"))}
    )


def check_demo_folder(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: choose another --out.")
    readme = demo_paths(out)["readme"]
    is_demo = readme.is_file() and README.splitlines()[0] in readme.read_text(errors="replace")
    if out.is_dir() and any(out.iterdir()) and not is_demo:
        raise InputError(f"{out} holds files that are not from an earlier demo: choose another --out.")


def demo_paths(out: Path) -> dict[str, Path]:
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

    start = time.perf_counter()
    paths = demo_paths(out)
    step(f"Simulating {patients:,} patients")
    cohort, truth = simulate.heart_failure(patients, random_state=seed)
    out.mkdir(parents=True, exist_ok=True)
    paths["readme"].write_text(README)
    cohort.save(paths["cohort"])
    step(f"Fitting {RANK} phenotypes")
    model = TASTE(RANK, random_state=seed)
    fit_start = time.perf_counter()
    with fit_progress() as model.callback:
        model.fit(cohort)
    summary = report.fit_summary(model, time.perf_counter() - fit_start)
    model.save(paths["model"])
    step("Scoring the patients")
    write_scores(model, cohort, paths["scores"])
    step("Drawing figures and writing the page")
    content = report.write(
        model,
        paths["report"],
        cohort,
        figures=paths["figures"],
        tables=paths["tables"],
        title="Simulated heart failure",
    )
    return Demo(model, content, summary, similarity(model, truth), time.perf_counter() - start)


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
    """Return the heading of a phenotype: its number, and the patients it leads in if they may be shown."""
    leading = phenotype.leading
    if leading.patients is None or leading.share is None:
        return f"Phenotype {phenotype.number} · few patients"
    return f"Phenotype {phenotype.number} · {leading.patients:,} patients ({leading.share:.0%})"


def print_demo(done: Demo, out: Path) -> None:
    from phenotaste.cli.terminal import print_list, print_phenotypes

    paths = demo_paths(out)
    print_phenotypes(done.model.phenotypes(), [heading(phenotype) for phenotype in done.content.phenotypes])
    print_list("The fit", done.summary.lines())
    print_list(
        "Recovery of the planted phenotypes (mean cosine, matched one to one)",
        [(f"{kind.capitalize()} features", f"{value:.3f}") for kind, value in done.similarity.items()],
    )
    print_list(
        f"Finished in {done.seconds:.0f} s",
        [(name.capitalize(), str(path)) for name, path in paths.items()],
        wrap=False,
    )
    quoted = {name: shlex.quote(str(path)) for name, path in paths.items()}
    print_list(
        "Next steps",
        [
            ("Review", f"open {paths['report']} in a browser, name the phenotypes, save review.json"),
            ("Refit", f"phenotaste fit {quoted['cohort']} --rank 4 --out {quoted['model']}-4"),
            ("Score", f"phenotaste score {quoted['model']} {quoted['cohort']} --out scores.parquet"),
            ("With names", "the same, with --review review.json"),
        ],
        wrap=False,
    )
