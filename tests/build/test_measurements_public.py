"""Laboratory values of real patients, where they lie beside the project, against the same rules in pandas."""

import numpy as np
import pandas as pd
import pytest

from helpers.cohorts import SHARED
from phenotaste import build
from phenotaste.build.settings import Measurements, Settings
from phenotaste.sources import mimic4
from phenotaste.sources.workspace import Workspace

MIMIC = SHARED / "data" / "mimic4demo"
pytestmark = pytest.mark.skipif(not MIMIC.is_dir(), reason="the MIMIC-IV demo is not available")


@pytest.fixture(scope="module")
def labs():
    """The results with their level by range or flag; results at one time with one level count once."""
    table = pd.read_csv(MIMIC / "hosp" / "labevents.csv.gz", dtype={"flag": str})
    value, low, high = table["valuenum"], table["ref_range_lower"], table["ref_range_upper"]
    ranged = value.notna() & (low.notna() | high.notna())
    below, above = (a.astype(np.float32) < b.astype(np.float32) for a, b in ((value, low), (high, value)))
    flagged = ~ranged & (table["flag"] == "abnormal")
    conditions = [ranged & below, ranged & above, ranged, flagged]
    table["level"] = np.select(conditions, ["low", "high", "normal", "abnormal"], "unrated")
    table["ranged"], table["flagged"] = ranged, flagged
    return table


@pytest.fixture(scope="module")
def built():
    with Workspace() as workspace:
        records = mimic4.read(workspace, MIMIC, kinds=("measurement",))
        chosen = Settings(kinds=("measurement",), measurements=Measurements("all", quantiles=None))
        return build.cohort(workspace, records, chosen)


def test_every_count_of_a_level_is_that_of_pandas(labs, built):
    rated = labs[labs["level"] != "unrated"]
    once = rated.drop_duplicates(["subject_id", "hadm_id", "charttime", "itemid", "level"])
    expected = once.groupby(["subject_id", "itemid", "level"]).size()
    cohort = built.cohort
    names = pd.Series(cohort.feature_names).str.extract(r"^Lab_.* (low|normal|high|abnormal) \[(\d+)\]$")
    lengths = np.diff(cohort.visits.indptr)
    found = pd.DataFrame(
        {
            "subject_id": np.repeat(np.repeat(cohort.patient_ids, cohort.visit_counts), lengths),
            "itemid": names[1].astype(int).to_numpy()[cohort.visits.indices],
            "level": names[0].to_numpy()[cohort.visits.indices],
            "count": cohort.visits.data,
        }
    )
    found = found.groupby(["subject_id", "itemid", "level"])["count"].sum()
    assert len(found) > 5000
    pd.testing.assert_series_equal(found.sort_index(), expected.astype(float).sort_index(), check_names=False)


def test_the_data_quality_counts_how_results_were_rated(labs, built):
    quality, rest = built.quality, ~labs["ranged"] & ~labs["flagged"]
    assert quality["measurements"] == len(labs)
    assert quality["measurements_own_range"] == labs["ranged"].sum()
    assert quality["measurements_own_flag"] == labs["flagged"].sum()
    assert quality["measurements_without_value"] == (rest & labs["valuenum"].isna()).sum()
    assert quality["measurements_without_range"] == (rest & labs["valuenum"].notna()).sum()
