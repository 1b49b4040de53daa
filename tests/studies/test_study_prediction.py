"""The study of prediction: its cells, its simulated cohorts, DE-SynPUF without the outcome, and what its page says."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.cohorts import SHARED
from phenotaste import Cohort, InputError, simulate, studies
from phenotaste.prediction.evaluation_tables import over_splits
from phenotaste.prediction.methods import LABELS
from phenotaste.studies import prediction, prediction_page
from phenotaste.studies.methods import synpuf_heart_failure, without_heart_failure
from phenotaste.studies.results import read_results
from phenotaste.studies.study import CellContext, Options

SLICE = SHARED / "data" / "desynpuf"
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "studies" / "results" / "prediction.csv"


def made_up_results(effects, splits=5, noise=0.002):
    """Results as a run would leave them: AUC 0.7 and each method's own effect, a little noise on every split."""
    rng = np.random.default_rng(0)
    rows = []
    for cell in prediction.cells(Options(quick=True, splits=splits)):
        auc = 0.7 + effects.get((cell["cohort"], cell["method"]), 0.0) + noise * rng.standard_normal()
        figures = {"auc": auc, "auprc": 0.2, "brier": 0.08, "calibration_slope": 1.0, "validation_auc": auc}
        facts = {"n_patients": 300, "n_cases": 30, "n_test": 45, "n_test_cases": 4, "visits": 9000}
        rows.append(cell | figures | facts | {"features": 323, "static": 22, "lam": 0.1, "mu": 1.0})
    return pd.DataFrame(rows)


def test_cells_are_those_specified():
    full = pd.DataFrame(prediction.cells(Options()))
    assert set(full["cohort"]) == {"phenotypes alone", "static features too"}
    assert set(full["method"]) == set(prediction.METHODS)
    assert full["split"].nunique() == 5
    ranked = full[full["rank"].notna()]
    assert set(ranked["method"]) == {"taste", "copa", "copa-static", "cntf"}
    paper = pd.DataFrame(prediction.cells(Options(size="paper")))
    assert sorted(paper["rank"].dropna().unique()) == [5, 10, 20, 40, 60, 80, 100]
    assert set(paper["patients"]) == {35_113}
    ours = paper[paper["method"] == "taste"].iloc[0]
    assert (ours["lams"], ours["mus"]) == ("0.01 0.1 1.0", "0.01 0.1 1.0")
    assert len(prediction.cells(Options(synpuf="folder"))) == len(full) * 3 // 2
    assert prediction.cells(Options(splits=7))[-1]["split"] == 6
    # The path of the folder stays out of cells, and so out of results and pages.
    assert "folder" not in str(prediction.cells(Options(synpuf="folder")))


def test_the_quick_version_from_cells_to_page(tmp_path):
    """Every method of the paper on both cohorts."""
    found = studies.run("prediction", tmp_path / "quick", Options(quick=True), jobs=1)
    assert found.results["cell"].nunique() == len(prediction.cells(Options(quick=True)))
    counts = found.summary.groupby(["cohort", "method"])["count"].sum()
    assert set(counts.index) == {
        (cohort, method) for cohort in prediction.STATIC_RISK for method in prediction.METHODS
    }
    assert (counts == 2).all()
    assert found.results["auc"].between(0, 1).all()
    page = (tmp_path / "quick" / "prediction.md").read_text()
    assert "nan" not in page
    for method in ("taste", "copa", "copa-static"):
        for cohort in prediction.STATIC_RISK:
            rows = found.results[(found.results["method"] == method) & (found.results["cohort"] == cohort)]
            assert f"{rows['auc'].mean():.3f} (" in page
    assert (tmp_path / "quick" / "prediction.png").stat().st_size > 10_000


def test_the_results_in_the_docs_are_of_five_splits_and_both_cohorts():
    rows = read_results(RESULTS)
    for cohort in prediction.STATIC_RISK:
        for method in ("taste", "copa", "copa-static"):
            part = rows[(rows["cohort"] == cohort) & (rows["method"] == method)]
            assert part["split"].nunique() >= 5
            assert part["rank"].nunique() >= 3
    assert rows["n_patients"].max() >= 2000


def test_a_cell_is_a_pure_function_of_itself():
    cells = [
        cell for cell in prediction.cells(Options(quick=True)) if cell["method"] in ("taste", "raw-static")
    ]
    prediction.load_cohort.cache_clear()
    found = prediction.run(cells[-1], CellContext(Options(quick=True)))
    prediction.load_cohort.cache_clear()
    assert prediction.run(cells[-1], CellContext(Options(quick=True), threads=1)) == found
    assert 0 <= found["auc"] <= 1
    assert found["n_patients"] == 300


def test_the_two_cohorts_differ_in_labels_alone():
    plain, static = (
        prediction.load_cohort(name, 3000, 0, None) for name in ("phenotypes alone", "static features too")
    )
    assert (plain.visits != static.visits).nnz == 0
    assert (plain.static == static.static).all()
    assert (plain.labels != static.labels).any()
    smokers = plain.static[:, plain.static_names.tolist().index("Static_Smk_Yes")] == 1
    excess = [c.labels[smokers].mean() - c.labels[~smokers].mean() for c in (plain, static)]
    assert abs(excess[0]) < 0.03  # smoking goes with phenotypes too, a little
    assert excess[1] > 0.06


def test_the_default_cohort_is_what_it_was_and_the_strength_is_checked():
    default, one = simulate.heart_failure(300, 2)[0], simulate.heart_failure(300, 2, static_risk=1.0)[0]
    assert (default.labels == one.labels).all()
    # Cases of seeds 0 to 4 before the setting was there.
    cases = [int(simulate.heart_failure(400, seed)[0].labels.sum()) for seed in range(5)]
    assert cases == [45, 38, 35, 37, 40]
    for wrong in (-1, float("nan"), "much"):
        with pytest.raises(InputError, match="static_risk"):
            simulate.heart_failure(50, static_risk=wrong)


def test_the_page_matches_the_results():
    effects = {
        ("phenotypes alone", "copa-static"): -0.1,
        ("static features too", "gru"): 0.1,
        ("static features too", "raw-static"): 0.05,
    }
    results = made_up_results(effects)
    text = prediction.text(results, prediction.table(results))
    lines = text.splitlines()
    first, second = (next(line for line in lines if line.startswith(f"- *simulated: {word}")) for word in (
        "risk depends on phenotypes only", "risk also depends on static"))  # fmt: skip
    assert "is above COPA with static;" in first
    assert "is below" not in first
    assert "is below GRU and Codes and static;" in second
    assert "does not differ detectably from" in second
    ours = results[(results["cohort"] == "phenotypes alone") & (results["method"] == "taste")]["auc"]
    bounds = over_splits(ours.tolist(), "auc")
    wanted = f"{ours.mean():.3f} ({bounds['auc_splits_low']:.3f} to {bounds['auc_splits_high']:.3f})"
    assert f"| TASTE | {wanted} |" in text
    assert "5 stratified splits" in text
    assert "0.7554" in text


def test_the_page_is_the_same_from_the_file(tmp_path):
    results = made_up_results({}, splits=2)
    results.to_csv(tmp_path / "results.csv", index=False)
    again = read_results(tmp_path / "results.csv")
    assert prediction.text(again, prediction.table(again)) == prediction.text(
        results, prediction.table(results)
    )


def test_the_number_of_phenotypes_is_chosen_by_validation_not_by_test():
    results = made_up_results({})
    more = results[results["method"] == "taste"].assign(rank=9, auc=0.99)
    worse = prediction_page.best_of(pd.concat([results, more.assign(validation_auc=0.0)], ignore_index=True))
    assert (worse[worse["method"] == "taste"]["rank"] == 4).all()
    better = prediction_page.best_of(pd.concat([results, more.assign(validation_auc=1.0)], ignore_index=True))
    assert (better[better["method"] == "taste"]["rank"] == 9).all()
    assert (better[better["method"] != "taste"]["rank"].dropna() == 4).all()


def test_without_torch_its_methods_are_skipped_and_reported(monkeypatch):
    monkeypatch.setattr(prediction, "find_spec", lambda name: None)
    results = made_up_results({}, splits=2)
    assert set(results["method"]) == set(prediction.METHODS) - {"cntf", "gru"}
    assert "require torch, which was not installed" in prediction.text(results, prediction.table(results))


def test_the_figure_has_a_panel_for_each_cohort_and_every_method():
    results = made_up_results({}, splits=2)
    figure = prediction.figure(results, prediction.table(results))
    assert len(figure.axes) == 2
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        LABELS[method] for method in prediction.METHODS
    }


def test_the_outcome_is_not_among_the_features():
    cohort = Cohort(
        [[1, 0, 2], [0, 3, 0]], [0, 1, 2], [[1, 0, 1], [0, 1, 0]],
        feature_names=["Dx_Congestive heart failure; nonhypertensive [108.]", "Dx_Gout [54.]", "Dx_Other [1080.]"],
        static_names=["sex=male", "sp_chf=yes", "sp_copd=yes"], labels=[0, 1],
    )  # fmt: skip
    kept = without_heart_failure(cohort)
    assert kept.feature_names.tolist() == ["Dx_Gout [54.]", "Dx_Other [1080.]"]
    assert kept.static_names.tolist() == ["sex=male", "sp_copd=yes"]
    assert kept.visits.toarray().tolist() == [[0, 2], [3, 0]]
    assert kept.labels.tolist() == [0, 1]


@pytest.mark.skipif(not SLICE.is_dir(), reason="the DE-SynPUF slice is not available")
def test_incident_heart_failure_on_the_public_slice(tmp_path):
    for name in ("slice1_beneficiary_2008", "slice1_inpatient", "slice1_outpatient"):
        (tmp_path / f"{name}.csv.gz").symlink_to(SLICE / f"{name}.csv.gz")
    cohort = synpuf_heart_failure(str(tmp_path))
    assert cohort.shape == (568, 171)
    assert cohort.labels.sum() == 148
    names = [*cohort.feature_names, *cohort.static_names]
    assert not [name for name in names if "[108." in name or "chf" in name.lower()]
    assert cohort.static_names[-1] == "sp_strketia=yes"
