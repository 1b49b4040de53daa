"""Real ICU stays with times in minutes, where they lie beside the project: two commands, and the flags in pandas."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from helpers.cohorts import SHARED
from phenotaste import Cohort
from phenotaste.cli import main

ICU = SHARED / "data" / "icu2012"
pytestmark = pytest.mark.skipif(not ICU.is_dir(), reason="the stays of the Challenge 2012 are not available")
COLUMNS = ("patient=stay", "time=minute", "code=variable", "label=In-hospital_death")
OPTIONS = (
    *(f"--column={pair}" for pair in COLUMNS),
    "--kind=measurement",
    "--kinds=measurement",
    "--time-unit=minutes",
    "--missing=-1",
    "--first=48h",
    "--visit=1h",
    "--quantiles=none",
    "--values=binary",
    "--static-columns=age,sex,icutype",
    "--age-bands=45,55,65,75,85",
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The cohorts of both sets, the second with the columns of the first."""
    folder = tmp_path_factory.mktemp("icu2012")
    ranges = folder / "ranges.csv"  # that of the data, and ventilation, which is recorded as 1
    ranges.write_text((ICU / "ranges.csv").read_text() + "MechVent,,0,,\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        again = ("--settings=a/settings.toml", "--like=a")
        for name, options in (("a", (*OPTIONS, f"--ranges={ranges}")), ("b", again)):
            files = (
                f"--events={ICU / f'set_{name}_events.parquet'}",
                f"--static={ICU / f'set_{name}_stays.csv'}",
            )
            patch.setattr(sys, "argv", ["phenotaste", "cohort", "tables", *files, *options, f"--out={name}"])
            with pytest.raises(SystemExit) as end:
                main()
            assert not end.value.code
    return {name: (Cohort.load(folder / name), folder / name) for name in "ab"}


def flags(name):
    """stay, hour and feature of every abnormal result, by the rules of the README, but urine by result, not summed."""
    events = pd.read_parquet(ICU / f"set_{name}_events.parquet")
    limits = pd.read_csv(ICU / "ranges.csv", index_col="variable").astype(np.float32)
    limits = limits.reindex(events["variable"].astype(str)).reset_index(drop=True)
    value, hour = events["value"].astype(np.float32), events["minute"] // 60
    implausible = (value < limits["implausible_below"]) | (value > limits["implausible_above"]) | (value < 0)
    level = np.select([value < limits["low"], value > limits["high"]], ["low", "high"], "")
    level = np.where((events["variable"] == "MechVent") & (value > 0), "high", level)
    kept = (level != "") & ~implausible & (hour < 48)
    feature = "Lab_" + events["variable"].astype(str) + " " + pd.Series(level)
    table = pd.DataFrame({"stay": events["stay"], "hour": hour, "feature": feature})
    return table[kept].drop_duplicates().sort_values(["stay", "hour", "feature"], ignore_index=True)


@pytest.mark.parametrize("name", ["a", "b"])
def test_hourly_flags_are_those_of_pandas(sets, name):
    cohort, _ = sets[name]
    lengths = np.diff(cohort.visits.indptr)
    found = pd.DataFrame(
        {
            "stay": np.repeat(np.repeat(cohort.patient_ids, cohort.visit_counts), lengths),
            "hour": np.repeat(cohort.visit_times // 60, lengths).astype(int),
            "feature": cohort.feature_names[cohort.visits.indices],
        }
    ).sort_values(["stay", "hour", "feature"], ignore_index=True)
    expected = flags(name)
    known = expected["feature"].isin(set(cohort.feature_names))
    assert known.all() if name == "a" else (~known).sum() < 10  # what set a has none of is no column
    pd.testing.assert_frame_equal(
        found.astype(str), expected[known].astype(str).reset_index(drop=True), check_dtype=False
    )
    assert (cohort.visits.data == 1).all()


@pytest.mark.parametrize("name", ["a", "b"])
def test_labels_static_columns_and_times(sets, name):
    cohort, folder = sets[name]
    stays = pd.read_csv(ICU / f"set_{name}_stays.csv").set_index("stay").loc[cohort.patient_ids.astype(int)]
    np.testing.assert_array_equal(cohort.labels, stays["In-hospital_death"])
    bands = pd.cut(stays["Age"], [0, 45, 55, 65, 75, 85, 200], right=False).cat.codes
    names = cohort.static_names.tolist()
    ages = [k for k, column in enumerate(names) if column.startswith("age=")]
    np.testing.assert_array_equal(cohort.static[:, ages].argmax(axis=1), bands)
    assert cohort.static[:, names.index("icutype=2.0")].sum() == (stays["ICUType"] == 2).sum()
    assert names == sets["a"][0].static_names.tolist()
    assert cohort.feature_names.tolist() == sets["a"][0].feature_names.tolist()
    assert cohort.visit_times.min() >= 0
    assert (cohort.last_times < 48 * 60).all()
    assert json.loads((folder / "quality.json").read_text())["measurements_without_value"] > 0  # those of -1
