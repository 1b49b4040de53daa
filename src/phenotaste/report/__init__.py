"""What people look at: the fit summary, the page, the figures, and the table of scores."""

from phenotaste.report.page import write
from phenotaste.report.summary import FitSummary, fit_summary

__all__ = ["FitSummary", "fit_summary", "write"]
