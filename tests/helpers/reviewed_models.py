"""Reviews of a fitted model, with a decision on each of its phenotypes."""

from dataclasses import replace

from phenotaste.review import Decision, Review


def decided(model, *statuses, names=(), **more):
    """A review of the model with a status for each phenotype; a number is the phenotype to merge with."""
    decisions = tuple(
        Decision(r + 1, names[r] if r < len(names) else "", status="merged", merge_with=status)
        if isinstance(status, int)
        else Decision(r + 1, names[r] if r < len(names) else "", status=status)
        for r, status in enumerate(statuses)
    )
    return replace(Review.blank(model, reviewer="Ann"), decisions=decisions, **more)
