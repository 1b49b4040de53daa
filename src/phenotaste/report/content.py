"""The content of page, figures and tables, built from a model and a cohort. Every number about patients passes the gate."""

from typing import TYPE_CHECKING, Any

from phenotaste.report.record import (
    AttritionStep,
    Band,
    CardSection,
    Content,
    Contrast,
    Course,
    Features,
    Found,
    Hidden,
    Leading,
    MapPoint,
    Mass,
    OutcomeLink,
    Overview,
    Phenotype,
    Similar,
    Stability,
    StabilityText,
    StaticFeature,
    TemporalFeature,
    TypicalCourse,
)

if TYPE_CHECKING:
    from phenotaste.cohort import Cohort
    from phenotaste.taste import TASTE

__all__ = [
    "AttritionStep",
    "Band",
    "CardSection",
    "Content",
    "Contrast",
    "Course",
    "Features",
    "Found",
    "Hidden",
    "Leading",
    "MapPoint",
    "Mass",
    "OutcomeLink",
    "Overview",
    "Phenotype",
    "Similar",
    "Stability",
    "StabilityText",
    "StaticFeature",
    "TemporalFeature",
    "TypicalCourse",
    "build",
]


def build(
    model: "TASTE",
    cohort: "Cohort | None" = None,
    *,
    gate: Any = None,
    selection: Any = None,
    review: Any = None,
    title: str = "Phenotypes",
) -> Content:
    raise NotImplementedError
