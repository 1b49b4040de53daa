"""What people look at: the fit summary, the review page with its figures and tables, and the table of scores."""

from phenotaste.report.making import write
from phenotaste.report.summary import FitSummary, fit_summary

__all__ = ["FitSummary", "fit_summary", "write"]
