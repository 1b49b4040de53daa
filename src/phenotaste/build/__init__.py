"""From events to a cohort: code groups, index dates, windows, matching, filters, and the attrition table."""

from phenotaste.build.assemble import Built, Like, cohort

__all__ = ["Built", "Like", "cohort"]
