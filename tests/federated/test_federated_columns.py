"""The columns that a site may disclose, and the union of the sites' columns."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.hospitals import NAMES, hospitals
from phenotaste import Cohort
from phenotaste.errors import InputError
from phenotaste.federated import Settings, combine, init, messages, step
from phenotaste.federated.columns import ColumnNames, disclosable, disclosable_names, merge_columns


def one_visit_cohort(static, names, codes=None):
    """Patients with one visit each."""
    K = len(static)
    X = np.ones((K, 1)) if codes is None else codes
    return Cohort(
        X,
        np.arange(K + 1),
        static,
        feature_names=[f"c{j}" for j in range(X.shape[1])],
        static_names=names,
    )


def test_codes_of_fewer_than_eleven_patients_are_suppressed_whatever_their_counts():
    X = np.zeros((120, 3))
    X[:, 0], X[:10, 1], X[:11, 2] = 1, 50, 1
    c = one_visit_cohort(np.ones((120, 1)), ["all"], X)
    assert disclosable(c, 11)[0].tolist() == [True, False, True]
    assert disclosable(c, 1)[0].tolist() == [True, True, True]
    twice = Cohort(np.repeat(X[:6], 4, axis=0), np.arange(0, 25, 4), feature_names=["a", "b", "c"])
    assert disclosable(twice, 11)[0].tolist() == [False, False, False]  # 24 visits, but of six patients


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=5),
    st.integers(0, 60),
    st.integers(2, 20),
)
def test_suppressed_levels_cannot_be_computed_by_subtraction(levels, rest, min_cell_size):
    K = sum(levels) + rest
    if K == 0:
        return
    owner = np.repeat(np.arange(len(levels) + 1), [*levels, rest])
    A = np.zeros((K, len(levels)))
    A[owner < len(levels), owner[owner < len(levels)]] = 1
    c = one_visit_cohort(A, [f"race={n}" for n in range(len(levels))])
    disclosed = disclosable(c, min_cell_size)[1]
    counts = np.array(levels)
    assert (counts[disclosed] >= min_cell_size).all()
    left = K - counts[disclosed].sum()  # what a reader can compute: the total of the others
    assert left == 0 or left >= min_cell_size or not disclosed.any()


def test_continuous_and_overlapping_columns_are_suppressed_individually():
    A = np.zeros((100, 4))
    A[:, 0] = np.linspace(0.1, 0.9, 100)  # every patient has a value
    A[:5, 1] = 0.5
    A[:50, 2] = A[40:, 3] = 1  # ten have both
    c = one_visit_cohort(A, ["age", "dose", "drug=a", "drug=b"])
    assert disclosable(c, 11)[1].tolist() == [True, False, True, True]
    few_without = np.ones((100, 1))
    few_without[:4] = 0
    assert disclosable(one_visit_cohort(few_without, ["insured"]), 11)[1].tolist() == [False]


def test_suppressed_columns_are_zero_in_the_sums_and_not_named(tmp_path):
    cohorts = hospitals()
    init(tmp_path / "work", NAMES[:2], Settings(rank=2), features=None)
    post = tmp_path / "work" / "exchange"
    pair = [
        cohorts[2],
        with_own(cohorts[0]),
    ]  # "rare" is suppressed in the first, and disclosed by the second
    for name, c in zip(NAMES, pair, strict=False):
        done = step(post, c, site=name, state=tmp_path / name)
    assert "rare" not in messages.read(post / messages.file_name(0, "north")).header["features"]
    assert "rare" in messages.read(done.response).header["features"]
    combine(tmp_path / "work")
    sums = [
        messages.read(step(post, c, site=name, state=tmp_path / name).response).arrays["XU.0"]
        for name, c in zip(NAMES, pair, strict=False)
    ]
    rare = messages.read(post / messages.file_name(1)).header["features"].index("rare")
    assert not sums[0][rare].any()
    assert sums[1][rare].any()


def with_own(c):
    X = np.hstack([c.visits.toarray(), np.ones((c.n_visits, 2))])
    return Cohort(
        X, c.offsets, c.static, feature_names=[*c.feature_names, "own", "rare"], static_names=c.static_names
    )


def test_the_merged_order_does_not_depend_on_the_order_of_the_sites():
    a, b = ColumnNames(["z", "a"], ["s"]), ColumnNames(["a", "m"], ["s"])
    assert merge_columns({"north": a, "south": b}).features == ["a", "m", "z"]
    assert merge_columns({"south": b, "north": a}).features == ["a", "m", "z"]
    assert merge_columns({"north": a, "south": a}).features == ["z", "a"]  # a common order is kept


def test_sites_with_different_codings_are_refused_or_warned_about():
    icd, ccs = [f"ICD{n}" for n in range(9)], [f"CCS{n}" for n in range(9)]
    with pytest.raises(InputError, match="north has 9 temporal features"):
        merge_columns({"north": ColumnNames(icd, []), "south": ColumnNames(ccs, [])})
    with pytest.raises(InputError, match="south has no static features"):
        merge_columns({"north": ColumnNames(icd, ["sex"]), "south": ColumnNames(icd, [])})
    with pytest.warns(UserWarning, match="1 temporal features have several spellings"):
        merge_columns({"north": ColumnNames([*icd, "Gout"], []), "south": ColumnNames([*icd, "gout "], [])})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge_columns({"north": ColumnNames(icd, []), "south": ColumnNames(icd, [])})


def test_columns_fixed_in_advance_are_used_and_no_names_are_sent(tmp_path):
    c = hospitals(plain=True)[0]
    features = [*c.feature_names[:5].tolist(), "no patient has this"]
    init(tmp_path / "work", ["north"], Settings(rank=2), features=features, static=c.static_names.tolist())
    post = tmp_path / "work" / "exchange"
    first = messages.read(step(post, c, site="north", state=tmp_path / "north").response)
    assert first.header["features"] is None
    combine(tmp_path / "work")
    done = step(post, c, site="north", state=tmp_path / "north")
    assert done.unknown == c.n_features - 5
    assert messages.read(done.response).arrays["XU.0"].shape == (6, 2)
    with pytest.raises(InputError, match="repeated names"):
        init(tmp_path / "again", ["north"], Settings(), features=["a", "a"])


def test_disclosable_names_exclude_rare_codes():
    c = hospitals()[2]
    names = disclosable_names(c, 11)
    assert "own" in names.features
    assert "rare" not in names.features
