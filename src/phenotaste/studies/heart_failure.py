"""The paper's Q4: the phenotypes of patients with heart failure, and the effect of repeating static features on every
visit. The patients are simulated with the paper's five phenotypes planted, so that the answer is known."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste import metrics, selection, simulate
from phenotaste.baselines import CopaStatic
from phenotaste.cohort import Cohort
from phenotaste.selection import rules
from phenotaste.simulate import Truth
from phenotaste.simulate.paper_phenotypes import PHENOTYPES
from phenotaste.studies import heart_failure_page
from phenotaste.studies.study import Cell, CellContext, Options, Row

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAME = "heart-failure"
TITLE = "Heart-failure phenotypes"
QUESTION = (
    "Among patients with heart failure: how many phenotypes does the paper's stability rule choose, which are they, "
    "and what does PARAFAC2 find if static features are repeated on every visit?"
)
TIMED = False
PARALLEL_CELLS = True
ACCEPTS = frozenset({"starts", "fraction"})
FILES = ("phenotypes.tex",)

PATIENTS = 35_113  # the paper's Q3, of whom 3 244 are cases
RANKS, LAMS, MUS = (3, 20), (0.01, 0.1, 1.0), (0.01, 0.1, 1.0)  # the paper's supplement
PLANTED = len(PHENOTYPES)
MIN_WEIGHT = 0.1  # of the features that the paper shows
TOL = 1e-4


def cells(options: Options) -> list[Cell]:
    fraction = options.fraction or (0.05 if options.quick else 1.0)
    shared = {
        "patients": round(PATIENTS * fraction),
        "starts": options.starts or (2 if options.quick else 10),
        "seed": options.seed,
    }
    grid = {"last_rank": 5 if options.quick else RANKS[1], "grid": "short" if options.quick else "paper"}
    return [{"method": "TASTE", **shared, **grid}, {"method": "CopaStatic", **shared}]


def cost(cell: Cell) -> float:
    return 100.0 if cell["method"] == "TASTE" else 1.0


def run(cell: Cell, context: CellContext) -> list[Row]:
    everybody, truth = simulate.heart_failure(cell["patients"], random_state=cell["seed"])
    cases = everybody[np.asarray(everybody.labels) == 1]
    common = {"cases": len(cases), "visits": cases.n_visits}
    run_method = run_selection if cell["method"] == "TASTE" else run_copa_static
    rows = run_method(cell, cases, truth, context)
    return [common | row for row in rows]


def run_selection(cell: Cell, cases: Cohort, truth: Truth, context: CellContext) -> list[Row]:
    """Run the paper's search; describe the chosen model and one with the planted number of phenotypes."""
    lams, mus = (LAMS, MUS) if cell["grid"] == "paper" else ((0.1,), (0.1, 1.0))
    ranks = range(RANKS[0], cell["last_rank"] + 1)
    out = None if context.folder is None else context.folder / "selection"
    shared: dict[str, Any] = {"random_state": cell["seed"], "tol": TOL, "jobs": context.threads}
    result = selection.select(
        cases,
        ranks,
        lams,
        mus,
        cell["starts"],
        "stability",
        out=out,
        resume=True,
        callback=lambda progress: context.on_progress(progress.fraction),
        **shared,
    )
    if context.folder is not None:
        write_latex(result.best, cases, context.folder)
    rows: list[Row] = [{"kind": "grid"} | dict(row) for _, row in result.table.iterrows()]
    rows += describe("chosen", result.best, cases, truth)
    if result.rank != PLANTED:
        best = (
            result.table[result.table["rank"] == PLANTED].sort_values("dissimilarity", kind="stable").iloc[0]
        )
        planted = selection.select(
            cases, PLANTED, best["lam"], best["mu"], cell["starts"], "stability", **shared
        ).best
        rows += describe("planted number", planted, cases, truth)
    return rows


def write_latex(model: Any, cases: Cohort, folder: Path) -> None:
    """Write the definitions in the paper's layout."""
    from phenotaste.report import content, table_files
    from phenotaste.storage.atomic import write_file

    made = content.build(model, cases, title="Phenotypes of simulated patients with heart failure")
    write_file(folder / FILES[0], table_files.definitions_tex(made))


def run_copa_static(cell: Cell, cases: Cohort, truth: Truth, context: CellContext) -> list[Row]:
    """Fit PARAFAC2 with the static features as codes of every visit."""
    model = CopaStatic(
        PLANTED, n_init=cell["starts"], tol=TOL, n_jobs=context.threads, random_state=cell["seed"]
    ).fit(cases)
    return describe("static repeated", model, cases, truth)


def describe(which: str, model: Any, cases: Cohort, truth: Truth) -> list[Row]:
    """Return a row for each phenotype with its planted partner, and one for each feature that the paper would show."""
    assert truth.F is not None
    assert cases.feature_names is not None
    assert cases.static_names is not None
    rows: list[Row] = []
    partner = partners(model, truth)
    one_factor = isinstance(model, CopaStatic)  # V and F are rows of one factor, with common weights
    largest = [max(model.V_.max(), model.F_.max())] * 2 if one_factor else [model.V_.max(), model.F_.max()]
    for r in range(model.rank):
        common = {"which": which, "rank": model.rank, "lam": getattr(model, "lam", None)}
        common |= {"mu": getattr(model, "mu", None), "phenotype": r + 1}
        true = partner.get(r)
        static = float(np.sum(model.F_[:, r] ** 2))
        rows.append(
            common
            | {
                "kind": "phenotype",
                "planted": None if true is None else PHENOTYPES[true],
                "cosine": None if true is None else column_cosine(model.V_[:, r], truth.V[:, true]),
                "static_cosine": None if true is None else column_cosine(model.F_[:, r], truth.F[:, true]),
                "static_share": static / (static + float(np.sum(model.V_[:, r] ** 2))),
            }
        )
        for kind, factor, top, names in (
            ("temporal", model.V_, largest[0], cases.feature_names),
            ("static", model.F_, largest[1], cases.static_names),
        ):
            weights = factor[:, r] / top
            for j in np.argsort(-weights, kind="stable"):
                if weights[j] >= MIN_WEIGHT:
                    feature = {"feature": str(names[j]), "weight": round(float(weights[j]), 6)}
                    rows.append(common | {"kind": "feature", "of": kind, **feature})
    return rows


def partners(model: Any, truth: Truth) -> dict[int, int]:
    """Match estimated to planted phenotypes one to one by their temporal definitions."""
    from scipy.optimize import linear_sum_assignment

    estimated, true = linear_sum_assignment(-metrics.cosines(model.V_, truth.V))
    return dict(zip(estimated.tolist(), true.tolist(), strict=True))


def column_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(metrics.cosines(a[:, None], b[:, None])[0, 0])


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    """Return the grid by number of phenotypes, with the most stable weights at each."""
    grid = results[results["kind"] == "grid"]
    columns = ["rank", "lam", "mu", "dissimilarity", "dissimilarity_se", "reproducibility", "rmse", "cpi"]
    return rules.by_rank("stability", grid)[columns].reset_index(drop=True)


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    return heart_failure_page.figure(results, table)


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    return heart_failure_page.text(results, table)
