"""Choosing the model: what a selection computes, keeps and refuses."""

import json
import shutil
import warnings
from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.cohorts import cohort as made_up
from phenotaste import TASTE, Cohort, InputError, metrics, selection, simulate
from phenotaste.selection import execution, rules, table
from phenotaste.selection.fits import Result, SelectionFolder, estimator, run_task, task_patients
from phenotaste.selection.grid import BOOTSTRAP, HALF, START, FitSettings, Task, checked_grid
from phenotaste.selection.matching import average, evidence, match
from phenotaste.storage.encoding import unpack

TIMES = ["seconds", "processor_seconds"]

pytestmark = pytest.mark.filterwarnings("ignore:The choice is at the edge")
FIGURES = {"stability", "fit", "weights", "starts", "evidence", "halves"}


@pytest.fixture(scope="module")
def patients():
    return simulate.ehr(80, n_features=30, n_static=6, mean_visits=12, rank=3, random_state=3)[0]


@pytest.fixture(scope="module")
def kept(patients, tmp_path_factory):
    """A selection with everything, and its folder."""
    out = tmp_path_factory.mktemp("selection") / "choice"
    found = selection.select(
        patients, [2, 3], lams=[0.1, 1], n_init=3, bootstraps=2, halves=1, consensus=True, out=out, jobs=1
    )
    return found, out


def without_times(frame):
    return frame.drop(columns=TIMES)


# --- the table ---------------------------------------------------------------------------------------------


def test_a_row_for_each_cell_from_plain_fits(patients, kept):
    """Everything in the table can be had by fitting TASTE by hand with the seeds of the selection."""
    found, _ = kept
    fitting = FitSettings()
    models = [estimator(Task(START, 3, 0.1, 1.0, 0.3, n), fitting).fit(patients) for n in range(3)]
    row = found.table.set_index(["rank", "lam", "mu", "smooth"]).loc[(3, 0.1, 1.0, 0.3)]
    pairs = [metrics.dissimilarity(a.V_, b.V_) for a, b in combinations(models, 2)]
    assert row["dissimilarity"] == pytest.approx(np.mean(pairs), abs=1e-12)
    assert (row["dissimilarity_low"], row["dissimilarity_high"]) == pytest.approx((min(pairs), max(pairs)))
    losses = [model.loss_curve_[-1] for model in models]
    best = models[np.argmin(losses)]
    assert row["best_start"] == np.argmin(losses)
    assert (row["best_objective"], row["best_rmse"], row["best_cpi"]) == (min(losses), best.rmse_, best.cpi_)
    assert row["rmse"] == pytest.approx(np.mean([model.rmse_ for model in models]))
    assert row["objective"] == pytest.approx(np.mean(losses))
    assert row["cpi_present"] == pytest.approx(np.mean([model.cpi_present_ for model in models]))
    assert {(model.init, model.n_init) for model in models} == {("short_fits", 1)}
    assert len({model.random_state for model in models}) == 3
    assert found.table["complete"].all()
    assert found.table["starts"].eq(3).all()
    assert len(found.table) == 4


def test_reproducibility_is_the_minimum_share_over_phenotypes():
    """Two phenotypes: one in all three other starts, one in two of them."""
    a, b, c = np.eye(4)[0], np.eye(4)[1], np.eye(4)[2]
    starts = [(a, b, 1.0), (a, b, 2.0), (b, a, 3.0), (a, c, 4.0)]
    results = [result(np.column_stack([x, y]), objective=objective) for x, y, objective in starts]
    row = table.stability_columns(results)
    assert row["reproducibility"] == pytest.approx(2 / 3)
    assert row["matched"] == pytest.approx(5 / 6)
    assert row["dissimilarity"] == pytest.approx(3 * 0.5 / 6)
    assert (row["dissimilarity_low"], row["dissimilarity_high"]) == (0.0, 0.5)


def test_standard_error_is_the_jackknife_over_starts():
    rng = np.random.default_rng(0)
    pairs = rng.random((6, 6))
    pairs = np.triu(pairs, 1) + np.triu(pairs, 1).T
    upper = lambda m: m[np.triu_indices(len(m), 1)].mean()  # noqa: E731
    without = np.array([upper(np.delete(np.delete(pairs, i, 0), i, 1)) for i in range(6)])
    expected = np.sqrt(5 / 6 * np.sum((without - without.mean()) ** 2))
    assert table.jackknife_error(pairs) == pytest.approx(expected)
    assert np.isnan(table.jackknife_error(pairs[:2, :2]))


def test_best_is_a_plain_fit_of_the_chosen_cell(patients, kept):
    found, out = kept
    chosen = found.table[found.table["chosen"]]
    assert len(chosen) == 1
    row = chosen.iloc[0]
    for name in ("rank", "lam", "mu", "smooth"):
        assert getattr(found.best, name) == row[name]
    again = TASTE(**found.best.get_params()).fit(patients)
    for name in ("V_", "F_", "H_", "W_", "U_"):
        assert np.array_equal(getattr(found.best, name), getattr(again, name))
    assert found.best.rmse_ == row["best_rmse"]
    stored = TASTE.load(out / "best")
    assert np.array_equal(stored.V_, found.best.V_)
    with pytest.raises(AttributeError, match="saved without its patients"):
        stored.W_  # noqa: B018


@given(
    ranks=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    lams=st.lists(st.sampled_from([0.0, 0.01, 0.1, 1, 10]), min_size=1, max_size=3),
    n_init=st.integers(2, 5),
)
def test_tasks_have_names_and_seeds_of_their_own(ranks, lams, n_init):
    grid, fitting = checked_grid(ranks, lams, 1, n_init, [0, 0.3]), FitSettings(random_state=5)
    tasks = list(grid.tasks())
    assert len({task.name for task in tasks}) == len(tasks) == len(set(ranks)) * len(set(lams)) * 2 * n_init
    seeds = {(task.rank, task.number): fitting.seed(task) for task in tasks}
    assert all(fitting.seed(task) == seeds[task.rank, task.number] for task in tasks)  # whatever the weights
    assert len(set(seeds.values())) == len(seeds)


def test_defaults_are_those_of_a_fit(patients):
    found = selection.select(patients, 2, n_init=2, halves=0, jobs=1)
    fitted = TASTE()
    for name in ("lam", "mu", "smooth", "objective", "balance", "init", "max_iter", "tol", "dtype"):
        assert getattr(found.best, name) == getattr(fitted, name), name


def test_smoothness_is_an_axis_of_the_grid(patients):
    found = selection.select(patients, [2, 3], smooths=[1, 0], n_init=2, halves=0, jobs=1)
    assert found.table[["rank", "smooth"]].to_numpy().tolist() == [[2, 0], [2, 1], [3, 0], [3, 1]]
    assert found.table["objective"].nunique() == 4
    assert (
        found.best.smooth == found.as_dict()["smooth"] == found.table[found.table["chosen"]]["smooth"].iloc[0]
    )
    assert [axis.get_xlabel() for axis in found.plot("weights").axes] == ["λ (static features)"] * 3


def test_the_papers_objective(patients):
    found = selection.select(patients, 2, lams=0.1, mus=0.1, n_init=2, halves=1, objective="paper", jobs=1)
    assert (found.best.objective, found.table["smooth"].tolist()) == ("paper", [0.0])
    assert 0 < found.table["fitted_error"][0] < found.table["held_out_error"][0] < 1


def test_a_cell_does_not_depend_on_the_rest_of_the_grid(patients, kept):
    found, _ = kept
    alone = selection.select(patients, 3, lams=1, n_init=3, halves=1, jobs=1)
    row = found.table[(found.table["rank"] == 3) & (found.table["lam"] == 1)]
    pd.testing.assert_frame_equal(
        without_times(row).drop(columns="chosen").reset_index(drop=True),
        without_times(alone.table).drop(columns="chosen"),
        check_exact=True,
    )


def test_results_do_not_depend_on_processes_and_threads(patients, tmp_path):
    """By worker processes, which read a folder: the same bits as in one process, from memory."""
    patients.save(tmp_path / "cohort")
    few = {"ranks": [2, 3], "n_init": 2, "halves": 1, "bootstraps": 1, "init": "random"}
    one, other = (
        selection.select(source, **few, jobs=n) for n, source in ((1, patients), (2, tmp_path / "cohort"))
    )
    pd.testing.assert_frame_equal(without_times(other.table), without_times(one.table), check_exact=True)
    pd.testing.assert_frame_equal(other.evidence, one.evidence, check_exact=True)
    assert np.array_equal(other.best.U_, one.best.U_)


def test_worker_processes_get_a_cohort_in_memory_by_files_that_are_removed(patients, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned = tmp_path / f"{execution.TEMPORARY_PREFIX}of-a-killed-run"
    abandoned.mkdir()
    (abandoned / "cohort").write_text("patients")
    seen = []

    def look(progress):
        folders = list(tmp_path.glob(f"{execution.TEMPORARY_PREFIX}*"))
        seen.append([oct(folder.stat().st_mode & 0o777) for folder in folders])

    few = {"ranks": 2, "n_init": 2, "halves": 0, "init": "random"}
    other = selection.select(patients, **few, jobs=2, callback=look)
    assert seen[0] == ["0o700", "0o700"]  # the fits, and the cohort for the workers
    assert list(tmp_path.iterdir()) == []
    one = selection.select(patients, **few, jobs=1)
    pd.testing.assert_frame_equal(without_times(other.table), without_times(one.table), check_exact=True)
    assert np.array_equal(other.best.U_, one.best.U_)


# --- rules -------------------------------------------------------------------------------------------------


def grid_table(rows):
    """rank, lam, dissimilarity, its error, reproducibility, lowest cosine of halves, rmse, cpi."""
    names = ["rank", "lam", "dissimilarity", "dissimilarity_se", "reproducibility"]
    names += ["split_half_cosine_min", "best_rmse", "cpi"]
    made = pd.DataFrame(rows, columns=names).assign(
        mu=1.0, smooth=0.3, split_half_cosine_static=np.nan, split_half_cosine_static_min=np.nan
    )
    return made.assign(split_half_cosine=made["split_half_cosine_min"])


RANKS = grid_table(
    [
        (2, 0.1, 0.010, 0.004, 1.00, 0.97, 10.0, 0.99),
        (3, 0.1, 0.012, 0.004, 1.00, 0.70, 6.0, 0.97),
        (4, 0.1, 0.030, 0.004, 0.85, 0.90, 4.0, 0.95),
        (5, 0.1, 0.200, 0.040, 0.10, 0.81, 3.5, 0.91),
        (6, 0.1, 0.150, 0.040, 0.30, 0.79, 3.1, 0.60),
    ]
)


@pytest.mark.parametrize(
    ("rule", "rank"),
    [
        ("replication", 5),
        ("stability", 2),
        ("one-standard-error", 3),
        ("reproducibility", 4),
        ("rmse-elbow", 4),
        ("cpi-floor", 5),
    ],
)
def test_each_rule_on_a_constructed_table(rule, rank):
    assert RANKS.loc[rules.choose(rule, RANKS), "rank"] == rank
    shuffled = RANKS.sample(frac=1, random_state=1)
    assert shuffled.loc[rules.choose(rule, shuffled), "rank"] == rank


def test_halves_judge_weights_by_both_definitions():
    rows = RANKS.assign(rank=[2, 2, 2, 3, 3], cpi=[0.95, 0.95, 0.5, 0.95, 0.95], split_half_cosine=0.9)
    rows["split_half_cosine_static"] = [0.6, 0.7, 0.9, 0.8, 0.5]
    assert rules.by_rank("replication", rows).index.tolist() == [1, 3]
    assert rules.by_rank("reproducibility", rows).index.tolist() == [0, 4]  # the lowest dissimilarity


def test_rules_exclude_cells_without_stability():
    partial = RANKS.copy()
    partial.loc[partial["rank"] == 2, "dissimilarity"] = np.nan
    assert partial.loc[rules.choose("stability", partial), "rank"] == 3


def test_the_papers_rule_takes_any_weights_and_the_others_unique_ones():
    """Weights that let uniqueness go (CPI 0.2) look the most stable at rank 3, and are all there is at rank 4."""
    rows = grid_table(
        [
            (3, 0.1, 0.02, 0.001, 1.0, 0.9, 5.0, 0.95),
            (3, 1.0, 0.01, 0.001, 1.0, 0.9, 5.0, 0.20),
            (4, 0.1, 0.09, 0.001, 0.9, 0.7, 4.0, 0.30),
            (4, 1.0, 0.08, 0.001, 0.7, 0.7, 4.0, 0.20),
        ]
    )
    assert tuple(rows.loc[rules.choose("stability", rows), ["rank", "lam"]]) == (3, 1.0)
    assert rules.by_rank("reproducibility", rows)["lam"].tolist() == [0.1, 1.0]
    assert rules.by_rank("stability", rows)["lam"].tolist() == [1.0, 1.0]
    assert tuple(rows.loc[rules.choose("reproducibility", rows), ["rank", "lam"]]) == (3, 0.1)


@pytest.mark.parametrize(
    ("rule", "column"), [("reproducibility", "reproducibility"), ("replication", "split_half_cosine_min")]
)
def test_a_rule_falls_back_on_the_closest_cell(rule, column):
    rows = RANKS.assign(**{column: [0.3, 0.5, 0.5, 0.2, 0.1]})
    assert rows.loc[rules.choose(rule, rows), "rank"] == 4


@pytest.mark.parametrize(
    ("column", "rank"),
    [("split_half_cosine_min", 2), ("split_half_cosine_static_min", 2), ("reproducibility", 3)],
)
def test_replication_is_of_both_definitions(column, rank):
    rows = RANKS.iloc[:2].assign(split_half_cosine_min=0.9, split_half_cosine_static_min=0.9)
    rows.loc[1, column] = 0.79
    assert rows.loc[rules.choose("replication", rows), "rank"] == rank


def test_the_default_rule_needs_halves():
    assert rules.checked_rule(None, 2) == "replication"
    assert rules.checked_rule(None, 0) == "reproducibility"
    with pytest.raises(InputError, match="rule='replication' compares halves of the patients: give halves=1"):
        rules.checked_rule("replication", 0)


@pytest.mark.parametrize(
    ("rank", "lam", "said"),
    [
        (3, 0.1, None),
        (2, 0.1, None),  # one phenotype is no alternative
        (4, 0.1, "rank=4 is the largest"),
        (3, 0.01, "lam=0.01 is the smallest"),
        (4, 1.0, "rank=4 is the largest and lam=1 is the largest"),
    ],
)
def test_a_choice_at_the_edge_of_the_grid_is_said(rank, lam, said):
    rows = pd.DataFrame(
        [(r, w, 1.0) for r in (2, 3, 4) for w in (0.01, 0.1, 1.0)], columns=["rank", "lam", "mu"]
    ).assign(smooth=0.3)
    chosen = rows.index[(rows["rank"] == rank) & (rows["lam"] == lam)][0]
    sentence = rules.edge_warning(rows, chosen)
    assert (sentence is None) if said is None else (f"edge of the grid ({said}): extend" in sentence)
    zero = rows.assign(lam=rows["lam"].replace(0.01, 0.0))
    if lam == 0.01:
        assert rules.edges(zero, chosen) == {}  # no weight is below zero


def test_a_grid_of_one_rank_has_one_answer():
    for rule in rules.RULES:
        assert rules.choose(rule, RANKS.iloc[[4]]) == 4


def test_the_command_has_the_same_rules():
    from phenotaste.cli.select import RuleChoice

    assert [choice.value for choice in RuleChoice] == list(rules.RULES)
    assert {rules.DEFAULT, rules.WITHOUT_HALVES} <= set(rules.RULES)


# --- evidence and consensus --------------------------------------------------------------------------------


def result(V, F=None, objective=1.0, H=None):
    figures = {
        "rmse": 1.0,
        "cpi": 1.0,
        "cpi_present": 1.0,
        "objective": objective,
        "iterations": 3,
        "outcome": "converged",
    }
    return Result(np.asarray(V, float), F, np.eye(np.shape(V)[1]) if H is None else H, figures)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), rank=st.integers(1, 6))
def test_evidence_follows_phenotypes_in_any_order(seed, rank):
    """A start that found the same phenotypes in another order and scale has found them all again, F with V."""
    rng = np.random.default_rng(seed)
    best = result(rng.random((9, rank)), rng.random((5, rank)))
    order, scale = rng.permutation(rank), rng.uniform(0.1, 9, rank)
    other = result((best.V * scale)[:, order], (best.F * scale)[:, order])
    rows = evidence(best, [other], [])
    assert rows["similarity"].to_numpy() == pytest.approx(np.ones(2 * rank))
    assert rows["phenotype"].tolist() == sorted(list(range(1, rank + 1)) * 2)
    averaged = average(best, [other])
    assert np.abs(averaged.V - best.V / np.linalg.norm(best.V, axis=0)).max() < 1e-12


def test_evidence_counts_reproduced_phenotypes(kept, patients):
    found, out = kept
    stored = pd.read_csv(out / "evidence.csv")
    assert stored.columns.tolist() == ["phenotype", "kind", "factor", "similarity"]
    pd.testing.assert_frame_equal(stored, found.evidence)
    R = found.rank
    assert stored["kind"].unique().tolist() == [
        "halves",
        "starts",
        "bootstrap",
    ]  # and each phenotype begins so
    assert stored.drop_duplicates("phenotype")["kind"].tolist() == ["halves"] * R
    counts = stored.groupby(["kind", "factor"]).size()
    assert counts["halves", "V"] == counts["halves", "F"] == 2 * R
    assert counts["starts", "V"] == counts["starts", "F"] == 2 * R
    assert counts["bootstrap", "V"] == counts["bootstrap", "F"] == 2 * R
    short = found.reproducibility.set_index(["phenotype", "kind", "factor"])
    part = stored.query("phenotype == 1 and kind == 'bootstrap' and factor == 'V'")["similarity"]
    assert short.loc[(1, "bootstrap", "V"), "reproducibility"] == np.mean(part >= 0.8)
    assert short.loc[(1, "bootstrap", "V"), "minimum"] == part.min()
    assert "| 1 | halves | V | 2 |" in (out / "selection.md").read_text()


def test_evidence_of_halves_is_the_similarity_to_their_fits(kept, patients):
    """Both halves of the only split, fitted again as the chosen cell says."""
    found, _ = kept
    best = found.best
    for number in range(2):
        task = Task("half", best.rank, best.lam, best.mu, best.smooth, number)
        half = run_task(patients, task, FitSettings())
        expected = match(Result(best.V_, best.F_, best.H_, {}), half)
        rows = found.evidence.query("kind == 'halves'")
        for factor, cosines in (("V", expected.V), ("F", expected.F)):
            stored = rows[rows["factor"] == factor].groupby("phenotype")["similarity"].nth(number)
            np.testing.assert_allclose(stored, cosines, rtol=1e-12)


def test_bootstraps_and_halves_hold_the_patients_they_should(patients):
    fitting = FitSettings(random_state=2)
    first, _ = task_patients(patients, Task(BOOTSTRAP, 3, 0.1, 1.0, 0.3, 0), fitting)
    same, _ = task_patients(patients, Task(BOOTSTRAP, 4, 1.0, 1.0, 0.3, 0), fitting)
    other, _ = task_patients(patients, Task(BOOTSTRAP, 3, 0.1, 1.0, 0.3, 1), fitting)
    assert len(first) == len(patients)
    assert first.patient_ids.tolist() == same.patient_ids.tolist() != other.patient_ids.tolist()
    assert len({name.split("#")[0] for name in first.patient_ids}) < len(patients)
    halves = [task_patients(patients, Task(HALF, 3, 0.1, 1.0, 0.3, n), fitting) for n in range(4)]
    ids = [sorted(fitted.patient_ids.tolist()) for fitted, _ in halves]
    assert sorted(ids[0] + ids[1]) == sorted(patients.patient_ids.tolist())
    assert [sorted(unseen.patient_ids.tolist()) for _, unseen in halves[:2]] == [ids[1], ids[0]]
    assert ids[2] != ids[0]


def test_held_out_error_is_the_error_of_patients_not_fitted(patients, kept):
    found, _ = kept
    fitting, errors = FitSettings(), []
    for number in (0, 1):
        task = Task(HALF, 3, 0.1, 1.0, 0.3, number)
        seen, unseen = task_patients(patients, task, fitting)
        model = estimator(task, fitting).fit(seen)
        scored = model.project(unseen)
        owner = np.repeat(np.arange(len(unseen)), np.diff(unseen.offsets))
        rebuilt = (scored.U * (scored.W * scored.scale[:, None])[owner]) @ model.V_.T
        X = unseen.visits.toarray()
        missed, size = (np.bincount(owner, np.sum(Y**2, axis=1)) for Y in (X - rebuilt, X))
        errors.append(np.mean(missed / size))
    row = found.table.set_index(["rank", "lam"]).loc[(3, 0.1)]
    assert row["held_out_error"] == pytest.approx(np.mean(errors), rel=1e-6)
    assert row["fitted_error"] < row["held_out_error"] < 1


def test_halves_are_compared_by_fits_of_several_starts(patients, kept):
    """The cosines in the table are those of two plain fits, matched on V; F follows that matching."""
    found, _ = kept
    models = []
    for number in (0, 1):
        task = Task(HALF, 3, 0.1, 1.0, 0.3, number)
        model = estimator(task, FitSettings())
        assert model.n_init is None  # TASTE's own number of starts
        models.append(model.fit(task_patients(patients, task, FitSettings())[0]))
    cosines = metrics.cosines(models[0].V_, models[1].V_)
    pairs = max(permutations(range(3)), key=lambda order: sum(cosines[r, order[r]] for r in range(3)))
    static = metrics.cosines(models[0].F_, models[1].F_)
    row = found.table.set_index(["rank", "lam"]).loc[(3, 0.1)]
    for name, values in (("split_half_cosine", cosines), ("split_half_cosine_static", static)):
        matched = [values[r, pairs[r]] for r in range(3)]
        assert row[name] == pytest.approx(np.mean(matched), abs=1e-12)
        assert row[f"{name}_min"] == pytest.approx(min(matched), abs=1e-12)
    record = found.as_dict()
    chosen = found.table[found.table["chosen"]].iloc[0]
    assert record["split_half_cosine_static_min"] == chosen["split_half_cosine_static_min"]


def test_halves_average_over_splits_and_skip_unfinished_ones():
    a, b, c = np.eye(4)[:, [0, 1]], np.eye(4)[:, [1, 0]], np.eye(4)[:, [0, 2]]
    errors = {"held_out_error": 0.5, "fitted_error": None}
    one, same, other = (result(V)._replace(figures=errors) for V in (a, b, c))
    row = table.halves_columns([one, same, one, other, one, None])
    assert (row["split_half_cosine"], row["split_half_cosine_min"]) == (0.75, 0.5)
    assert row["held_out_error"] == 0.5
    assert np.isnan([row["split_half_cosine_static"], row["fitted_error"]]).all()


def test_one_patient_has_no_halves():
    found = selection.select(made_up(1)[:1], [1, 2], n_init=2, jobs=1)
    assert "split_half_cosine" not in found.table
    assert found.as_dict()["split_half_cosine"] is None
    with pytest.raises(InputError, match="needs more than this selection has: fits of halves"):
        found.plot("halves")


def test_consensus_is_a_model_that_scores(patients, kept):
    found, out = kept
    model = found.consensus
    assert np.linalg.norm(model.V_, axis=0) == pytest.approx(np.ones(found.rank))
    assert np.diagonal(model.H_.T @ model.H_) == pytest.approx(np.ones(found.rank))
    assert np.array_equal(model.transform(patients), model.W_)
    assert metrics.objective(model, patients) == pytest.approx(model.loss_curve_[-1])
    stored = TASTE.load(out / "consensus")
    assert np.array_equal(stored.transform(patients), model.W_)
    assert found.best.loss_curve_.size > 1  # the best start's own record is untouched


def test_consensus_averages_cross_products_of_matched_phenotypes():
    rng = np.random.default_rng(1)
    V = np.eye(5)[:, :3]
    H = rng.random((3, 3))
    order = np.array([2, 0, 1])
    averaged = average(result(V, H=H), [result(V[:, order], H=H[:, order])])
    assert np.allclose(averaged.H.T @ averaged.H, H.T @ H)


# --- figures and page --------------------------------------------------------------------------------------


def test_figures_and_page_are_written(kept):
    found, out = kept
    assert {path.stem for path in (out / "figures").glob("*.png")} == FIGURES
    assert {path.stem for path in (out / "figures").glob("*.pdf")} == FIGURES
    assert all(path.stat().st_size > 4000 for path in (out / "figures").iterdir())
    page = (out / "selection.md").read_text()
    assert f"**{found.rank} phenotypes**" in page
    assert all(rule in page for rule in rules.RULES)
    assert found.plot().axes[0].get_xlabel() == "number of phenotypes"


def test_a_figure_that_cannot_be_drawn_is_refused(patients):
    found = selection.select(patients, 2, n_init=2, jobs=1, halves=0)
    with pytest.raises(
        InputError, match="needs more than this selection has: more than one lam, mu or smooth"
    ):
        found.plot("weights")
    with pytest.raises(InputError, match="no figure 'pie': choose one of stability, fit, starts"):
        found.plot("pie")


def test_no_patient_data_is_on_disk(kept, patients):
    _, out = kept
    ids = [f"patient-{k:04d}" for k in range(len(patients))]
    named = Cohort(patients.visits, patients.offsets, patients.static, patient_ids=ids)
    shutil.rmtree(out.parent / "named", ignore_errors=True)
    selection.select(named, 2, n_init=2, bootstraps=1, jobs=1, out=out.parent / "named", halves=0)
    for path in (out.parent / "named").rglob("*"):
        assert path.is_dir() or b"patient-0" not in path.read_bytes()
    fit = unpack(next((out / "fits").glob("start-*")).read_bytes()).arrays
    assert {len(array) for array in fit.values()}.isdisjoint({len(patients), patients.n_visits})


# --- going on ----------------------------------------------------------------------------------------------


def test_resume_does_only_what_is_missing_and_ends_the_same(patients, kept, tmp_path):
    found, out = kept
    broken = tmp_path / "broken"
    shutil.copytree(out, broken)
    fits = sorted((broken / "fits").glob("start-*"))
    fits[0].unlink()
    sorted((broken / "fits").glob("half-*"))[0].unlink()
    fits[1].write_bytes(fits[1].read_bytes()[:-9])  # torn
    flipped = bytearray(fits[2].read_bytes())
    flipped[-3] ^= 1
    fits[2].write_bytes(bytes(flipped))
    (broken / "fits" / f".{fits[3].name}.0123456789abcdef.partial").write_bytes(b"half")
    untouched = {path: path.stat().st_mtime_ns for path in fits[3:]}
    done = []
    with pytest.warns(UserWarning, match=r"2 of the files in .* are damaged: recomputed"):
        again = selection.select(
            patients, [2, 3], lams=[0.1, 1], n_init=3, bootstraps=2, halves=1, consensus=True,
            out=broken, resume=True, jobs=1, callback=done.append,
        )  # fmt: skip
    assert len(done) == 4
    assert {path: path.stat().st_mtime_ns for path in fits[3:]} == untouched
    assert not list((broken / "fits").glob(".*"))
    pd.testing.assert_frame_equal(without_times(again.table), without_times(found.table), check_exact=True)
    for name in ("table.csv", "evidence.csv", "reproducibility.csv", "selection.md"):
        assert (broken / name).read_bytes() == (out / name).read_bytes(), name


def test_a_grid_may_grow_but_not_shrink(patients, tmp_path):
    out = tmp_path / "choice"
    small = selection.select(patients, [2, 3], n_init=2, out=out, jobs=1, halves=0)
    done = []
    larger = selection.select(
        patients, [2, 3, 4], n_init=3, out=out, resume=True, jobs=1, callback=done.append, halves=0
    )
    assert len(done) == 5
    whole = selection.select(patients, [2, 3, 4], n_init=3, jobs=1, halves=0)
    pd.testing.assert_frame_equal(without_times(larger.table), without_times(whole.table), check_exact=True)
    assert len(small.table) == 2
    with pytest.raises(InputError, match="a grid can be extended, not reduced"):
        selection.select(patients, [2, 3], n_init=3, out=out, resume=True, halves=0)
    with pytest.raises(InputError, match=r"started with different settings \(tol\)"):
        selection.select(patients, [2, 3, 4], n_init=3, out=out, resume=True, tol=1e-3, halves=0)
    with pytest.raises(InputError, match=r"started with different settings \(random_state\)"):
        selection.select(patients, [2, 3, 4], n_init=3, out=out, resume=True, random_state=9, halves=0)


def test_an_interrupt_leaves_a_table_of_what_is_finished(patients, tmp_path):
    out = tmp_path / "choice"

    def stop(progress):
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        selection.select(patients, [2, 3], n_init=2, out=out, jobs=1, callback=stop, halves=0)
    partial = pd.read_csv(out / "table.csv")
    assert partial["starts"].tolist() == [2, 1]
    assert partial["complete"].tolist() == [True, False]
    assert partial["dissimilarity"].notna().tolist() == [True, False]
    again = selection.select(patients, [2, 3], n_init=2, out=out, resume=True, jobs=1, halves=0)
    whole = selection.select(patients, [2, 3], n_init=2, jobs=1, halves=0)
    pd.testing.assert_frame_equal(without_times(again.table), without_times(whole.table), check_exact=True)


@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_to_a_file_of_a_fit_is_detected(data, tmp_path_factory):
    folder, task = SelectionFolder(tmp_path_factory.mktemp("files")), Task(START, 2, 0.1, 1.0, 0.3, 0)
    folder.results.mkdir()
    path = folder.result_path(task)
    rng = np.random.default_rng(0)
    folder.save(task, result(rng.random((3, 2)), rng.random((2, 2))))
    whole = path.read_bytes()
    assert np.array_equal(folder.load(task).V, np.random.default_rng(0).random((3, 2)))
    if data.draw(st.booleans(), label="torn"):
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    else:
        place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        path.write_bytes(bytes(flipped))
    assert folder.load(task) is None


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"ranks": []}, "ranks is empty, so the grid has no cell"),
        ({"ranks": [3], "lams": []}, "lams is empty"),
        ({"ranks": [3], "mus": ()}, "mus is empty"),
        ({"ranks": [3, 0]}, "ranks contains 0: every rank must be an integer of at least 1"),
        ({"ranks": [-2]}, "ranks contains -2"),
        ({"ranks": [2.5]}, r"ranks contains 2\.5"),
        ({"ranks": "3:5"}, "ranks must be a number or several"),
        ({"ranks": [3], "lams": [-1]}, "lams contains -1"),
        ({"ranks": [3], "mus": [float("nan")]}, "mus contains nan"),
        ({"ranks": [3], "n_init": 1}, "n_init=1 is too few: stability compares pairs of starts"),
        (
            {"ranks": [3], "rule": "best"},
            "rule='best' does not exist: choose one of replication, reproducibility, stability",
        ),
        ({"ranks": [3], "bootstraps": -1}, "bootstraps=-1"),
        ({"ranks": [3], "jobs": 0}, "jobs=0"),
        ({"ranks": [3], "random_state": None}, "random_state=None must be an integer"),
        ({"ranks": [3], "init": "best"}, "init='best' must be one of"),
        ({"ranks": [3], "tol": -1}, "tol=-1"),
    ],
)
def test_refused_with_a_sentence_before_any_work(patients, tmp_path, arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        selection.select(patients, out=tmp_path / "choice", **arguments)
    assert not (tmp_path / "choice").exists()


def test_a_foreign_folder_is_refused_and_not_changed(patients, kept, tmp_path):
    _, out = kept
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    other = simulate.ehr(80, n_features=30, n_static=6, mean_visits=12, rank=3, random_state=4)[0]
    for resume in (False, True):
        with pytest.raises(InputError, match=r"holds other results \(different cohort\)"):
            selection.select(other, [2, 3, 4], lams=[0.1, 1], n_init=4, out=out, resume=resume, halves=0)
    with pytest.raises(InputError, match="already holds this selection"):
        selection.select(patients, [2, 3, 4], lams=[0.1, 1], n_init=4, out=out, halves=0)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="contains files that are not from a selection"):
        selection.select(patients, [2], n_init=2, out=tmp_path / "mine", resume=True, halves=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        selection.select(patients, [2], n_init=2, out=tmp_path / "file", halves=0)
    patients.save(tmp_path / "cohort")
    with pytest.raises(InputError, match="within the cohort's folder"):
        selection.select(tmp_path / "cohort", [2], n_init=2, out=tmp_path / "cohort" / "choice", halves=0)
    with pytest.raises(InputError, match="Give a Cohort or the folder of one, not list"):
        selection.select([1, 2], [2])


def test_settings_that_cannot_be_read_are_not_a_selection(patients, tmp_path):
    out = tmp_path / "choice"
    selection.select(patients, [2], n_init=2, out=out, jobs=1, halves=0)
    for text in ("", "{}", '{"format": 1, "grid": 3}', json.dumps({"format": 99})):
        (out / "settings.json").write_text(text)
        with pytest.raises(InputError, match="not from a selection"):
            selection.select(patients, [2], n_init=2, out=out, resume=True, halves=0)


def test_two_runs_at_once_into_one_folder_are_kept_apart(patients, tmp_path):
    def second(progress):
        with pytest.raises(InputError, match="in use by another process"):
            selection.select(patients, [2], n_init=2, out=tmp_path / "choice", resume=True, halves=0)

    selection.select(patients, [2], n_init=2, out=tmp_path / "choice", jobs=1, callback=second, halves=0)


# --- degenerate cohorts ------------------------------------------------------------------------------------


def test_selection_on_degenerate_cohorts():
    """No static features, empty histories, one phenotype, more phenotypes than features."""
    plain = made_up(1, n_static=0)
    found = selection.select(plain, [1, 2], n_init=2, bootstraps=1, halves=1, consensus=True, jobs=1)
    assert set(found.evidence["factor"]) == {"V"}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        selection.select(made_up(2, n_features=3), [4, 5], mus=[0, 1], n_init=2, jobs=1, halves=0)
    assert sum("exceeds the 3 temporal features" in str(note.message) for note in said) == 1
    assert sum("mu=0 drops" in str(note.message) for note in said) == 1
