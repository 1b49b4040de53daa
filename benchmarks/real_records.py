"""What the objective must hold on real ICU stays (sets a and b of icu2012) and on planted data.

Settings are known to `settings` alone: `--set smooth=0.3 --set n_init=2` compares others. Cohorts are kept in the
folder for temporary work, outside the repository.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from scipy.stats import spearmanr
from sklearn.decomposition import NMF
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from phenotaste import TASTE, courses, metrics, simulate
from phenotaste.cohort import Cohort
from phenotaste.patients import Patients

from .icu2012 import FOLDER, SETS, icu2012
from .machine import describe
from .report import RESULTS, machine_lines, publish, table

Make = Callable[[int, int], Any]  # (rank, seed) -> an estimator
Figures = dict[str, Any]

PLANTED_SEEDS = (5, 6, 41, 42)
PLANTED_PATIENTS, HEART_FAILURE_PATIENTS = 1500, 1500
ROBUST_STAYS, LARGE_ENTRY, TILES = 2000, 300.0, 40
ROBUST_LENGTHS = {"short": 0.05, "median": 0.5, "long": 0.95}  # quantiles of the number of visits
MAX_ITERATIONS = 5000  # of the noiseless recovery
OTHER_SEED = 1000  # added to the seed of set b, so that starts are independent
CUT_VISITS = 4  # visits: histories are cut to their first 1 to 4


# Settings ----------------------------------------------------------------------------------------------------------


def settings(**chosen: Any) -> Make:
    """The default objective with other settings, if any are given."""
    return lambda rank, seed: TASTE(rank, random_state=seed, **chosen)


def paper_settings() -> Make:
    """The paper's objective, run until it no longer decreases."""
    return lambda rank, seed: TASTE(
        rank, objective="paper", random_state=seed, tol=1e-12, max_iter=MAX_ITERATIONS
    )


@lru_cache(maxsize=6)
def fitted(make: Make, rank: int, seed: int, cohort: Cohort) -> Any:
    """A fit, kept for the next part that asks for it."""
    began = time.perf_counter()
    model = make(rank, seed).fit(cohort)
    print(
        f"  fit of {len(cohort):,} patients, R={rank}, seed {seed}: {time.perf_counter() - began:.0f} s, "
        f"{model.n_iter_} iterations, {model.outcome_}",
        file=sys.stderr,
        flush=True,
    )
    return model


# Two sets of definitions -------------------------------------------------------------------------------------------


def matched(V: np.ndarray, other: np.ndarray) -> np.ndarray:
    """For each column of V the column of `other` that a one-to-one matching by cosine gives it."""
    return linear_sum_assignment(-metrics.cosines(V, other))[1]


def compare(model: Any, V: np.ndarray, F: np.ndarray) -> Figures:
    """Cosines with other definitions: those of V, and those of F under V's matching."""
    order = matched(model.V_, V)
    rows = np.arange(len(order))
    found = metrics.cosines(model.V_, V)[rows, order]
    static = metrics.cosines(model.F_, F)[rows, order]
    return {"V": found.mean(), "V_min": found.min(), "F": static.mean(), "F_min": static.min()}


def replication(make: Make, rank: int, seed: int, a: Cohort, b: Cohort) -> Figures:
    """Definitions of set a against those of set b."""
    first, second = fitted(make, rank, seed, a), fitted(make, rank, seed, b)
    return compare(first, second.V_, second.F_)


# Scores ------------------------------------------------------------------------------------------------------------


def scores(make: Make, rank: int, seed: int, a: Cohort) -> Figures:
    """Size of the largest score, uniqueness, whether scores follow the number of visits, and W_ against transform."""
    model = fitted(make, rank, seed, a)
    W = model.W_
    return {
        "largest_over_median": W.max() / np.median(W[W > 0]),
        "cpi": model.cpi_,
        "cpi_present": model.cpi_present_,
        "cond_HtH": np.linalg.cond(model.H_.T @ model.H_),
        "dead_F": int((model.F_.max(axis=0) < 1e-3 * model.F_.max()).sum()),
        "spearman_visits": spearmanr(W.sum(axis=1), a.visit_counts)[0],
        **same_scores(model, a),
        "iterations": model.n_iter_,
    }


def same_scores(model: Any, cohort: Cohort) -> Figures:
    """Correlation of each column of W_ with `transform` of the same patients, the least of them, and large gaps."""
    W, again = model.W_, np.asarray(model.transform(cohort))
    columns = [float(np.corrcoef(W[:, r], again[:, r])[0, 1]) for r in range(W.shape[1]) if W[:, r].any()]
    gap = np.linalg.norm(W - again, axis=1) > 0.5 * np.linalg.norm(W, axis=1)
    return {"transform_correlation_min": min(columns), "transform_gap_share": gap.mean()}


def first_visits(cohort: Cohort, seed: int = 0, longest: int = CUT_VISITS) -> Cohort:
    """Every history cut to its first one to four visits, at random."""
    cut = np.random.default_rng(seed).integers(1, longest + 1, len(cohort))
    counts = np.minimum(cut, cohort.visit_counts)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(cohort.offsets[:-1] - offsets[:-1], counts) + np.arange(offsets[-1])
    return replaced(cohort, cohort.visits[rows], offsets, cohort.visit_times[rows])


def replaced(cohort: Cohort, visits: Any, offsets: np.ndarray, times: np.ndarray) -> Cohort:
    """The same patients with other visits."""
    return Cohort(
        visits,
        offsets,
        cohort.static,
        patient_ids=cohort.patient_ids,
        visit_times=times,
        feature_names=cohort.feature_names,
        static_names=cohort.static_names,
        labels=cohort.labels,
    )


def short(make: Make, rank: int, seed: int, a: Cohort, b: Cohort) -> Figures:
    """Histories of 1 to 4 visits: W_ against transform, and AUC of death by what the regression is trained on."""
    model = fitted(make, rank, seed, a)
    return {**same_scores(model, a), **death(make, rank, seed, a, b)}


# Death in hospital -------------------------------------------------------------------------------------------------


def death(make: Make, rank: int, seed: int, a: Cohort, b: Cohort) -> Figures:
    """AUC on set b; definitions and regression from set a, trained on fit_transform and on transform."""
    model = fitted(make, rank, seed, a)
    unseen = Patients.of(model.project(b))
    found = {}
    for name, seen in {"": Patients.of_fit(model), "_transform": Patients.of(model.project(a))}.items():
        train, test = (
            np.hstack([patients.W, courses.describe(patients, cohort.visit_times, courses.PREDICTORS)])
            for patients, cohort in ((seen, a), (unseen, b))
        )
        found |= {
            f"auc{name}": auc(seen.W, unseen.W, a.labels, b.labels),
            f"auc_static{name}": auc(seen.W, unseen.W, a.labels, b.labels, a.static, b.static),
            f"auc_courses{name}": auc(train, test, a.labels, b.labels, a.static, b.static),
        }
    return found


def auc(
    train: np.ndarray,
    test: np.ndarray,
    y: np.ndarray,
    y_test: np.ndarray,
    static: np.ndarray | None = None,
    static_test: np.ndarray | None = None,
) -> float:
    """Logistic regression on standardised features, static ones as they are."""
    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    if static is not None and static_test is not None:
        train, test = np.hstack([train, static]), np.hstack([test, static_test])
    regression = LogisticRegression(max_iter=5000).fit(train, y)
    return float(roc_auc_score(y_test, regression.decision_function(test)))


# One patient among many --------------------------------------------------------------------------------------------


def robustness(make: Make, rank: int, seed: int, a: Cohort) -> Figures:
    """Least matched cosine of V to the fit without, for a short, a median and a long stay.

    One entry of 300, and one history 40 times as long.
    """
    part = a[:ROBUST_STAYS]
    order = np.argsort(part.visit_counts, kind="stable")
    base = fitted(make, rank, seed, part)
    found = {}
    for length, quantile in ROBUST_LENGTHS.items():
        patient = int(order[int(quantile * (len(part) - 1))])
        for change in (with_large_entry, with_long_history):
            model = fitted(make, rank, seed, change(part, patient))
            found[f"{change.__name__}_{length}"] = compare(model, base.V_, base.F_)["V_min"]
    return found


def with_large_entry(cohort: Cohort, patient: int) -> Cohort:
    """The first entry of a patient set to 300."""
    visits = cohort.visits.copy()
    data = visits.data.copy()
    data[visits.indptr[cohort.offsets[patient]]] = LARGE_ENTRY
    visits = sparse.csr_array((data, visits.indices, visits.indptr), visits.shape)
    return replaced(cohort, visits, cohort.offsets, cohort.visit_times)


def with_long_history(cohort: Cohort, patient: int) -> Cohort:
    """A patient's history repeated 40 times."""
    first, last = cohort.offsets[patient], cohort.offsets[patient + 1]
    repeats = np.tile(np.arange(first, last), TILES)
    rows = np.concatenate([np.arange(first), repeats, np.arange(last, cohort.n_visits)])
    added = np.repeat(np.arange(TILES), last - first) * (cohort.visit_times[last - 1] + 1)
    times = np.concatenate([cohort.visit_times[:first], cohort.visit_times[repeats] + added])
    times = np.concatenate([times, cohort.visit_times[last:]])
    offsets = cohort.offsets + (np.arange(len(cohort) + 1) > patient) * (TILES - 1) * (last - first)
    return replaced(cohort, cohort.visits[rows], offsets, times)


# Beside NMF on patients' sums ---------------------------------------------------------------------------------------


def beside_nmf(make: Make, rank: int, seed: int, a: Cohort, b: Cohort) -> Figures:
    """Seconds of a fit of set a, and the replication of V in set b, whose starts have other seeds; by starts."""
    found: Figures = {}
    for name, fit, starts in (("nmf", nmf_of_sums, (1, 4)), ("taste", taste_definitions, (1, 2, 4))):
        for n in starts:
            began = time.perf_counter()
            V = fit(make, rank, seed, a, n)
            seconds = time.perf_counter() - began
            other = fit(make, rank, seed + OTHER_SEED, b, n)
            cosines = metrics.cosines(V, other)[np.arange(rank), matched(V, other)]
            found |= {f"{name}_{n}_seconds": seconds, f"{name}_{n}_V": cosines.mean()}
            found[f"{name}_{n}_V_min"] = cosines.min()
    return found


def nmf_of_sums(make: Make, rank: int, seed: int, cohort: Cohort, n_init: int) -> np.ndarray:
    """Definitions by scikit-learn's NMF of the patients' sums, the best of random starts; one start is its default."""
    owner = np.repeat(np.arange(len(cohort)), cohort.visit_counts)
    pick = sparse.csr_array((np.ones(cohort.n_visits), (owner, np.arange(cohort.n_visits))))
    sums, init = pick @ cohort.visits, "random" if n_init > 1 else None
    fits = [
        NMF(rank, init=init, max_iter=1000, random_state=seed * n_init + start).fit(sums)
        for start in range(n_init)
    ]
    return min(fits, key=lambda fit: fit.reconstruction_err_).components_.T


def taste_definitions(make: Make, rank: int, seed: int, cohort: Cohort, n_init: int) -> np.ndarray:
    return make(rank, seed).set_params(n_init=n_init).fit(cohort).V_


# Planted phenotypes ------------------------------------------------------------------------------------------------


def planted(make: Make, seed: int, rank: int = 10) -> Figures:
    """V and F of histories of 1 to 400 visits; `seed` draws the cohort and the starts."""
    cohort, truth = simulate.ehr(PLANTED_PATIENTS, rank=rank, lengths="skewed", random_state=seed)
    return compare(fitted(make, rank, seed, cohort), truth.V, truth.F)


def heart_failure(make: Make, seed: int) -> Figures:
    """V, F, and the median cosine of the course of each patient's leading phenotype."""
    cohort, truth = simulate.heart_failure(HEART_FAILURE_PATIENTS, random_state=seed)
    model = fitted(make, truth.V.shape[1], seed, cohort)
    return {**compare(model, truth.V, truth.F), "course": leading_course(model, truth)}


def leading_course(model: Any, truth: simulate.Truth) -> float:
    """Median cosine of w·u with the true course, in patients who have a phenotype."""
    column = np.argsort(matched(model.V_, truth.V))  # the fitted column of each true one
    has = np.flatnonzero(truth.W.any(axis=1))
    found = []
    for k in has:
        r = int(truth.W[k].argmax())
        visits = slice(model.offsets_[k], model.offsets_[k + 1])
        course = model.U_[visits, column[r]] * model.W_[k, column[r]]
        size = np.linalg.norm(course) * np.linalg.norm(truth.U[visits, r])
        found.append(course @ truth.U[visits, r] / size if size > 0 else 0.0)
    return float(np.median(found))


def recovery(make: Make, seed: int) -> Figures:
    """Noiseless data of the paper's recovery study: V, F, and the scores in the data's units."""
    cohort, truth = simulate.recovery(random_state=seed)
    model = fitted(make, truth.V.shape[1], seed, cohort)
    order = matched(model.V_, truth.V)
    amounts = model.W_ * model.scale_[:, None]
    same = metrics.cosines(amounts, truth.W)[np.arange(len(order)), order]
    return {**compare(model, truth.V, truth.F), "W": same.mean(), "W_min": same.min()}


# The command -------------------------------------------------------------------------------------------------------

REAL = ("replication", "scores", "death", "short", "robustness", "nmf")
PLANTED = ("planted", "heart_failure", "recovery")


def main() -> None:
    options = arguments()
    make = settings(**dict(options.set))
    results: Figures = {
        "machine": describe(),
        "settings": {"set": dict(options.set), "rank": options.rank, "seeds": options.seeds},
        "parts": {},
    }
    if any(part in REAL for part in options.parts):
        for flags in options.flags:
            for rank in options.rank:
                results["parts"] |= real_parts(make, rank, flags, options)
    results["parts"] |= planted_parts(make, options)
    results["machine"]["load_at_end"] = round(os.getloadavg()[0], 2)
    publish("real-records", results, page(results), None if options.quick else options.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flags", type=words, default=["abnormal", "all"], help="abnormal,all")
    parser.add_argument("--rank", type=numbers, default=[10])
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--parts", type=words, default=[*REAL, *PLANTED], help=",".join([*REAL, *PLANTED]))
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--normal-hours", choices=["keep", "drop"], default="keep")
    parser.add_argument("--quick", action="store_true", help="print only")
    parser.add_argument("--data", type=Path, default=FOLDER)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "phenotaste-bench-icu2012")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    unknown = set(options.parts) - {*REAL, *PLANTED}
    if unknown:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    return options


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def setting(text: str) -> tuple[str, Any]:
    name, value = text.split("=", 1)
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def real_parts(make: Make, rank: int, flags: str, options: argparse.Namespace) -> Figures:
    """A dictionary of parts; each has the figures of every seed."""
    a, b = (
        icu2012(options.data, name, flags, normal_hours=options.normal_hours, cache=options.work)
        for name in SETS
    )
    cut = (first_visits(a, 0), first_visits(b, 1)) if "short" in options.parts else None
    parts: Figures = {}
    for seed in options.seeds:
        for part in (part for part in REAL if part in options.parts):
            cohorts = {"scores": (a,), "robustness": (a,), "short": cut}.get(part, (a, b))
            found = FUNCTIONS[part](make, rank, seed, *cohorts)
            parts.setdefault(f"icu2012, {flags} flags, R={rank}: {part}", {})[str(seed)] = found
    return {name: plain(found) for name, found in parts.items()}


def planted_parts(make: Make, options: argparse.Namespace) -> Figures:
    parts: Figures = {}
    if "planted" in options.parts:
        parts["planted, lengths 1 to 400"] = {str(seed): planted(make, seed) for seed in PLANTED_SEEDS}
    if "heart_failure" in options.parts:
        parts["heart_failure"] = {str(seed): heart_failure(make, seed) for seed in options.seeds}
    if "recovery" in options.parts:
        for name, which in {"default": make, "paper": paper_settings()}.items():
            parts[f"recovery, {name}"] = {str(seed): recovery(which, seed) for seed in options.seeds}
    return {name: plain(found) for name, found in parts.items()}


FUNCTIONS: dict[str, Callable[..., Figures]] = {
    "replication": replication,
    "scores": scores,
    "death": death,
    "short": short,
    "robustness": robustness,
    "nmf": beside_nmf,
}


def plain(by_seed: dict[str, Figures]) -> dict[str, dict[str, float]]:
    return {seed: {name: round(float(v), 6) for name, v in found.items()} for seed, found in by_seed.items()}


def page(results: Figures) -> str:
    chosen = ", ".join(f"{name}={value}" for name, value in results["settings"]["set"].items()) or "defaults"
    parts = [
        f"# Real records and planted truth, {date.today().isoformat()}",
        machine_lines(results["machine"]),
        f"`TASTE` with {chosen}. Columns are seeds.",
    ]
    for name, by_seed in results["parts"].items():
        measures = next(iter(by_seed.values()))
        rows = [[m, *(f"{found[m]:.4g}" for found in by_seed.values())] for m in measures]
        parts += [f"## {name}", table(["", *by_seed], rows)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
