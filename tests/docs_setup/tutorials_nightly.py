"""What the tutorial before leaves behind: its database, cohort, model and review."""

from pathlib import Path

from helpers.docs_run import ROOT, blocks_of, run_here, run_python
from phenotaste import TASTE
from phenotaste.review import Review


def prepare(folder: Path) -> None:
    makes_cdm = next(
        block for block in blocks_of(ROOT / "docs" / "tutorials" / "omop.md") if block.language == "python"
    )
    run_python(makes_cdm, {})
    for command in (
        "phenotaste cohort omop cdm.duckdb --min-visits 5 --min-patients 5 --out cohort",
        "phenotaste fit cohort --rank 5 --max-iter 20 --out choice/best",
    ):
        run_here(command.split())
    Review.blank(TASTE.load(folder / "choice" / "best"), names={1: "First"}).write(folder / "review.json")
