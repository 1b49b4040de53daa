"""Comparison of methods: what each figure is, leakage, groups, disclosure, resumption."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from phenotaste import Cohort, InputError, comparison, metrics, simulate
from phenotaste.baselines import PatientNMF
from phenotaste.comparison import measures
from phenotaste.comparison.fits import Patients, run_task
from phenotaste.comparison.methods import METHODS, MethodSettings, has_modes, make
from phenotaste.comparison.page import render, verdict
from phenotaste.comparison.tasks import HALF, SPLIT, START, FitSettings, Plan, Task
from phenotaste.prediction.methods import record_size
from phenotaste.prediction.split_cohorts import draw_split, split_cohort
from phenotaste.selection.fits import halves
from phenotaste.selection.matching import match_factors

METHOD_NAMES = ["spartan", "nmf", "raw"]
SMALL = {"ranks": 3, "halves": 2, "starts": 2, "splits": 2, "jobs": 1}


@pytest.fixture(scope="module")
def cohort():
    return simulate.heart_failure(n_patients=300, random_state=3)[0]


@pytest.fixture(scope="module")
def result(cohort, tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison") / "out"
    return comparison.compare(cohort, METHOD_NAMES, out=out, **SMALL), out


def row(result, method):
    return result.table.set_index("method").loc[method]


# --- figures -------------------------------------------------------------------------------------------------------


def test_replication_is_that_of_separate_fits_of_both_halves(cohort, result):
    settings = FitSettings()
    cosines = []
    for number in (0, 2):
        models = []
        for task in (Task(HALF, "nmf", 3, number), Task(HALF, "nmf", 3, number + 1)):
            fitted, others = halves(cohort, settings.half_order(task.number, len(cohort)), task.number)
            assert not set(fitted.patient_ids) & set(others.patient_ids)
            assert len(fitted) + len(others) == len(cohort)
            models.append(PatientNMF(3, random_state=settings.seed(task)).fit(fitted))
        cosines.append(metrics.matched_similarity(models[0].V_, models[1].V_))
    found = row(result[0], "nmf")
    assert found["halves_V"] == pytest.approx(np.mean(cosines), abs=1e-9)
    assert (found["halves_V_low"], found["halves_V_high"]) == pytest.approx((min(cosines), max(cosines)))


def test_prediction_learns_from_training_patients_only(cohort):
    """Labels of test patients are exchanged: the risks stay, so that the AUC is the complement."""
    case = np.asarray(cohort.labels) == 1
    train, validation, test, *_ = split_cohort(cohort, case, draw_split(case, 0, 0, cohort.persons))
    model = make("nmf", 3, 5, MethodSettings()).fit(train)
    found = measures.aucs(model, train, validation, test, 0)
    exchanged = measures.aucs(model, train, validation, test.with_labels(1.0 - np.asarray(test.labels)), 0)
    assert np.add(found, exchanged) == pytest.approx(np.ones(3))
    task = Task(SPLIT, "nmf", 3, 0)
    settings = FitSettings()
    own = run_task(Patients(cohort, case), task, settings, 1).figures
    model = make("nmf", 3, settings.seed(task), MethodSettings()).fit(train)
    assert own["auc"] == measures.aucs(model, train, validation, test, settings.seed(task)).scores


def test_auc_of_random_labels_is_not_above_chance(cohort):
    labels = np.random.default_rng(0).permutation(np.asarray(cohort.labels))
    shuffled = cohort.with_labels(labels)
    found = comparison.compare(shuffled, "nmf", ranks=3, halves=0, starts=1, splits=5, jobs=1)
    assert abs(row(found, "nmf")["auc"] - 0.5) < 0.15


def test_held_out_error_is_that_of_non_negative_least_squares(cohort):
    from scipy.optimize import nnls

    model = PatientNMF(3, random_state=0).fit(cohort[:200])
    others = cohort[200:]
    shares = []
    for k in range(len(others)):
        x = np.asarray(others.visits[others.offsets[k] : others.offsets[k + 1]].sum(axis=0)).ravel()
        if x.any():
            shares.append(nnls(model.V_, x)[1] ** 2 / (x @ x))
    assert measures.held_out_error(model, others) == pytest.approx(np.mean(shares), rel=1e-9)


def test_the_size_of_a_record_is_the_norm_of_its_visits(cohort):
    some = cohort[:20]
    dense = some.visits.toarray()
    parts = [dense[some.offsets[k] : some.offsets[k + 1]] for k in range(20)]
    expected = [np.log(np.linalg.norm(part)) if part.any() else 0.0 for part in parts]
    np.testing.assert_allclose(record_size(some)[:, 0], expected)


def test_signed_definitions_match_up_to_their_sign():
    V = np.array([[1.0, 0.0], [-0.5, 1.0]])
    found = match_factors(V, None, -V[:, ::-1], None)
    assert found.partner.tolist() == [1, 0]
    np.testing.assert_allclose(found.V, 1.0)


def test_counterparts_are_one_to_one_and_symmetric(result):
    table = result[0].counterparts
    pairs = {(r.method, r.phenotype): (r.other, r.other_phenotype) for r in table.itertuples()}
    assert len(pairs) == 6
    assert all(pairs[other] == one for one, other in pairs.items())


def test_classifiers_have_prediction_only(result):
    found = row(result[0], "raw")
    assert np.isnan(found["rank"])
    assert 0 <= found["auc"] <= 1
    assert np.isnan(found["halves_V"])


def test_phenotypes_count_the_halves_that_find_them(result):
    table = result[0].phenotypes
    assert (table["halves"] == 4).all()
    assert table["found"].between(0, 4).all()
    assert table["features"].str.len().gt(5).all()


# --- groups --------------------------------------------------------------------------------------------------------


def with_sites(cohort, sites):
    static = np.hstack([cohort.static, np.eye(2)[sites]])
    names = [*cohort.static_names, "site=north", "site=south"]
    return Cohort(
        cohort.visits, cohort.offsets, static, labels=cohort.labels, feature_names=cohort.feature_names,
        static_names=names, patient_ids=cohort.patient_ids,
    )  # fmt: skip


def test_groups_by_a_static_fact_and_by_values_are_the_same(cohort):
    sites = np.random.default_rng(1).integers(2, size=len(cohort))
    options = {"ranks": 3, "halves": 0, "starts": 1, "splits": 0, "jobs": 1}
    by_fact = comparison.compare(with_sites(cohort, sites), "spartan", between="site", **options)
    names = np.array(["north", "south"])[sites]
    by_values = comparison.compare(cohort, "spartan", between=names, **options)
    assert by_fact.groups == by_values.groups == ("north", "south")
    assert 0 < row(by_fact, "spartan")["groups_V"] < 1
    # Columns of the fact are in no fit: they would tell the groups apart.
    assert row(by_fact, "spartan")["groups_V"] == row(by_values, "spartan")["groups_V"]


@pytest.mark.parametrize(
    ("between", "message"),
    [
        ("site", "no static columns of site"),
        (["a"] * 3, "3 values for 300 patients"),
        (["a"] * 300, "1 groups of at least 50"),
        ([f"{k}" for k in range(300)], "0 groups"),
    ],
)
def test_groups_that_cannot_be_compared_are_refused(cohort, between, message):
    with pytest.raises(InputError, match=message):
        comparison.compare(cohort, "spartan", between=between)


# --- files ---------------------------------------------------------------------------------------------------------


def test_page_and_tables_are_written_and_the_page_needs_nothing_else(result):
    _, out = result
    names = {"table.csv", "times.csv", "phenotypes.csv", "counterparts.csv", "comparison.html"}
    assert names <= {path.name for path in out.iterdir()}
    assert {"methods.png", "counterparts.pdf"} <= {path.name for path in (out / "figures").iterdir()}
    page = (out / "comparison.html").read_text()
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=.https?:", page)
    assert METHODS["spartan"].label in page
    table = pd.read_csv(out / "table.csv")
    assert table["method"].tolist() == METHOD_NAMES
    assert "seconds" not in table


def test_nothing_shown_is_of_fewer_than_eleven_patients(cohort):
    """A code that three patients have, and no other: it dominates a phenotype, and is not named."""
    extra = np.zeros((cohort.n_visits, 1))
    extra[cohort.offsets[:3]] = 500.0
    rare = Cohort(
        sparse.csr_array(sparse.hstack([cohort.visits, sparse.csr_array(extra)])), cohort.offsets, cohort.static,
        labels=cohort.labels, feature_names=[*cohort.feature_names, "Dx_Rare secret"],
        static_names=cohort.static_names,
    )  # fmt: skip
    options = {"ranks": 3, "halves": 0, "starts": 1, "splits": 0, "jobs": 1}
    shown = comparison.compare(rare, "nmf", **options)
    text = render(shown) + shown.phenotypes.to_csv() + str(shown.as_dict())
    assert "secret" not in text
    assert "(withheld)" in text
    assert shown.audit
    assert "secret" in render(comparison.compare(rare, "nmf", trusted=True, **options))


def test_hostile_names_are_text_on_the_page(cohort):
    names = [str(name) for name in cohort.feature_names]
    heaviest = int(np.argmax(np.asarray(cohort.visits.sum(axis=0)).ravel()))
    names[heaviest] = "<img src=x onerror=alert(1)>\x1b[2J"
    c = Cohort(
        cohort.visits, cohort.offsets, cohort.static, feature_names=names, static_names=cohort.static_names
    )
    page = render(comparison.compare(c, "nmf", ranks=3, halves=0, starts=1, splits=0, jobs=1))
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    assert "\x1b" not in page


def test_a_resumed_comparison_has_the_same_table_and_may_be_extended(cohort, result, tmp_path):
    _, out = result
    again = comparison.compare(cohort, ["spartan"], out=tmp_path / "o", **SMALL)
    with pytest.raises(InputError, match="resume"):
        comparison.compare(cohort, METHOD_NAMES, out=tmp_path / "o", **SMALL)
    fit = next((tmp_path / "o" / "fits").glob("half-*"))
    fit.write_bytes(fit.read_bytes()[:-20])
    reported = []
    with pytest.warns(UserWarning, match="damaged"):
        more = comparison.compare(
            cohort, METHOD_NAMES, out=tmp_path / "o", resume=True, callback=reported.append, **SMALL
        )
    assert (tmp_path / "o" / "table.csv").read_bytes() == (out / "table.csv").read_bytes()
    assert row(again, "spartan")["halves_V"] == row(more, "spartan")["halves_V"]
    plan = Plan(("spartan", "nmf", "raw"), (3,), 2, 2, 2)
    assert len(reported) == len(plan.tasks()) - len(Plan(("spartan",), (3,), 2, 2, 2).tasks()) + 1
    with pytest.raises(InputError, match="different settings"):
        comparison.compare(cohort, METHOD_NAMES, out=tmp_path / "o", resume=True, random_state=1, **SMALL)


# --- methods -------------------------------------------------------------------------------------------------------


def test_defaults_are_what_the_cohort_allows(cohort):
    settings = MethodSettings()
    names = comparison.methods.default_methods(cohort, settings)
    assert "limestone" in names
    assert "gru" not in names
    bare = Cohort(cohort.visits, cohort.offsets, feature_names=cohort.feature_names)
    assert not {"raw", "copa-static", "cohen-plus"} & set(comparison.methods.default_methods(bare, settings))
    one_kind = replace(settings, modes=("Dx_", "Px_"))
    assert "limestone" not in comparison.methods.default_methods(cohort, one_kind)
    assert has_modes(cohort, (["Dx_Gout and other crystal arthropathies [54.]"], "Rx_")) in (True, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": "magic"}, "does not exist"),
        ({"methods": []}, "No method"),
        ({"methods": "nmf", "ranks": 0}, "rank"),
        ({"methods": "nmf", "halves": -1}, "halves"),
        ({"methods": "nmf", "starts": 0}, "starts"),
        ({"methods": "nmf", "modes": ("Dx_",)}, "modes"),
        ({"methods": "nmf", "settings": {"magic": {}}}, "none of the methods"),
        ({"methods": "nmf", "settings": {"nmf": {"magic": 1}}}, "does not have"),
        ({"methods": "nmf", "jobs": 0}, "jobs"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(cohort, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        comparison.compare(cohort, **arguments)
    assert "\n" not in str(caught.value)


def test_a_method_that_the_cohort_does_not_allow_is_refused():
    cohort = simulate.ehr(60, n_features=30, rank=3, random_state=1)[0]
    bare = Cohort(cohort.visits, cohort.offsets)
    with pytest.raises(InputError, match="cohen-plus cannot be compared: the cohort has no static features"):
        comparison.compare(bare, "cohen-plus")


def test_every_method_is_made_and_named_once():
    labels = [method.label for method in METHODS.values()]
    assert len(set(labels)) == len(labels)
    for name, method in METHODS.items():
        if "torch" not in method.needs:
            model = make(name, 3 if method.ranked else None, 0, MethodSettings(threads=1))
            assert model.get_params().get("random_state") == (0 if method.random else None), name
            assert hasattr(model, "predict_proba") != method.ranked, name


def test_the_verdict_names_the_first_and_those_that_overlap():
    table = pd.DataFrame(
        {
            "method": ["taste", "nmf", "lda", "raw"], "rank": [5, 5, 5, np.nan], "auc": [0.7, 0.8, 0.5, 0.9],
            "auc_low": [0.65, 0.69, 0.45, 0.85], "auc_high": [0.75, 0.9, 0.55, 0.95],
        }
    )  # fmt: skip
    (sentence,) = verdict(table)
    assert sentence.endswith("NMF of patients: 0.800; its interval overlaps with 1 other: TASTE.")
    (sentence,) = verdict(pd.concat([table, table[:3].assign(rank=10, auc=0.3)]))
    assert "NMF of patients (R = 5): 0.800; its interval overlaps with 2 others: " in sentence
    assert sentence.endswith("TASTE (R = 5); TASTE (R = 10).")


def test_json_has_no_nan(result):
    json.dumps(result[0].as_dict(), allow_nan=False)
    assert Task(START, "nmf", 3, 0).name == "start-nmf-r3-0"
