"""Where the ICU stays of the Challenge 2012 lie beside the project; `phenotaste.studies.icu2012` reads them."""

from phenotaste.studies.icu2012 import SETS, icu2012

from .data import ROOT

__all__ = ["FOLDER", "SETS", "icu2012"]

FOLDER = ROOT.parent / "shared" / "data" / "icu2012"
