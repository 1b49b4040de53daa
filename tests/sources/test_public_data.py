"""Public data sets, where they lie beside the project; they are not shipped with it."""

import pandas as pd
import pytest

from helpers.cohorts import SHARED
from phenotaste import TASTE, Cohort

SLICE = SHARED / "data" / "desynpuf" / "independent_build"


@pytest.mark.skipif(not SLICE.is_dir(), reason="the DE-SynPUF slice is not available")
def test_synpuf_slice_keeps_cross_products_invariant():
    events = pd.read_csv(SLICE / "slice1_events_ccs.csv.gz")
    static = pd.read_csv(SLICE / "slice1_static.csv.gz")
    c = Cohort.from_events(
        events, static.rename(columns={"DESYNPUF_ID": "patient"}), time="date", feature="feature_label"
    )
    assert c.shape[0] == 812
    m = TASTE(rank=5, random_state=0).fit(c)
    assert m.converged_
    assert m.cpi_ >= 0.95
