"""Which columns a site speaks of, and how the sites' columns become one dictionary."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.hospitals import NAMES, hospitals
from phenotaste import Cohort
from phenotaste.errors import InputError
from phenotaste.federated import Settings, combine, init, messages, step
from phenotaste.federated.columns import Dictionary, own_names, shown, unite


def cohort_of(static, names, codes=None):
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


def test_codes_of_fewer_than_eleven_patients_are_hidden_however_often_they_occur():
    X = np.zeros((120, 3))
    X[:, 0], X[:10, 1], X[:11, 2] = 1, 50, 1
    c = cohort_of(np.ones((120, 1)), ["all"], X)
    assert shown(c, 11)[0].tolist() == [True, False, True]
    assert shown(c, 1)[0].tolist() == [True, True, True]
    twice = Cohort(np.repeat(X[:6], 4, axis=0), np.arange(0, 25, 4), feature_names=["a", "b", "c"])
    assert shown(twice, 11)[0].tolist() == [False, False, False]  # 24 visits, but of six patients


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=5),
    st.integers(0, 60),
    st.integers(2, 20),
)
def test_what_is_hidden_of_a_static_column_cannot_be_told_by_subtraction(levels, rest, fewest):
    K = sum(levels) + rest
    if K == 0:
        return
    owner = np.repeat(np.arange(len(levels) + 1), [*levels, rest])
    A = np.zeros((K, len(levels)))
    A[owner < len(levels), owner[owner < len(levels)]] = 1
    c = cohort_of(A, [f"race={n}" for n in range(len(levels))])
    seen = shown(c, fewest)[1]
    counts = np.array(levels)
    assert (counts[seen] >= fewest).all()
    left = K - counts[seen].sum()  # all that a reader can tell of the others together
    assert left == 0 or left >= fewest or not seen.any()


def test_amounts_and_facts_that_may_meet_are_hidden_by_themselves():
    A = np.zeros((100, 4))
    A[:, 0] = np.linspace(0.1, 0.9, 100)  # everybody has an amount
    A[:5, 1] = 0.5
    A[:50, 2] = A[40:, 3] = 1  # ten have both
    c = cohort_of(A, ["age", "dose", "drug=a", "drug=b"])
    assert shown(c, 11)[1].tolist() == [True, False, True, True]
    few_without = np.ones((100, 1))
    few_without[:4] = 0
    assert shown(cohort_of(few_without, ["insured"]), 11)[1].tolist() == [False]


def test_hidden_columns_are_zero_in_the_sums_and_absent_from_the_dictionary(tmp_path):
    cohorts = hospitals()
    init(tmp_path / "work", NAMES[:2], Settings(rank=2), features=None)
    post = tmp_path / "work" / "exchange"
    pair = [cohorts[2], with_own(cohorts[0])]  # "rare" is hidden in the first, and known by the second
    for name, c in zip(NAMES, pair, strict=False):
        done = step(post, c, site=name, state=tmp_path / name)
    assert "rare" not in messages.read(post / messages.file_name(0, "north")).record["features"]
    assert "rare" in messages.read(done.answer).record["features"]
    combine(tmp_path / "work")
    sums = [
        messages.read(step(post, c, site=name, state=tmp_path / name).answer).arrays["XU.0"]
        for name, c in zip(NAMES, pair, strict=False)
    ]
    rare = messages.read(post / messages.file_name(1)).record["features"].index("rare")
    assert not sums[0][rare].any()
    assert sums[1][rare].any()


def with_own(c):
    X = np.hstack([c.visits.toarray(), np.ones((c.n_visits, 2))])
    return Cohort(
        X, c.offsets, c.static, feature_names=[*c.feature_names, "own", "rare"], static_names=c.static_names
    )


def test_names_are_united_in_one_order_whoever_comes_first():
    a, b = Dictionary(["z", "a"], ["s"]), Dictionary(["a", "m"], ["s"])
    assert unite({"north": a, "south": b}).features == ["a", "m", "z"]
    assert unite({"south": b, "north": a}).features == ["a", "m", "z"]
    assert unite({"north": a, "south": a}).features == ["z", "a"]  # one order for all is kept


def test_sites_that_do_not_speak_the_same_language_are_told():
    icd, ccs = [f"ICD{n}" for n in range(9)], [f"CCS{n}" for n in range(9)]
    with pytest.raises(InputError, match="north has 9 temporal features"):
        unite({"north": Dictionary(icd, []), "south": Dictionary(ccs, [])})
    with pytest.raises(InputError, match="south has no static features"):
        unite({"north": Dictionary(icd, ["sex"]), "south": Dictionary(icd, [])})
    with pytest.warns(UserWarning, match="1 temporal features are spelt"):
        unite({"north": Dictionary([*icd, "Gout"], []), "south": Dictionary([*icd, "gout "], [])})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unite({"north": Dictionary(icd, []), "south": Dictionary(icd, [])})


def test_a_dictionary_given_beforehand_is_used_and_nothing_is_told(tmp_path):
    c = hospitals(plain=True)[0]
    wanted = [*c.feature_names[:5].tolist(), "nobody has this"]
    init(tmp_path / "work", ["north"], Settings(rank=2), features=wanted, static=c.static_names.tolist())
    post = tmp_path / "work" / "exchange"
    first = messages.read(step(post, c, site="north", state=tmp_path / "north").answer)
    assert first.record["features"] is None
    combine(tmp_path / "work")
    done = step(post, c, site="north", state=tmp_path / "north")
    assert done.unknown == c.n_features - 5
    assert messages.read(done.answer).arrays["XU.0"].shape == (6, 2)
    with pytest.raises(InputError, match="repeated names"):
        init(tmp_path / "again", ["north"], Settings(), features=["a", "a"])


def test_own_names_are_those_that_enough_patients_have():
    c = hospitals()[2]
    names = own_names(c, 11)
    assert "own" in names.features
    assert "rare" not in names.features
