"""Guides: codes looked up among features, columns that begin there and stay near, and what the data do not support."""

import json

import numpy as np
import pytest

from helpers.reviewed_models import decided
from phenotaste import TASTE, Cohort, simulate
from phenotaste.cohort.align import align, columns_of
from phenotaste.errors import InputError
from phenotaste.guides import (
    STRENGTH,
    Features,
    correlation,
    parse_guides,
    patient_counts,
    read_guides,
    unsupported,
)
from phenotaste.metrics import cosines

RARE = {"Rare": ["rare_01", "rare_02", "rare_03"]}
NAMES = [
    "Dx_Essential hypertension [98.]",
    "Dx_CIR019 [CCSR]",
    "Dx_Type 2 diabetes mellitus [250.2]",
    "Dx_Gout [E11.9]",
    "Rx_M04AA [ATC]",
    "Dx_Heart failure [316139]",
    "Lab_Glucose high [2345-7]",
]


@pytest.fixture(scope="module")
def planted():
    cohort, truth = simulate.rare_phenotype(600, random_state=1)
    return cohort, truth.V


@pytest.fixture(scope="module")
def guided(planted):
    return TASTE(6, random_state=0, n_init=1, guides=RARE).fit(planted[0])


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("Dx_Gout [E11.9]", [3]),
        ("CCS:98", [0]),
        ("CCSR:CIR019", [1]),
        ("phecode:250.2", [2]),
        ("icd10cm:e119", [3]),
        ("ATC:M04AA", [4]),
        ("OMOP:316139", [5]),
        ("LOINC:2345-7", [6]),
        ("ICD10CM:I10", [0]),  # by its CCS category
        ("ICD10CM:I50.9", [1]),  # and by its CCSR category
        ("phecode:98", []),  # a category of CCS is none of phecodes
        ("CCS:250.2", []),
        ("Gout", []),
        ("CCS:99", []),
    ],
)
def test_codes_are_found_by_name_and_by_vocabulary(code, found):
    assert Features(NAMES).find(code) == found


def test_a_file_has_tables_with_codes_and_concept_sets(tmp_path):
    concept = {"CONCEPT_ID": 316139, "CONCEPT_CODE": "I50", "VOCABULARY_ID": "ICD10CM"}
    items = [
        {"concept": concept},
        {"concept": {"CONCEPT_ID": 7}, "isExcluded": True},
        {"concept": {"CONCEPT_ID": 8}},
    ]
    (tmp_path / "failure.json").write_text(json.dumps({"items": items}))
    (tmp_path / "guides.toml").write_text(
        'Gout = ["Dx_Gout"]\n["Heart failure"]\ncodes = ["CCS:108"]\nconcept_set = "failure.json"\nstrength = 0.9\n'
    )
    guides = read_guides(tmp_path / "guides.toml")
    assert guides == {
        "Gout": {"codes": ["Dx_Gout"]},
        "Heart failure": {"codes": ["CCS:108", "OMOP:316139", "ICD10CM:I50", "OMOP:8"], "strength": 0.9},
    }
    assert [guide.strength for guide in parse_guides(guides)] == [STRENGTH, 0.9]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Gout = ", "not valid TOML"),
        ("", "has no guide"),
        ("[Gout]\ncodes = []", "must have a name and a list of codes"),
        ('Gout = "Dx_Gout"', "must have a name and a list of codes"),
        ('[Gout]\ncodes = ["a"]\nweight = 1', "must have a name and a list of codes"),
        ('[Gout]\ncodes = ["a"]\nstrength = 1', "above 0 and below 1"),
        ("[Gout]\nconcept_set = 3", "name of a file as concept_set"),
        ('[Gout]\nconcept_set = "none.json"', "does not exist"),
        ('Gout = ["a"]\n"Gout " = ["b"]', "same name"),
    ],
)
def test_a_file_that_says_nothing_useful_is_refused(tmp_path, text, words):
    (tmp_path / "guides.toml").write_text(text)
    with pytest.raises(InputError, match=words):
        read_guides(tmp_path / "guides.toml")


def test_settings_that_cannot_be_met_are_refused(planted):
    cohort, _ = planted
    with pytest.raises(InputError, match="No code of the guide 'Gout' is a feature"):
        TASTE(2, guides={"Gout": ["Dx_Gout"]}).validate(cohort)
    with pytest.raises(InputError, match="rank=1 is less than the 2 guides"):
        TASTE(1, guides={"a": ["rare_01"], "b": ["rare_02"]}).fit(cohort)
    with pytest.raises(InputError, match='objective="relative"'):
        TASTE(2, objective="paper", guides=RARE).fit(cohort)
    with pytest.raises(InputError, match="must be None or a dict"):
        TASTE(2, guides=["rare_01"]).fit(cohort)
    with pytest.raises(InputError, match="no names of features"):
        TASTE(2, guides=RARE).fit(Cohort(cohort.visits, cohort.offsets))


def test_three_codes_bring_a_rare_phenotype_back(planted, guided):
    cohort, V = planted
    unguided = TASTE(6, random_state=0, n_init=1).fit(cohort)
    assert cosines(V[:, 5:], unguided.V_).max() < 0.3
    assert cosines(V[:, 5:], guided.V_[:, :1])[0, 0] > 0.85
    assert cosines(V[:, :5], guided.V_[:, 1:]).max(axis=1).min() > 0.9  # the other columns are free
    (found,) = guided.guides_
    assert (found["name"], found["phenotype"], found["features"], found["unsupported"]) == (
        "Rare",
        1,
        3,
        None,
    )
    assert found["cosine"] >= STRENGTH - 1e-9
    assert guided.names_ == ["Rare", "", "", "", "", ""]
    assert (np.diff(guided.loss_curve_) <= 0).all()


def test_a_guide_to_a_frequent_phenotype_is_completed_to_all_of_it(planted):
    cohort, V = planted
    codes = [str(cohort.feature_names[j]) for j in V[:, 0].argsort()[-3:]]
    found = TASTE(6, random_state=0, n_init=1, max_iter=10, guides={"Frequent": codes}).fit(cohort)
    assert cosines(V[:, :1], found.V_[:, :1])[0, 0] > 0.95  # the three codes alone: 0.7
    assert found.guides_[0]["unsupported"] is None


def test_a_guide_that_the_data_do_not_support_is_reported(planted):
    cohort, V = planted
    mixed = [str(cohort.feature_names[V[:, r].argmax()]) for r in range(3)]  # of three phenotypes
    with pytest.warns(
        UserWarning, match="The guide 'Mixed' is not supported by the data: patients with more"
    ):
        found = TASTE(6, random_state=0, n_init=1, max_iter=5, guides={"Mixed": mixed}).fit(cohort)
    assert any("Mixed" in sentence for sentence in found.warnings_)
    few = np.zeros((cohort.n_visits, 2))
    few[cohort.offsets[:5]] = 1.0  # five patients have both
    names = [*cohort.feature_names, "one", "two"]
    visits = np.hstack([cohort.visits.toarray(), few])
    other = Cohort(visits, cohort.offsets, cohort.static, feature_names=names)
    rows = np.isin(names, ["one", "two"])
    reason = unsupported(align(other, columns_of(other)).shard, rows)
    assert reason == "fewer than 11 patients have two of these codes"


def test_correlations_are_those_of_the_roots_of_shares():
    cohort = simulate.ehr(80, n_features=12, n_static=2, mean_visits=6, rank=2, random_state=0)[0]
    shard, rows = align(cohort, columns_of(cohort)).shard, np.arange(12) < 2
    counts, totals = patient_counts(shard, rows)
    sums = np.array(
        [cohort.visits[a:b].sum(axis=0) for a, b in zip(cohort.offsets, cohort.offsets[1:], strict=False)]
    )
    np.testing.assert_allclose(counts.toarray(), sums[:, :2])
    expected = np.corrcoef(np.sqrt(sums[:, :2] / sums.sum(axis=1, keepdims=True)).T)[0, 1]
    np.testing.assert_allclose(totals, sums.sum(axis=1))
    assert correlation(counts, totals) == pytest.approx(expected)


def test_guides_are_saved_and_follow_their_phenotype(guided, planted, tmp_path):
    guided.save(tmp_path / "model")
    loaded = TASTE.load(tmp_path / "model")
    assert (loaded.guides, loaded.guides_, loaded.names_) == (guided.guides, guided.guides_, guided.names_)
    again = loaded.refit(planted[0], decided(loaded, "open", "rejected", *["open"] * 4, names=("Rare",)))
    assert again.guides_[0]["phenotype"] == 1
    assert again.V_[:, 0] @ guided.V_[:, 0] >= STRENGTH - 1e-9
    accepted = loaded.refit(planted[0], decided(loaded, "accepted", *["open"] * 5, names=("Rare",)))
    assert (accepted.guides, list(accepted.guides_), accepted.names_[0]) == (None, [], "Rare")
    np.testing.assert_array_equal(accepted.V_[:, 0], guided.V_[:, 0])


def test_a_review_may_leave_fewer_phenotypes_than_there_were_guides(planted):
    cohort, V = planted
    guides = RARE | {"Other": [str(cohort.feature_names[V[:, 0].argmax()])]}
    model = TASTE(2, random_state=0, n_init=1, max_iter=5, guides=guides).fit(cohort)
    again = model.refit(cohort, decided(model, "open", "rejected", names=("Rare", "Other")))
    assert (again.rank, list(again.guides), [row["name"] for row in again.guides_]) == (1, ["Rare"], ["Rare"])
