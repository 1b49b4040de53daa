"""What the studies `icu` and `claims` share: every method is fitted to two disjoint sets of patients and measured."""

import warnings
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phenotaste import baselines
from phenotaste.baselines.classifier import validation_mask
from phenotaste.cohort import Cohort
from phenotaste.comparison.measures import aucs, held_out_error
from phenotaste.comparison.methods import EXTERNAL, METHODS, MethodSettings, Modes, make
from phenotaste.core.records import Array
from phenotaste.disclosure import Gate, rounding_key
from phenotaste.engines.cuda import cuda_available
from phenotaste.errors import InputError
from phenotaste.prediction.evaluation_tables import over_splits
from phenotaste.prediction.split_cohorts import TRAIN, VALIDATION
from phenotaste.runs.resources import timed
from phenotaste.selection.fits import halves as cut_in_halves
from phenotaste.selection.matching import MIN_COSINE, Matched, match_factors
from phenotaste.studies.results import summarise
from phenotaste.studies.study import Cell, Options, Row
from phenotaste.validation import check_integer

if TYPE_CHECKING:
    import pandas as pd

RANKS, QUICK_RANKS = (5, 10, 20), (3,)
HALVES, QUICK_HALVES = 5, 2  # splits into random halves
PUBLISHED, HALF = "as published", "halves"  # how the patients are divided
SPLIT_STREAM, SEED_STREAM, VALIDATION_STREAM = 11, 12, 13  # part of every seed: never renumber
ACCEPTS = frozenset({"splits", "methods", "ranks", "device"})
NETWORKS = ("gru", "cntf")  # hours on a processor: only if they are named
TOP_CODES, TOP_SHARE = 5, 10  # codes of a phenotype; one in so many patients has the highest scores
FIGURES = ("cpi", "rmse")  # of fits with courses
MEASURED = ("v_cosine", "v_min", "v_share", "f_cosine", "f_min", "f_share", "auc", "auc_static", "auc_size", *FIGURES,
            "held_out_error", "seconds")  # fmt: skip
SHARES = (*MEASURED[:9], "held_out_error")  # measures between 0 and 1
KEYS = ["cohort", "method", "rank", "sets"]
MEASURES, PHENOTYPE = "measures", "phenotype"  # kinds of rows
EPOCHS, ITERATIONS = 10, 10  # of networks: enough for an orientation
# Rough durations relative to NMF of patients, for the estimate of the time left.
COSTS = {"taste": 20.0, "taste-paper": 25.0, "nmf-kl": 7.0, "visit-nmf": 5.0, "lda": 18.0, "boosting": 1.5}
COSTS |= dict.fromkeys(("copa", "copa-plus", "copa-static", "spartan"), 3.0) | {"cohen-plus": 5.0}
COSTS |= {
    "limestone": 12.0,
    "marble": 25.0,
    "granite": 8.0,
    "sustain": 1.5,
    "cp": 2.0,
    "gru": 200.0,
    "cntf": 300.0,
}


class Sides(NamedTuple):
    """Two disjoint sets of patients with the same columns, and the two kinds of codes if there are two."""

    first: Cohort
    second: Cohort
    modes: Modes | None = None

    def cohorts(self) -> tuple[Cohort, Cohort]:
        return self.first, self.second


# Cells -------------------------------------------------------------------------------------------------------------


def cells(options: Options, cohort: str, patients: int | None, *, kinds: bool, sets: bool) -> list[Cell]:
    """Return the cells of a cohort, split by split, so that an interrupted run has something of every method.

    `kinds` says whether it has two kinds of codes, `sets` whether it comes in two sets, which are then the first split.
    """
    halves = options.splits or (QUICK_HALVES if options.quick else HALVES)
    divisions = [*([PUBLISHED] if sets else []), *[HALF] * halves]
    return [
        {
            "cohort": cohort,
            "patients": patients,
            "method": name,
            "rank": rank if METHODS[name].ranked else None,
            "sets": division,
            "split": split,
            "epochs": (1 if options.quick else EPOCHS) if name in NETWORKS else None,
            "seed": options.seed,
        }
        for split, division in enumerate(divisions)
        for rank in ranks(options)
        for name in chosen_methods(options, kinds)
        if METHODS[name].ranked or rank == ranks(options)[0]
    ]


def checked(found: list[Cell]) -> list[Cell]:
    """The cells; refuse a choice of methods that leaves nothing to replicate."""
    if not any(has_phenotypes(cell) for cell in found):
        raise InputError(
            "None of the methods has phenotypes, is installed and suits the data: name one that does, as taste."
        )
    return found


def ranks(options: Options) -> tuple[int, ...]:
    if options.ranks is None:
        return QUICK_RANKS if options.quick else RANKS
    try:
        found = [int(word) for word in options.ranks.split(",")]
    except ValueError:
        raise InputError(
            f"ranks={options.ranks!r} must be integers separated by commas, as 5,10,20."
        ) from None
    return tuple(sorted({check_integer("ranks", rank, min=1) for rank in found}))


def chosen_methods(options: Options, kinds: bool) -> list[str]:
    """The methods that are named, or all but networks and external ones, as far as they can be run."""
    names = [name for name in METHODS if name not in (*NETWORKS, *EXTERNAL)]
    if options.methods is not None:
        names = [word.strip() for word in options.methods.split(",")]
        for name in names:
            if name not in METHODS:
                raise InputError(
                    f"The method {name!r} does not exist: choose among {', '.join(METHODS)}, separated by commas."
                )
    return [
        name for name in METHODS if name in names and is_available(name) and (kinds or not needs_kinds(name))
    ]


def needs_kinds(name: str) -> bool:
    return "kinds" in METHODS[name].needs


def is_available(name: str) -> bool:
    method = METHODS[name]
    known = method.class_name == "TASTE" or method.class_name in baselines.__all__
    return known and ("torch" not in method.needs or find_spec("torch") is not None)


def cost(cell: Cell) -> float:
    patients = (cell["patients"] or 8000) / 1000
    return patients * COSTS.get(cell["method"], 1.0) * (4.0 + (cell["rank"] or 6))


# Patients ----------------------------------------------------------------------------------------------------------


def halves(cohort: Cohort, number: int, seed: int, modes: Modes | None) -> Sides:
    """Two random halves of the patients, the same for all methods; rows of one patient are in one half."""
    order = np.random.default_rng([seed, SPLIT_STREAM, number]).permutation(int(cohort.persons.max()) + 1)
    return Sides(*cut_in_halves(cohort, order, 0), modes)


def some(cohort: Cohort, patients: int | None, seed: int) -> Cohort:
    """This number of patients at random, or all."""
    if patients is None or patients >= len(cohort):
        return cohort
    drawn = np.random.default_rng([seed, SPLIT_STREAM]).choice(len(cohort), patients, replace=False)
    return cohort[np.sort(drawn)]


def joined(first: Cohort, second: Cohort) -> Cohort:
    """The patients of both cohorts, which have the same columns."""
    from scipy import sparse

    def stacked(name: str) -> Any:
        return np.concatenate([getattr(first, name), getattr(second, name)])

    return Cohort(
        sparse.vstack([first.visits, second.visits], format="csr"),
        np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        stacked("static"),
        patient_ids=stacked("patient_ids"),
        visit_times=stacked("visit_times"),
        feature_names=first.feature_names,
        static_names=first.static_names,
        labels=stacked("labels"),
    )


# One cell ----------------------------------------------------------------------------------------------------------


def run(cell: Cell, sides: Sides, threads: int | None, device: str | None = None) -> list[Row]:
    """Fit the method to both sides and compare: a row of measures, and one for each phenotype of the first side.

    A fit never sees the other side; scores and regressions of each are tested on the other. `device` is that of
    networks.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one of many fits
        fitted = [fit(cell, sides, side, threads, device) for side in (0, 1)]
        models = [model for model, _ in fitted]
        row: Row = {
            "kind": MEASURES,
            **sizes(sides),
            "seconds": float(np.mean([taken["seconds"] for _, taken in fitted])),
        }
        if cell["method"] in NETWORKS:
            row["device"] = network_device(device)
        row |= prediction(cell, sides, models)
        if not has_phenotypes(cell):
            return [row]
        matched = match_factors(models[0].V_, models[0].F_, models[1].V_, models[1].F_)
        row |= replication(matched) | quality(models)
        row["held_out_error"] = mean_of(
            [held_out_error(models[0], sides.second), held_out_error(models[1], sides.first)]
        )
        return [row, *(phenotypes(models[0], sides, matched) if cell["split"] == 0 else [])]


def has_phenotypes(cell: Cell) -> bool:
    """Networks and regressions are compared as predictors only."""
    return cell["rank"] is not None and cell["method"] not in NETWORKS


def fit(
    cell: Cell, sides: Sides, side: int, threads: int | None, device: str | None = None
) -> tuple[Any, Row]:
    extra: dict[str, dict[str, Any]] = {}
    if cell["epochs"]:
        extra["gru"] = {"max_epochs": cell["epochs"], "patience": 5, "device": network_device(device)}
        extra["cntf"] = {**extra["gru"], "max_iter": min(ITERATIONS, 2 * cell["epochs"]), "n_init": 1}
    settings = MethodSettings(
        threads=threads, extra=extra, **({} if sides.modes is None else {"modes": sides.modes})
    )
    model = make(cell["method"], cell["rank"], seed_of(cell, side), settings)
    with timed() as taken:
        model.fit(sides.cohorts()[side])
    return model, taken


def network_device(name: str | None) -> str:
    """The device that networks are trained on: the processor unless another one is asked for."""
    if name == "auto":
        return "cuda" if cuda_available() else "cpu"
    return name or "cpu"


def seed_of(cell: Cell, side: int) -> int:
    """The seed of a fit: the same for all methods, and another one for the other side."""
    key = [cell["seed"], SEED_STREAM, cell["split"], side]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def sizes(sides: Sides) -> Row:
    """Rounded numbers of patients and of those with the outcome, and the numbers of visits and columns."""
    gate = gate_of(sides.first, sides.second)
    row: Row = {"features": sides.first.n_features, "static": sides.first.n_static}
    row["visits"] = sides.first.n_visits + sides.second.n_visits
    for name, cohort in (("first", sides.first), ("second", sides.second)):
        row[f"n_{name}"] = gate.count("patients", len(cohort))
        row[f"outcomes_{name}"] = gate.count("outcomes", int(np.sum(is_case(cohort))))
    return row


def gate_of(*cohorts: Cohort) -> Gate:
    key = rounding_key(*(part for cohort in cohorts for part in (cohort.offsets, cohort.labels)))
    return Gate(key=key).for_rows(max(cohort.rows_per_patient for cohort in cohorts))


def is_case(cohort: Cohort) -> Array:
    return np.asarray(cohort.labels) == 1


def replication(matched: Matched) -> Row:
    """Cosines of matched definitions: mean, lowest, and the share of those that count as found again."""
    row: Row = {}
    for name, cosines in (("v", matched.V), ("f", matched.F)):
        if cosines is not None:
            row |= {f"{name}_cosine": float(cosines.mean()), f"{name}_min": float(cosines.min())}
            row[f"{name}_share"] = float(np.mean(cosines >= MIN_COSINE))
    return row


def quality(models: Sequence[Any]) -> Row:
    """CPI and RMSE, which methods with courses have."""
    return {name: mean_of([getattr(model, f"{name}_", None) for model in models]) for name in FIGURES}


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and np.isfinite(value)]
    return float(np.mean(known)) if len(known) == len(values) else None


def prediction(cell: Cell, sides: Sides, models: Sequence[Any]) -> Row:
    """AUC on each side of what was learnt on the other, and the mean of both."""
    found = []
    for side, model in enumerate(models):
        learning, test = sides.cohorts()[:: 1 - 2 * side]
        seed = seed_of(cell, side)
        rng = np.random.default_rng([seed, VALIDATION_STREAM])
        held_out = validation_mask(
            is_case(learning), VALIDATION / (TRAIN + VALIDATION), rng, learning.persons
        )
        if held_out is None:
            raise InputError(
                "The cohort has too few patients with and without the outcome: use a larger one."
            )
        found.append(aucs(model, learning[~held_out], learning[held_out], test, seed))
    row: Row = {}
    for name, values in (
        ("auc", [auc.scores for auc in found]),
        ("auc_static", [auc.static for auc in found]),
        ("auc_size", [auc.size for auc in found]),
    ):
        row |= {name: mean_of(values), f"{name}_first": values[0], f"{name}_second": values[1]}
    return row


def phenotypes(model: Any, sides: Sides, matched: Matched) -> list[Row]:
    """A row for each phenotype of the first side: its top codes, its counterpart, and outcomes in the second side."""
    gate = gate_of(sides.second)
    W = np.asarray(model.transform(sides.second), np.float64)
    names = np.asarray(sides.first.feature_names)
    known = gate_of(sides.first)
    shown = np.array([known.count("feature", int(n)) is not None for n in model.feature_patients_])
    rows: list[Row] = []
    for r in range(model.V_.shape[1]):
        weights = np.where(shown, np.abs(model.V_[:, r]), 0.0)
        top = [j for j in np.argsort(-weights, kind="stable")[:TOP_CODES] if weights[j] > 0]
        row: Row = {"kind": PHENOTYPE, "phenotype": r + 1, "cosine": float(matched.V[r])}
        row["codes"] = "; ".join(f"{names[j]} {weights[j] / weights[top[0]]:.2f}" for j in top)
        rows.append(row | outcomes_of_top(W[:, r], is_case(sides.second), gate))
    return rows


def outcomes_of_top(scores: Array, case: Array, gate: Gate) -> Row:
    """Patients and outcomes among the tenth with the highest scores, of those who have any; rounded counts."""
    top = np.argsort(-scores, kind="stable")[: len(scores) // TOP_SHARE]
    top = top[scores[top] > 0]
    patients = gate.count("highest scores", len(top))
    outcomes = gate.count("outcomes of the highest scores", int(case[top].sum()))
    return {"top_patients": patients, "top_outcomes": outcomes, "top_share": gate.share(outcomes, patients)}


# Tables ------------------------------------------------------------------------------------------------------------


def measures(results: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of measures, with a column for each."""
    rows = results[results["kind"] == MEASURES].reset_index(drop=True)
    return rows.assign(**{name: np.nan for name in (*MEASURED, "rank") if name not in rows}).astype(
        dict.fromkeys(MEASURED, float)
    )


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    """Return means over the splits with their intervals, by cohort, method, number of phenotypes and kind of split."""
    import pandas as pd

    rows = measures(results)
    summary = summarise(rows, KEYS, MEASURED)
    bounds = [
        {name: value for measure in MEASURED for name, value in interval(part[measure], measure).items()}
        for _, part in rows.groupby(KEYS, sort=False, dropna=False)
    ]
    return summary.join(pd.DataFrame(bounds))


def interval(values: Iterable[float], name: str) -> dict[str, float]:
    """The interval of the mean over splits into halves, of which one is trained on and one is tested on."""
    known = [float(value) for value in values if value == value]
    if len(set(known)) == 1:
        known = known[:1]  # equal values, as shares of few phenotypes are, say nothing about their spread
    found = over_splits(known, name, ratio=1.0)
    low, high = found[f"{name}_splits_low"], found[f"{name}_splits_high"]
    if name in SHARES:
        low, high = max(low, 0.0), min(high, 1.0)
    return {f"{name}_low": low, f"{name}_high": high}
