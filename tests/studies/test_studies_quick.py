"""Every study in its quick version, from the command to the page, and what a full run would hold."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.cohorts import SHARED
from phenotaste import InputError, simulate, studies
from phenotaste.studies import heart_failure, methods, recovery, scale, speed
from phenotaste.studies.methods import AS_IN_PAPER, NOT_SMOOTH, PUBLISHED
from phenotaste.studies.results import read_results
from phenotaste.studies.study import CellContext, Options

QUICK = Options(quick=True)
# Half of the cells is enough to be interrupted: those with the noise of the data.
PROGRAM = """
from phenotaste.cli import main
from phenotaste.studies import recovery
recovery.VARIANTS = recovery.VARIANTS[:2]
main()
"""
COMMAND = [sys.executable, "-c", PROGRAM, "study"]


def finish(name, folder, **arguments):
    """The study's results, after a look at what every study must leave."""
    found = studies.run(name, folder / name, QUICK, **arguments)
    for file in ("results.csv", "summary.csv", f"{name}.md", f"{name}.png", f"{name}.pdf", "settings.json"):
        assert (folder / name / file).stat().st_size > 0
    text = (folder / name / f"{name}.md").read_text()
    assert "nan" not in text
    assert "cells took" in text
    assert found.results["cell"].nunique() == len(list((folder / name / "cells").iterdir()))
    return found, text


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("quick")


@pytest.fixture(scope="module")
def recovered(place):
    return finish("recovery", place, jobs=1)


def test_recovery_keeps_cross_products_the_same_at_every_noise_and_reading(recovered):
    found, text = recovered
    ours = found.summary[found.summary["method"] == "TASTE"]
    assert set(zip(ours["noise_scale"], ours["q"], strict=True)) == set(recovery.VARIANTS)
    assert ours.groupby(["noise_scale", "q"])["noise"].nunique().eq(2).all()
    assert ours["cpi_mean"].min() >= 0.99
    assert f"TASTE's CPI is at least {ours['cpi_mean'].min():.4f} at every noise level" in text


def test_recovery_measures_match_their_definitions(recovered):
    found, _ = recovered
    rows = found.results
    sims = [f"sim_{factor}" for factor in "VWFU"]
    assert np.allclose(rows["sim"], rows[sims].mean(axis=1), atol=1e-6)
    assert (rows["matched"] <= rows["sim"] + 1e-9).all()
    assert rows[sims].to_numpy().min() > 0.3
    assert rows[sims].to_numpy().max() <= 1
    few = rows[(rows["noise_scale"] == "data") & (rows["noise"] == 0.05)]
    smooth = few["method"] == "TASTE"
    assert few.loc[~smooth, "sim"].min() > 0.9  # little noise: all find the factors
    assert few.loc[smooth, "sim"].min() > 0.8  # planted courses are not smooth
    assert set(rows["method"]) == {"TASTE", NOT_SMOOTH, AS_IN_PAPER, "CohenPlus", "CopaPlus"}
    assert rows.groupby(["noise_scale", "q", "noise", "method"])["seed"].nunique().eq(2).all()


def test_a_cell_is_a_pure_function(recovered):
    cell = recovery.cells(QUICK)[0]
    rows = [recovery.run(cell, CellContext(QUICK, threads)) for threads in (1, 2)]
    times = {"seconds", "processor_seconds", "load"}
    one, other = ({key: value for key, value in row.items() if key not in times} for row in rows)
    assert one == other
    kept = recovered[0].results.iloc[0]
    assert kept["sim"] == pytest.approx(one["sim"], rel=1e-7)


def test_the_full_recovery_study_is_that_of_the_paper():
    cells = pd.DataFrame(recovery.cells(Options()))
    assert sorted(cells["noise"].unique()) == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    assert cells.groupby(["noise_scale", "q", "noise", "method"])["seed"].nunique().eq(5).all()
    assert (cells["patients"].unique(), cells["visits"].unique(), cells["rank"].unique()) == (
        [100],
        [100],
        [4],
    )
    assert (
        cells.groupby("method")[["lam", "weights"]].nunique().eq(1).all(axis=None)
    )  # nothing tuned by level
    assert cells.groupby("method")["mu"].nunique().le(1).all()


def test_recovery_averages_courses_over_patients():
    _, truth = simulate.recovery(n_patients=3, n_visits=6, random_state=1)
    offsets = np.arange(4) * 6

    class Found:
        offsets_ = offsets
        U_ = truth.U.copy()

    assert recovery.similarity(truth, Found, "U") == pytest.approx((1, 1))
    Found.U_[:6] = 0  # one of three patients has nothing
    assert recovery.similarity(truth, Found, "U") == pytest.approx((2 / 3, 2 / 3))


def with_noise_of_the_data(rows):
    """The cells that are left when `VARIANTS` is cut to its first two, from one start."""
    return rows[(rows["seed"] == 0) & (rows["noise_scale"] == "data")].reset_index(drop=True)


def test_results_do_not_depend_on_the_processes(place, recovered, monkeypatch):
    monkeypatch.setattr(recovery, "VARIANTS", recovery.VARIANTS[:2])
    found = studies.run("recovery", place / "two", Options(quick=True, starts=1), jobs=2)
    times = ["seconds", "processor_seconds", "load", "cell_seconds", "cell_processor_seconds", "threads"]
    same = with_noise_of_the_data(recovered[0].results).drop(columns=times)
    assert len(same) == 20
    pd.testing.assert_frame_equal(found.results.drop(columns=times), same)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_killed_and_interrupted_process_resumes(place, recovered):
    out = place / "stopped"
    command = [*COMMAND, "recovery", "--quick", "--starts", "1", "--jobs", "1", "--out", str(out)]
    assert stop(command, out, signal.SIGKILL, 2)[0] == -signal.SIGKILL
    killed = times_of(out)
    status, errors = stop([*command, "--resume"], out, signal.SIGINT, len(killed) + 2)
    assert status == 130
    assert "results.csv has the finished results; --resume continues the run." in errors
    kept = times_of(out)
    assert 2 <= len(killed) < len(kept) < 20
    assert len(read_results(out / "results.csv")) == len(kept)
    done = subprocess.run([*command, "--resume", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["cells"] == 20
    after = times_of(out)
    assert {name: after[name] for name in killed} == killed
    assert {name: after[name] for name in kept} == kept  # nothing that was finished was done again
    same = with_noise_of_the_data(recovered[0].results)
    pd.testing.assert_series_equal(read_results(out / "results.csv")["sim"], same["sim"])


def stop(command, out, how, cells):
    """Start it, send the signal when so many cells are finished; its exit status, and what it said."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    end = time.monotonic() + 300
    while len(times_of(out)) < cells:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
    process.send_signal(how)
    errors = process.communicate(timeout=120)[1]
    return process.returncode, errors


def heed_interrupts():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are deaf to it


def times_of(out):
    """When each finished cell was written."""
    return {path.name: path.stat().st_mtime_ns for path in (out / "cells").glob("[!.]*.json")}


@pytest.fixture(scope="module")
def timed(place):
    return finish("speed", place)


def test_speed_compares_the_methods_under_both_kinds_of_weights(timed):
    found, text = timed
    rows = found.results
    for _, part in rows.groupby(["data", "rank"]):
        methods = part.groupby("weights")["method"].agg(set)
        assert methods["absolute"] == {"TASTE", "CohenPlus", "CopaPlus", PUBLISHED}
        assert methods["relative"] == {"TASTE", "CohenPlus", "CopaPlus"}
    assert {"Sutter", "CMS"} == set(rows["data"])
    assert (rows[["seconds", "processor_seconds"]] > 0).all(axis=None)
    assert "up to 4.5" in text
    assert "up to 2" in text
    assert "Only one μ was run" in text  # the quick grid has one: nothing to compare


def test_both_objectives_of_taste_are_run_from_one_start():
    relative, absolute = (
        methods.estimator(
            {"method": "TASTE", "rank": 3, "weights": weights, "lam": 0.1, "mu": 0.1, "seed": 0}, 1
        )
        for weights in ("relative", "absolute")
    )
    assert (relative.objective, absolute.objective) == ("relative", "paper")
    cell = next(
        cell for cell in speed.cells(QUICK) if (cell["method"], cell["weights"]) == ("TASTE", "relative")
    )
    seen = []
    original = methods.estimator

    def noted(*arguments, **settings):
        seen.append(settings["n_init"])
        return original(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "estimator", noted)
        speed.run(cell, CellContext(QUICK, 1))
    assert seen == [1]


def test_rmse_across_lambda_leaves_lambda_out(timed):
    rows = timed[0].results
    assert (rows["rmse_one"] > rows["rmse"]).all()  # λ/2 weighs static entries less than one


def test_the_full_speed_study_has_the_grids_of_the_paper():
    cells = pd.DataFrame(speed.cells(Options(synpuf="somewhere")))
    assert set(cells["data"]) == {"Sutter", "CMS", "DE-SynPUF"}
    assert sorted(cells["rank"].unique()) == [5, 10, 20, 40]
    for weights in ("relative", "absolute"):
        part = cells[(cells["weights"] == weights) & (cells["data"] == "CMS") & (cells["rank"] == 40)]
        for method in ("TASTE", "CohenPlus"):
            mine = part[part["method"] == method]
            assert set(mine["lam"]) == set(mine["mu"]) == {0.01, 0.1, 1.0}
            assert mine.groupby(["lam", "mu"])["seed"].nunique().tolist() == [5] * 9
        assert sorted(part.loc[part["method"] == "CopaPlus", "lam"].unique()) == [0.1, 1, 10]
    assert set(speed.sizes(Options(fraction=0.1)).items()) == {("Sutter", 5948), ("CMS", 15135)}
    assert methods.SHAPES["Sutter"] == (59_480, 1164, 29, 22)
    assert methods.SHAPES["CMS"] == (151_349, 284, 50, 30)


def test_cohorts_have_the_papers_shape():
    cohort = methods.shaped("Sutter", 40, 1)
    assert cohort.shape == (40, 1164)
    assert cohort.static.shape == (40, 22)
    again = methods.repeated("Sutter", 90, 40, 1)
    assert len(again) == 90
    assert (again.visits[: cohort.n_visits] != cohort.visits).nnz == 0


def test_patients_of_synpuf_are_drawn(tmp_path):
    source = SHARED / "data" / "desynpuf"
    if not source.is_dir():
        pytest.skip("the DE-SynPUF slice is not available")
    for file in source.glob("slice1_*.csv.gz"):
        (tmp_path / file.name).symlink_to(file)
    some = methods.synpuf(str(tmp_path), 50, 3)
    assert len(some) == 50
    assert len(methods.synpuf(str(tmp_path), 10**6, 3)) == len(methods.synpuf_claims(str(tmp_path))) > 700
    cell = {"data": methods.SYNPUF, "patients": 50, "data_seed": 3}
    context = CellContext(Options(synpuf=str(tmp_path)))
    assert np.array_equal(speed.cell_cohort(cell, context).patient_ids, some.patient_ids)
    with pytest.raises(InputError, match="requires the folder of DE-SynPUF"):
        speed.cell_cohort(cell, CellContext(Options()))


@pytest.fixture(scope="module")
def scaled(place):
    return finish("scale", place)


def test_scale_reports_the_ratio_and_that_of_the_paper(scaled):
    found, text = scaled
    assert "up to 14" in text
    rows = found.results
    assert (rows["seconds_iteration"] > 0).all()
    assert (rows.loc[rows["part"] == "an iteration", "iterations"] == scale.ITERATIONS).all()
    assert (rows.loc[rows["part"] == "to the tolerance", "outcome"] == "converged").all()
    by = found.summary.set_index(["part", "patients", "method"])["processor_seconds_mean"]
    ratio = by["to the tolerance", 40, PUBLISHED] / by["to the tolerance", 40, "TASTE"]
    assert f"| 40 | {ratio:.0f} |" in text


def test_a_fit_over_its_time_limit_is_stopped_and_reported(tmp_path):
    options = Options(quick=True, limit_minutes=1e-9, largest=40)
    found = studies.run("scale", tmp_path / "out", options)
    whole = found.results[found.results["part"] == "to the tolerance"]
    assert set(whole["patients"]) == {40}
    assert set(whole["outcome"]) == {"stopped"}
    assert (whole["iterations"] == 1).all()
    text = (tmp_path / "out" / "scale.md").read_text()
    assert text.count("stopped after the first iteration") == 3
    assert "| 40 | – |" in text


def test_a_fit_whose_first_iteration_would_take_too_long_is_not_started(monkeypatch):
    monkeypatch.setattr(scale, "PROBE", 10)
    slow = next(cell for cell in scale.cells(QUICK) if cell["method"] == PUBLISHED)
    row = scale.run(slow | {"limit_minutes": 1e-9}, CellContext(QUICK, 1))
    assert (row["outcome"], row["iterations"]) == ("not started", 0)
    whole = scale.run(slow, CellContext(QUICK, 1))
    assert whole["outcome"] == "converged"
    assert row["processor_iteration"] == pytest.approx(whole["processor_iteration"], rel=0.9)  # it is a guess
    table = scale.table(
        pd.DataFrame(
            [{**slow, **row, "seconds": None, "processor_seconds": None, "cpi": None, "last_decrease": None}]
        )
    )
    assert "not started: one iteration would take about" in scale.complete_fits(table)


@pytest.mark.parametrize(("method", "bytes_a_visit"), [("TASTE", 2 * 8 * 5), ("CopaPlus", 3 * 8 * 5)])
def test_a_fit_larger_than_memory_is_not_started(method, bytes_a_visit, monkeypatch):
    cell = next(c for c in scale.cells(QUICK) if c["method"] == method and c["part"] == "an iteration")
    monkeypatch.setattr(scale, "free_memory", lambda: 1e12)
    whole = scale.run(cell, CellContext(QUICK, 1))
    assert whole["iterations"] == scale.ITERATIONS
    monkeypatch.setattr(scale, "free_memory", lambda: 1.0)
    row = scale.run(cell, CellContext(QUICK, 1))
    assert (row["outcome"], row["iterations"]) == ("no memory", 0)
    assert row["gb_needed"] * 1e9 >= bytes_a_visit * whole["visits"]
    nothing = dict.fromkeys(
        [
            *("seconds", "processor_seconds", "cpi", "last_decrease"),
            "seconds_iteration",
            "processor_iteration",
        ]
    )
    table = scale.table(pd.DataFrame([{**cell, **nothing, **row}]).astype({"gb_needed": float}))
    assert "not started: requires 0 GB of memory" in scale.iterations(table)


def test_the_ratio_to_a_stopped_fit_is_a_lower_bound():
    by = pd.DataFrame({"finished_mean": {"TASTE": 1.0, PUBLISHED: 0.0}})
    assert scale.at_least(by, 78.2) == "over 78"
    assert scale.at_least(by + 1, 78.2) == "78"
    assert scale.at_least(by - 1, 78.2) == scale.at_least(by, float("nan")) == "–"


def test_progress_of_a_stopped_fit_is_reported():
    watch = scale.TimedCallback(60.0)
    for n, loss in enumerate((100.0, 90.0, 80.0)):
        assert watch(scale.Progress(0, 1, n + 1, 200, loss)) is False
    assert watch.figures()["last_decrease"] == pytest.approx(10 / 80)
    watch.limit = 1e-12
    assert watch(scale.Progress(0, 1, 4, 200, 79.0)) is True
    assert watch.stopped


def test_the_full_scale_study_is_that_of_the_paper():
    cells = pd.DataFrame(scale.cells(Options(device="cuda")))
    assert cells["rank"].unique().tolist() == [40]
    here = cells[(cells["device"] == "cpu") & (cells["part"] == "to the tolerance")]
    for method in ("TASTE", "CopaPlus"):
        sizes = here[here["method"] == method].groupby("patients")["seed"].nunique()
        assert {12_500, 25_000, 50_000, 100_000} <= set(sizes.index)
        assert (sizes == 5).all()
    assert 12_500 in set(here.loc[here["method"] == PUBLISHED, "patients"])
    assert cells.loc[cells["part"] == "an iteration", "patients"].max() == 1_000_000
    gpu = cells[cells["device"] == "cuda"]
    assert sorted(gpu["patients"].unique()) == [125_000, 250_000, 500_000, 1_000_000]
    small = pd.DataFrame(scale.cells(Options(largest=30_000, device="cuda")))
    most = small.groupby(["part", "device"])["patients"].max()
    assert most["to the tolerance", "cpu"] == 25_000
    assert most["an iteration", "cpu"] == most["to the tolerance", "cuda"] == 250_000
    assert all(cell["device"] == "cpu" for cell in scale.cells(Options(device="cpu")))


@pytest.fixture(scope="module")
def failing_hearts(place):
    return finish("heart-failure", place, jobs=1)


def test_heart_failure_uses_cases_and_selects_as_the_paper_does(failing_hearts):
    found, text = failing_hearts
    rows = found.results
    everybody, _ = simulate.heart_failure(int(rows["patients"].iloc[0]), random_state=0)
    assert set(rows["cases"]) == {int(np.sum(everybody.labels))}
    grid = rows[rows["kind"] == "grid"]
    best = grid.loc[grid["dissimilarity"].idxmin()]
    chosen = rows[(rows["kind"] == "phenotype") & (rows["which"] == "chosen")]
    assert len(chosen) == best["rank"]
    assert (chosen["lam"] == best["lam"]).all()
    assert (chosen["mu"] == best["mu"]).all()
    assert f"chooses **{int(best['rank'])}** phenotypes" in text


def test_static_features_take_over_where_they_are_repeated(failing_hearts):
    rows = failing_hearts[0].results
    repeated = rows[(rows["kind"] == "phenotype") & (rows["which"] == "static repeated")]
    planted = "planted number" if (rows["which"] == "planted number").any() else "chosen"
    ours = rows[(rows["kind"] == "phenotype") & (rows["which"] == planted)]
    assert len(ours) == len(repeated) == 5
    assert set(ours["planted"]) == set(heart_failure.PHENOTYPES)
    assert (repeated["static_share"] > 0.5).sum() >= 2
    assert ours["cosine"].min() > 0.95
    assert repeated["cosine"].min() < 0.8
    features = rows[(rows["kind"] == "feature") & (rows["which"] == "static repeated")]
    assert features["weight"].max() == 1
    assert features.groupby("of")["weight"].max().min() < 1  # codes and static features share one scale
    assert rows.loc[rows["kind"] == "feature", "weight"].min() >= 0.1


def test_phenotypes_are_also_a_latex_table(failing_hearts, place):
    latex = (place / "heart-failure" / "phenotypes.tex").read_text()
    chosen = failing_hearts[0].results.query("kind == 'phenotype' and which == 'chosen'")
    assert latex.count("\\textbf{Weight}") == len(chosen)
    assert "phenotypes.tex" in failing_hearts[0].files


def test_the_full_heart_failure_study_has_the_grid_of_the_paper():
    cell = heart_failure.cells(Options())[0]
    assert (heart_failure.RANKS[0], cell["last_rank"], cell["starts"], cell["grid"]) == (3, 20, 10, "paper")
    assert heart_failure.LAMS == heart_failure.MUS == (0.01, 0.1, 1.0)
    assert [cell["patients"] for cell in heart_failure.cells(Options(fraction=0.5))] == [17556, 17556]


def test_only_the_kind_of_machine_is_reported(recovered, timed, scaled, failing_hearts):
    home = str(Path.home())
    for found, text in (recovered, timed, scaled, failing_hearts):
        table = (found.folder / "results.csv").read_text()
        for secret in {os.uname().nodename, home, str(found.folder)} - {"/", "root"}:
            assert secret not in text + table
