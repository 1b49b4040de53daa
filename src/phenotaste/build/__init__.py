"""Building a cohort from events: code groups, index dates, windows, matching, filters and attrition."""

from phenotaste.build.assemble import Built, ModelColumns, cohort

__all__ = ["Built", "ModelColumns", "cohort"]
