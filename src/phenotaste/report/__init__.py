"""Results for readers: the fit summary, the review page with its figures and tables, and the table of scores."""

from phenotaste.report.overview import FitSummary, fit_summary
from phenotaste.report.writer import write

__all__ = ["FitSummary", "fit_summary", "write"]
