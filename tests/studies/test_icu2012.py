"""The stays of the Challenge 2012 in both layouts, the rules of the flags, and the counts of the real ones."""

import numpy as np
import pandas as pd
import pytest

from helpers import icu_stays
from helpers.cohorts import SHARED
from phenotaste import InputError
from phenotaste.studies import icu2012 as module
from phenotaste.studies.icu2012 import SETS, icu2012, modes

REAL = SHARED / "data" / "icu2012"
STAY = """Time,Parameter,Value
00:00,RecordID,700001
00:00,Age,54
00:00,Gender,0
00:00,Height,160
00:00,ICUType,4
00:00,Weight,66
00:00,Weight,300
00:07,GCS,15
00:07,HR,73
00:37,HR,110
01:10,Urine,20
01:40,Urine,25
01:50,Lactate,-1
02:05,Temp,12
02:06,Weight,80
02:07,,
30:00,SaO2,101
30:00,MechVent,1
"""


def same(one, other):
    for name in (
        "offsets",
        "static",
        "patient_ids",
        "visit_times",
        "feature_names",
        "static_names",
        "labels",
    ):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    return abs(one.visits - other.visits).sum() == 0


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return icu_stays.write_prepared(tmp_path_factory.mktemp("icu") / "prepared", n=25)


@pytest.mark.parametrize("pack", ["folder", "tar.gz", "zip"])
def test_the_files_of_the_challenge_give_the_cohort_of_prepared_tables(tmp_path, prepared, pack):
    original = icu_stays.write_original(tmp_path / "original", pack, n=25)
    for name in SETS:
        found = icu2012(original, name, "all")
        assert same(found, icu2012(prepared, name, "all"))
        assert found.visit_counts[-1] == 0  # a stay without measurements
        assert len(found) == 25


def one_stay(folder, text=STAY):
    (folder / "set-a").mkdir()
    (folder / "set-a" / "700001.txt").write_text(text)
    (folder / "Outcomes-a.txt").write_text("RecordID,SAPS-I,In-hospital_death\n700001,3,1\n")
    return folder


def entries(cohort):
    names = np.asarray(cohort.feature_names)
    return [set(names[row > 0].tolist()) for row in cohort.visits.toarray()]


def test_hours_and_flags_of_one_stay(tmp_path):
    one_stay(tmp_path)
    cohort = icu2012(tmp_path, "a", "all")
    assert cohort.visit_times.tolist() == [0, 1, 30]  # nothing plausible in hour 2
    assert entries(cohort) == [{"GCS high", "HR normal", "HR high"}, {"Urine normal"}, {"MechVent on"}]
    abnormal = icu2012(tmp_path, "a")
    assert entries(abnormal) == [{"GCS high", "HR high"}, set(), {"MechVent on"}]
    assert icu2012(tmp_path, "a", normal_hours="drop").visit_times.tolist() == [0, 30]
    facts = np.asarray(cohort.static_names)[cohort.static[0] > 0].tolist()
    assert facts == [
        "age from 45",
        "female",
        "surgical",
        "BMI from 25",
    ]  # with the first weight, not a later one
    assert cohort.labels.tolist() == [1]
    assert cohort.patient_ids.tolist() == [700001]


def test_ranges_in_the_folder_replace_those_of_the_package(tmp_path):
    one_stay(tmp_path)
    table = pd.DataFrame.from_dict(module.RANGES, orient="index", columns=list(module.LIMITS))
    table.loc["HR", "high"] = 120
    table.rename_axis("variable").to_csv(tmp_path / "ranges.csv")
    assert entries(icu2012(tmp_path, "a")) == [{"GCS high"}, set(), {"MechVent on"}]
    (tmp_path / "ranges.csv").write_text("variable,low\nHR,60\n")
    with pytest.raises(InputError, match=r"^ranges\.csv has not the columns variable, low, high"):
        icu2012(tmp_path, "a")


def test_a_saved_copy_is_read_again(tmp_path):
    first = icu2012(one_stay(tmp_path), "a", cache=tmp_path / "cache")
    (tmp_path / "Outcomes-a.txt").unlink()
    assert same(first, icu2012(tmp_path, "a", cache=tmp_path / "cache"))


def test_modes_are_vital_signs_and_laboratory_values(prepared):
    names = [str(name) for name in icu2012(prepared, "a").feature_names]
    vital, laboratory = modes(names)
    assert sorted([*vital, *laboratory]) == names
    assert {"HR high", "MechVent on", "GCS low", "Urine low"} <= set(vital)
    assert {"pH low", "Creatinine high", "PaO2 low", "SaO2 low"} <= set(laboratory)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda f: (f / "Outcomes-a.txt").unlink(), r"has no Outcomes-a\.txt: download it"),
        (
            lambda f: (f / "Outcomes-a.txt").write_text("RecordID,Survival\n700001,1\n"),
            "no columns RecordID and",
        ),
        (
            lambda f: (f / "Outcomes-a.txt").write_text("RecordID,In-hospital_death\n7,1\n"),
            "lacks stays of set-a",
        ),
        (lambda f: (f / "set-a" / "x.txt").write_text(STAY), "some have no RecordID, or share one"),
        (lambda f: (f / "set-a" / "x.txt").write_text("Time,Parameter,Value\n"), "some have no RecordID"),
        (lambda f: (f / "set-a" / "700001.txt").write_text(STAY + "soon,HR,70\n"), "not hours and minutes"),
        (lambda f: (f / "set-a" / "700001.txt").unlink(), "not those of the Challenge"),
    ],
)
def test_damaged_files_are_reported_without_a_stay(tmp_path, harm, sentence):
    harm(one_stay(tmp_path))
    with pytest.raises(InputError, match=sentence) as error:
        icu2012(tmp_path, "a")
    assert "700001" not in str(error.value)


def test_an_absent_set_or_folder_is_reported(tmp_path):
    with pytest.raises(InputError, match=r"has no set-b, as a folder, \.tar\.gz or \.zip: download it"):
        icu2012(one_stay(tmp_path), "b")
    with pytest.raises(InputError, match="is not a folder"):
        icu2012(tmp_path / "nowhere", "a")


@pytest.mark.skipif(not REAL.is_dir(), reason="the stays of the Challenge 2012 are not available")
def test_counts_of_the_real_stays(tmp_path):
    known = {"a": (554, 3, 179_471), "b": (568, 7, 179_546)}
    for name, (deaths, without, visits) in known.items():
        cohort = icu2012(REAL, name)
        assert cohort.shape == (4000, 67)
        assert (cohort.labels.sum(), (cohort.visit_counts == 0).sum()) == (deaths, without)
        assert (cohort.n_visits, cohort.n_static) == (visits, 18)
    for path in REAL.glob("set_a*"):
        (tmp_path / path.name).symlink_to(path)
    assert same(icu2012(tmp_path, "a", "all"), icu2012(REAL, "a", "all"))  # the package's ranges are the same
