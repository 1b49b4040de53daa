"""The studies `icu` and `claims`: cells, halves, what a cell measures, and what the page says of it."""

import numpy as np
import pandas as pd
import pytest

from helpers import icu_stays
from phenotaste import InputError, metrics, simulate, studies
from phenotaste.comparison.methods import METHODS
from phenotaste.disclosure import Gate
from phenotaste.selection.matching import match_factors
from phenotaste.studies import claims, evidence, evidence_page, icu
from phenotaste.studies.evidence import HALF, PUBLISHED, Sides
from phenotaste.studies.results import read_results
from phenotaste.studies.study import CellContext, Options, check_options

FEW = "taste,nmf,raw-static"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(icu_stays.write_original(tmp_path_factory.mktemp("icu") / "data", n=60))


# Cells


def test_cells_are_those_specified(monkeypatch):
    monkeypatch.setattr(evidence, "is_available", lambda name: True)
    cells = pd.DataFrame(icu.cells(Options(data="folder")))
    assert set(cells["method"]) == set(METHODS) - {"gru", "cntf", "swotted"}
    assert sorted(cells["rank"].dropna().unique()) == [5, 10, 20]
    assert cells.loc[cells["split"] == 0, "sets"].unique().tolist() == [PUBLISHED]
    assert cells.loc[cells["split"] > 0, "sets"].unique().tolist() == [HALF]
    assert cells["split"].max() == 5
    raw = cells[cells["method"] == "raw"]
    assert len(raw) == 6  # once for all ranks
    assert raw["rank"].isna().all()
    assert cells["split"].is_monotonic_increasing
    assert "folder" not in cells.to_csv()  # the path of the data stays out of results and pages
    assert set(pd.DataFrame(icu.cells(Options(data="x", methods="gru, taste")))["method"]) == {"gru", "taste"}
    assert icu.cells(Options(data="x", ranks="7,4,7", methods="nmf", splits=1))[0]["rank"] == 4


def test_claims_have_pairs_of_codes_only_where_there_are_medications(monkeypatch):
    monkeypatch.setattr(evidence, "is_available", lambda name: True)
    alone = claims.cells(Options())
    cells = pd.DataFrame(claims.cells(Options(synpuf="folder")))
    assert {cell["cohort"] for cell in alone} == {"simulated"}
    methods = cells.groupby("cohort")["method"].agg(set)
    assert "limestone" in methods["simulated"]
    assert not [name for name in methods["DE-SynPUF"] if "kinds" in METHODS[name].needs]
    assert set(cells["sets"]) == {HALF}


def test_a_method_that_is_not_installed_is_no_cell(monkeypatch):
    monkeypatch.setattr(evidence.baselines, "__all__", ["RawLogistic"])
    assert {cell["method"] for cell in claims.cells(Options())} == {
        "taste",
        "taste-paper",
        "raw",
        "raw-static",
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (Options(), r"reads the stays of the PhysioNet Challenge 2012.*https://physionet.*--data DIR"),
        (Options(data="x", methods="nnmf"), "The method 'nnmf' does not exist: choose among taste"),
        (Options(data="x", ranks="five"), "ranks='five' must be integers separated by commas"),
        (Options(data="x", ranks="0"), "must be an integer of at least 1"),
        (Options(data="x", methods="raw"), "None of the methods has phenotypes"),
    ],
)
def test_wrong_options_are_reported(options, sentence):
    with pytest.raises(InputError, match=sentence):
        icu.cells(options)
    with pytest.raises(InputError, match="no option size"):
        check_options(icu, Options(size="paper"))


# Sides


def test_halves_are_disjoint_complete_and_of_whole_patients():
    cohort = simulate.heart_failure(60, 0)[0]
    one, again, other = (evidence.halves(cohort, number, 0, None) for number in (1, 1, 2))
    ids = [set(side.patient_ids.tolist()) for side in one.cohorts()]
    assert not ids[0] & ids[1]
    assert len(ids[0] | ids[1]) == 60
    assert set(again.first.patient_ids.tolist()) == ids[0]
    assert set(other.first.patient_ids.tolist()) != ids[0]


def test_joined_cohorts_have_all_patients(folder):
    first, second = icu.both_sets(folder, None, 0)
    both = evidence.joined(first, second)
    assert len(both) == len(first) + len(second)
    for part, whole in ((first, both[: len(first)]), (second, both[len(first) :])):
        assert abs(part.visits - whole.visits).sum() == 0
        for name in ("offsets", "static", "labels", "patient_ids", "visit_times"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name))


def test_sides_of_the_first_split_are_the_published_sets(folder):
    cells = icu.cells(Options(data=folder, methods="nmf", splits=1, ranks="3"))
    published, halves = (icu.sides_of(cell, folder) for cell in cells)
    first, second = icu.both_sets(folder, None, 0)
    assert published.cohorts() == (first, second)
    assert len(halves.first) + len(halves.second) == len(first) + len(second)
    assert set(halves.first.patient_ids) & set(second.patient_ids)
    assert all("HR high" in sides.modes[0] for sides in (published, halves))


# One cell


@pytest.fixture(scope="module")
def measured(folder):
    cell = icu.cells(Options(data=folder, methods="nmf", splits=1, ranks="2"))[0]
    sides = icu.sides_of(cell, folder)
    return cell, sides, evidence.run(cell, sides, 1)


def test_a_cell_is_a_pure_function_of_itself(measured):
    cell, sides, rows = measured
    again = evidence.run(cell, sides, 1)
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in rows]


def test_measures_match_their_definitions(measured):
    cell, sides, rows = measured
    row, found = rows[0], rows[1:]
    models = [evidence.fit(cell, sides, side, 1)[0] for side in (0, 1)]
    assert row["v_cosine"] == pytest.approx(metrics.matched_similarity(models[0].V_, models[1].V_))
    assert row["v_min"] <= row["v_cosine"] <= 1
    assert row["v_cosine"] > 0.9  # two kinds of illness, in both sets
    assert row["auc"] == pytest.approx((row["auc_first"] + row["auc_second"]) / 2)
    assert row["auc"] > 0.6
    assert 0 < row["held_out_error"] < 0.6
    assert row["cpi"] is None
    assert [r["phenotype"] for r in found] == [1, 2]
    assert any("Creatinine high" in r["codes"] for r in found)
    assert np.mean([r["cosine"] for r in found]) == pytest.approx(row["v_cosine"])


def test_the_second_side_does_not_reach_the_first_fit(measured):
    """Other labels and patients of the second side change what is measured, but not the model of the first side."""
    cell, sides, _ = measured
    other = Sides(sides.first, sides.second[:30].with_labels(1 - sides.second.labels[:30]), sides.modes)
    one, two = (evidence.fit(cell, s, 0, 1)[0] for s in (sides, other))
    np.testing.assert_array_equal(one.V_, two.V_)
    # Half of the deaths are called survivals: what the first side learnt of them is worse than chance there.
    flipped = Sides(sides.first, sides.second.with_labels(1 - sides.second.labels), sides.modes)
    aucs = [evidence.prediction(cell, s, [one, one])["auc_first"] for s in (sides, flipped)]
    assert sum(aucs) == pytest.approx(1.0)


def test_predictors_without_phenotypes_have_an_auc_alone(folder):
    found = icu.cells(Options(data=folder, methods="nmf,raw-static", splits=1))
    cell = next(cell for cell in found if cell["method"] == "raw-static")
    rows = evidence.run(cell, icu.sides_of(cell, folder), 1)
    assert len(rows) == 1
    assert 0.5 < rows[0]["auc"] <= 1
    assert rows[0]["auc_static"] is None
    assert "v_cosine" not in rows[0]


def test_networks_are_trained_on_the_device_that_is_asked_for(folder):
    pytest.importorskip("torch")
    options = Options(quick=True, data=str(folder), methods="gru,nmf", device="cuda:99")
    cell = next(cell for cell in icu.cells(options) if cell["method"] == "gru")
    with pytest.raises(InputError, match="'cuda:99' is not available on this machine"):
        icu.run(cell, CellContext(options))


def test_counts_of_patients_are_rounded_and_few_are_withheld():
    case = np.arange(1000) % 5 == 0
    gate = Gate(key="a cohort")
    found = evidence.outcomes_of_top(np.arange(1000.0), case, gate)
    assert found["top_patients"] == 100
    assert found["top_outcomes"] in (15, 20, 25)
    assert found["top_share"] == found["top_outcomes"] / found["top_patients"]
    few = evidence.outcomes_of_top(
        np.r_[np.zeros(992), np.ones(8)], case, gate
    )  # of a tenth, eight have a score
    assert few == {"top_patients": None, "top_outcomes": None, "top_share": None}
    assert (
        evidence.outcomes_of_top(np.arange(1000.0), case & (np.arange(1000) < 905), gate)["top_outcomes"]
        is None
    )


def test_codes_of_few_patients_are_not_named(measured):
    cell, sides, _ = measured
    model = evidence.fit(cell, sides, 0, 1)[0]
    heaviest = int(model.V_[:, 0].argmax())
    names = np.asarray(sides.first.feature_names)
    matched = match_factors(model.V_, None, model.V_, None)
    assert evidence.phenotypes(model, sides, matched)[0]["codes"].startswith(str(names[heaviest]))
    model.feature_patients_ = model.feature_patients_.copy()
    model.feature_patients_[heaviest] = 9
    assert str(names[heaviest]) not in evidence.phenotypes(model, sides, matched)[0]["codes"]


def test_intervals_are_of_halves():
    values = [0.7, 0.72, 0.71, 0.74]
    found = evidence.interval(values, "auc")
    width = 3.182446 * np.sqrt((1 / 4 + 1) * np.var(values, ddof=1))  # t of three degrees of freedom
    assert found["auc_low"] == pytest.approx(np.mean(values) - width)
    assert found["auc_high"] == pytest.approx(np.mean(values) + width)
    assert np.isnan(list(evidence.interval([0.9, 0.9, 0.9], "v_share").values())).all()
    assert np.isnan(list(evidence.interval([0.9], "auc").values())).all()
    assert evidence.interval([0.5, 1.0], "v_cosine") == {"v_cosine_low": 0.0, "v_cosine_high": 1.0}


# The page


def made_up_results(effects, methods="taste,nmf,copa-plus,raw", noise=0.002, halves=4):
    """Results as a run would leave them: each method's own effect, and a little noise on every split."""
    rng = np.random.default_rng(0)
    rows = []
    for cell in icu.cells(Options(data="x", methods=methods, splits=halves)):
        effect = effects.get(cell["method"], 0.0)
        row = {name: 0.7 + effect + noise * rng.standard_normal() for name in ("auc", "auc_static")}
        row |= {
            "n_first": 4000,
            "n_second": 4000,
            "outcomes_first": 555,
            "outcomes_second": 570,
            "seconds": 3.0,
        }
        row |= {"visits": 350_000, "features": 67, "static": 18}
        if cell["rank"]:
            row |= {"v_cosine": 0.85 + effect + noise * rng.standard_normal(), "v_min": 0.6, "v_share": 0.8}
            row |= {"held_out_error": 0.4 - effect + noise * rng.standard_normal()}
            row |= {"f_cosine": 0.9 if cell["method"] == "taste" else None}
        rows.append(cell | {"kind": "measures"} | row)
        if cell["rank"] and cell["split"] == 0:
            found = {"cosine": 0.9, "codes": "GCS low 1.00; HR high 0.50", "top_share": 0.35}
            rows += [cell | {"kind": "phenotype", "phenotype": r + 1} | found for r in range(cell["rank"])]
            rows[-1]["top_share"] = None
    return pd.DataFrame(rows)


def text_of(results):
    return icu.text(results, icu.table(results))


def test_the_page_says_where_taste_is_first():
    text = text_of(made_up_results({"taste": 0.05}))
    assert "**TASTE is first in 15 of 15 comparisons**, in 3 of them with others" in text
    assert "better than the best of the others in 12, and worse in 0." in text
    assert "| phenotypes found again | 10 | 1 (shared) of 3 |" in text


def test_the_page_says_where_taste_is_not_first():
    text = text_of(made_up_results({"nmf": 0.05}))
    assert "**TASTE is first in 3 of 15 comparisons**" in text  # the equal shares
    assert "and worse in 12: replication of V at R = 5 (NMF of patients), " in text
    line = next(line for line in text.splitlines() if line.startswith("| held-out error | +"))
    assert line.count("worse") == 3  # a larger error is worse, although the difference is positive


def test_equal_methods_are_not_told_apart():
    text = text_of(made_up_results({}, noise=0.02, halves=3))
    assert "better than the best of the others in 0, and worse in 0." in text
    assert "no clear difference" in text


def test_numbers_on_the_page_are_those_of_the_results(tmp_path):
    results = made_up_results({"taste": 0.03})
    results.to_csv(tmp_path / "results.csv", index=False)
    again = read_results(tmp_path / "results.csv")
    text = text_of(again)
    assert text == text_of(results)
    assert "nan" not in text
    halves = again[(again["sets"] == HALF) & (again["method"] == "taste") & (again["rank"] == 10)]
    low_high = evidence.interval(halves["auc"], "auc").values()
    wanted = "{:.3f} ({:.3f} to {:.3f})".format(halves["auc"].mean(), *low_high)
    lines = [line for line in text.splitlines() if line.startswith("| TASTE | ") and line.count("|") == 5]
    assert any(wanted in line for line in lines)
    assert "4,000 (555) and 4,000 (570)" in text
    assert "(of all 14 %)" in text
    assert "| 10 | GCS low 1.00; HR high 0.50 | 0.90 | – |" in text
    assert "GRU and CNTF may take hours" in text
    assert "Limestone" in text.split("Not run (not chosen, or not in this version): ")[1].split("\n")[0]
    assert "wget -P icu2012 https://physionet.org/files/challenge-2012/" in text


def test_without_taste_nothing_is_compared():
    text = text_of(made_up_results({}, methods="nmf,copa-plus"))
    assert "TASTE was not run beside another method" in text


def test_the_figure_has_a_panel_for_each_rank_and_every_method():
    results = made_up_results({"taste": 0.03})
    figure = icu.figure(results, icu.table(results))
    assert len(figure.axes) == 3
    labels = {text.get_text() for text in figure.legends[0].get_texts()} - {""}
    assert {"TASTE", "NMF of patients", "COPA+", "Codes alone"} <= labels
    assert not labels & {"LDA", "Tensors of pairs"}
    sizes = {name: evidence_page.style_of(name)["markersize"] for name in METHODS}
    assert max(sizes, key=sizes.get) == "taste"


# From the command to the page


@pytest.mark.parametrize("name", ["icu", "claims"])
def test_the_quick_version_from_cells_to_page(tmp_path, folder, name):
    options = {"data": folder} if name == "icu" else {}
    options = Options(quick=True, methods=FEW, splits=2 if name == "icu" else 1, **options)
    found = studies.run(name, tmp_path / "out", options, jobs=1, threads=1)
    assert set(found.results["method"]) == set(FEW.split(","))
    text = (tmp_path / "out" / f"{name}.md").read_text()
    assert "nan" not in text
    assert folder not in text
    assert "TASTE is first in" in text
    assert (tmp_path / "out" / f"{name}.png").stat().st_size > 10_000
    phenotypes = found.results[found.results["kind"] == "phenotype"]
    assert set(phenotypes["split"]) == {0}
    assert set(phenotypes["method"]) == {"taste", "nmf"}
    assert found.results["cell"].nunique() == len({"icu": icu, "claims": claims}[name].cells(options))


def test_a_cell_of_claims_runs_methods_of_pairs_on_diagnoses_and_medications():
    cohort = claims.load_cohort("simulated", 300, 0, None)
    names = [str(name) for name in cohort.feature_names]
    assert any(name.startswith("Dx_") for name in names)
    assert any(name.startswith("Rx_") for name in names)
    context = CellContext(Options(quick=True), threads=1)
    cell = claims.cells(Options(quick=True, methods="nmf"))[0]
    assert claims.run(cell, context)[0]["features"] == len(names)
