"""A model with five phenotypes, and what three people said of them."""

from dataclasses import replace

from phenotaste import TASTE, simulate
from phenotaste.review import Review


def prepare(folder):
    cohort, _ = simulate.heart_failure(150, random_state=0)
    cohort.save(folder / "COHORT")
    model = TASTE(5, random_state=0, max_iter=10).fit(cohort)
    model.save(folder / "MODEL")
    first, second, *others = Review.blank(model, "Dr A", names={1: "Heart failure"}).decisions
    first, merged = replace(first, status="accepted"), replace(second, status="merged", merge_with=1)
    Review.blank(model).write(folder / "ben.json")
    for name in ("review", "anna"):
        replace(Review.blank(model, "Dr A"), decisions=(first, merged, *others)).write(
            folder / f"{name}.json"
        )
