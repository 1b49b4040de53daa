"""The figure and the page of the study of prediction, from its results alone."""

from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.plotting import error_line, legend_below, set_labels
from phenotaste.prediction.evaluation_tables import over_splits
from phenotaste.prediction.figures import COLOURS, DASHES
from phenotaste.prediction.methods import LABELS, TASTE_NAME
from phenotaste.prediction.split_cohorts import VALIDATION
from phenotaste.studies import study_page
from phenotaste.studies.study_page import fixed_mean_sd, markdown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# From the paper: the caption of its figure on AUC, and the text below it.
PAPER = {"raw": 0.7426, "raw-static": 0.7498, "gru": 0.7547, TASTE_NAME: 0.7554}
PAPER_RANK, PAPER_PATIENTS = 80, 35_113
LONG_TRAINING = 50  # epochs
STATIC_RISK = 3.0  # of the second simulated cohort, relative to the default of simulate.heart_failure
COHORTS = {
    "phenotypes alone": "simulated: risk depends on phenotypes only",
    "static features too": "simulated: risk also depends on static features",
    "DE-SynPUF": "DE-SynPUF: incident heart failure",
}


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    """AUC against the number of phenotypes; methods without one as lines across."""
    cohorts = list(dict.fromkeys(table["cohort"]))
    figure, axes = study_page.grid(1, len(cohorts), width=3.6, height=3.1, sharey=True)
    for axis, cohort in zip(axes[0], cohorts, strict=True):
        rows = table[table["cohort"] == cohort]
        for place, method in enumerate(dict.fromkeys(rows["method"])):
            part = rows[rows["method"] == method]
            style: dict[str, Any] = {"color": COLOURS[method], "linestyle": DASHES.get(method, "-")}
            style["linewidth"] = 2.0 if method == TASTE_NAME else 1.2
            if part["rank"].isna().all():
                axis.axhline(part["auc_mean"].iloc[0], label=LABELS[method], **style | {"linewidth": 1.0})
                continue
            x = np.arange(len(part)) + 0.05 * (place - 1.5)  # side by side, so that bars do not overlap
            style |= {"label": LABELS[method], "markersize": 3.5, "zorder": 4 if method == TASTE_NAME else 3}
            error_line(axis, x, part["auc_mean"], part["auc_sd"], **style)
        ranks = sorted(rows["rank"].dropna().unique())
        axis.set_xticks(range(len(ranks)), [f"{rank:g}" for rank in ranks])
        set_labels(axis, COHORTS[cohort].replace(": ", ":\n"), "number of phenotypes")
    set_labels(axes[0, 0], y="AUC on test patients, mean ± sd of splits")
    legend_below(figure, axes.flat, [LABELS[method] for method in methods_of(table)])
    return figure


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    splits = results["split"].nunique()
    best = best_of(results)
    cohorts = list(dict.fromkeys(results["cohort"]))
    parts = [
        "## What was run",
        protocol(results, splits),
        data_table(results),
        "## Comparison with the paper",
        f"The paper reports AUC {PAPER['raw']} for codes alone, {PAPER['raw-static']} with static features, "
        f"{PAPER['gru']} for the recurrent network and {PAPER[TASTE_NAME]} for TASTE with {PAPER_RANK} phenotypes, on "
        "data of Sutter Health that are not public, and TASTE above COPA, COPA with static features and CNTF "
        "throughout. It gives no intervals.",
        f"Measured, with the number of phenotypes that has the highest validation AUC on each split: mean of {splits} "
        "splits, and in brackets the 95 % interval of the mean over splits (Nadeau and Bengio 2003), which accounts "
        "for splits that share patients.",
        chosen_table(best, cohorts),
        "Difference between TASTE's AUC and that of the others, paired by split:",
        difference_table(best, cohorts),
        "\n".join(verdict(best, cohort) for cohort in cohorts),
        "## By number of phenotypes",
        "Mean ± standard deviation over the splits:",
        *[rank_table(table, cohort) for cohort in cohorts],
        "## Other measures",
        "At the chosen number of phenotypes: mean ± standard deviation, and for the calibration slope the median and "
        "the range, since it is unstable where a strong lasso leaves nearly equal risks. Compare AUPRC with the "
        "fraction of cases. The slope is below 1 for risks that are too extreme and above 1 for risks that are too "
        "moderate.",
        *[measures_table(best, cohort) for cohort in cohorts],
        "## Interpretation",
        discussion(results, table, best),
    ]
    return "\n\n".join(parts)


def protocol(results: "pd.DataFrame", splits: int) -> str:
    taste = results[results["method"] == TASTE_NAME].iloc[0]
    ranks = ", ".join(f"{rank:g}" for rank in sorted(results["rank"].dropna().unique()))
    methods = set(results["method"])
    networks = results[results["epochs"].notna()]
    sentences = [
        f"{splits} stratified splits into 75 % training, 10 % validation and 15 % test patients. "
        f"{ranks} phenotypes. TASTE's weights are relative (λ of {listed(taste['lams'])}, μ of "
        f"{listed(taste['mus'])}); these and the strength of the lasso (0.01 to 10000 in powers of ten) are chosen by "
        "the validation AUC, as in the supplement. Training, validation and test patients are all projected onto the "
        "definitions; scores are divided by their standard deviation in training. COPA, and COPA with static features "
        "repeated on every visit, are followed by the same regression; codes alone, and codes and static features, are "
        "that regression on the codes that a patient ever had.",
    ]
    if len(networks):
        epochs = int(networks["epochs"].max())
        rounds = results["iterations"].dropna()
        sentences.append(
            f"The GRU reads the sequence of visits, for at most {epochs} epochs"
            + (
                f"; CNTF is factorised in {int(rounds.max())} iterations, and an LSTM reads its courses."
                if len(rounds)
                else "."
            )
        )
    if not {"cntf", "gru"} <= methods:
        sentences.append("CNTF and the GRU require torch, which was not installed: they were left out.")
    return " ".join(sentences)


def listed(numbers: Any) -> str:
    """Format the numbers of a cell, which are a number in the CSV file if there is only one."""
    return ", ".join(f"{float(part):g}" for part in str(numbers).split())


def data_table(results: "pd.DataFrame") -> str:
    rows = []
    for cohort, part in results.groupby("cohort", sort=False):
        row = part.iloc[0]
        cases = f"{row['n_cases']:,} ({row['n_cases'] / row['n_patients']:.1%})"
        sizes = [row["n_patients"], row["visits"], row["features"], row["static"]]
        test = f"{row['n_test']:,}, of whom {row['n_test_cases']:,} cases"
        rows.append([COHORTS[str(cohort)], *[f"{size:,}" for size in sizes], cases, test])
    header = ["", "patients", "visits", "codes", "static features", "cases", "test patients per split"]
    return markdown(rows, header)


def best_of(results: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows with the highest validation AUC for each cohort, method and split; few phenotypes win ties."""
    ordered = results.sort_values(["rank"], kind="stable")
    keys = ["cohort", "method", "split"]
    where = ordered.groupby(keys, sort=False)["validation_auc"].idxmax()
    return results.loc[sorted(where)]


def aucs(best: "pd.DataFrame", cohort: str, method: str) -> list[float]:
    rows = best[(best["cohort"] == cohort) & (best["method"] == method)].sort_values("split")
    return [float(value) for value in rows["auc"]]


def methods_of(best: "pd.DataFrame") -> list[str]:
    return [name for name in LABELS if name in set(best["method"])]


def with_interval(values: list[float], name: str, sign: str = "") -> str:
    bounds = over_splits(values, name)
    low, high = bounds[f"{name}_splits_low"], bounds[f"{name}_splits_high"]
    mean = f"{np.mean(values):{sign}.3f}"
    return mean if low != low else f"{mean} ({low:{sign}.3f} to {high:{sign}.3f})"


def chosen_table(best: "pd.DataFrame", cohorts: list[str]) -> str:
    rows = [
        [LABELS[method], *[with_interval(aucs(best, cohort, method), "auc") for cohort in cohorts]]
        for method in methods_of(best)
    ]
    return markdown(rows, ["", *[COHORTS[cohort] for cohort in cohorts]])


def gaps(best: "pd.DataFrame", cohort: str, method: str) -> list[float]:
    pairs = zip(aucs(best, cohort, TASTE_NAME), aucs(best, cohort, method), strict=True)
    return [taste - other for taste, other in pairs]


def difference_table(best: "pd.DataFrame", cohorts: list[str]) -> str:
    rows = []
    for method in methods_of(best):
        if method != TASTE_NAME:
            differences = [gaps(best, cohort, method) for cohort in cohorts]
            cells = [
                f"{with_interval(gap, 'gap', '+')}, higher in {sum(np.array(gap) > 0)} of {len(gap)}"
                for gap in differences
            ]
            rows.append([LABELS[method], *cells])
    return markdown(rows, ["", *[COHORTS[cohort] for cohort in cohorts]])


def verdict(best: "pd.DataFrame", cohort: str) -> str:
    """State which differences from zero the intervals exclude."""
    above: list[str] = []
    below: list[str] = []
    alike: list[str] = []
    for method in methods_of(best):
        if method == TASTE_NAME:
            continue
        bounds = over_splits(gaps(best, cohort, method), "gap")
        low, high = bounds["gap_splits_low"], bounds["gap_splits_high"]
        (above if low > 0 else below if high < 0 else alike).append(LABELS[method])
    clauses = [
        f"{word} {joined(names)}"
        for word, names in (
            ("is above", above),
            ("is below", below),
            ("does not differ detectably from", alike),
        )
        if names
    ]
    return f"- *{COHORTS[cohort]}*: TASTE {'; it '.join(clauses)}."


def joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def rank_table(table: "pd.DataFrame", cohort: str) -> str:
    rows = table[(table["cohort"] == cohort) & table["rank"].notna()]
    ranks = sorted(rows["rank"].unique())
    lines = []
    for method in dict.fromkeys(rows["method"]):
        part = rows[rows["method"] == method].set_index("rank")
        lines.append(
            [
                LABELS[method],
                *[fixed_mean_sd(part.at[rank, "auc_mean"], part.at[rank, "auc_sd"]) for rank in ranks],
            ]
        )
    return markdown(lines, [COHORTS[cohort], *[f"R = {rank:g}" for rank in ranks]])


def measures_table(best: "pd.DataFrame", cohort: str) -> str:
    rows = []
    for method in methods_of(best):
        part = best[(best["cohort"] == cohort) & (best["method"] == method)]
        cells = [fixed_mean_sd(part[name].mean(), part[name].std()) for name in ("auprc", "brier")]
        slope = part["calibration_slope"]
        rows.append(
            [LABELS[method], *cells, f"{slope.median():.2f} ({slope.min():.2f} to {slope.max():.2f})"]
        )
    return markdown(rows, [COHORTS[cohort], "AUPRC", "Brier score", "calibration slope"])


def discussion(results: "pd.DataFrame", table: "pd.DataFrame", best: "pd.DataFrame") -> str:
    """Compare what was measured with what the simulated risk implies."""
    first, second = "phenotypes alone", "static features too"
    gain = {
        cohort: float(np.subtract(aucs(best, cohort, "raw-static"), aucs(best, cohort, "raw")).mean())
        for cohort in (first, second)
    }
    copa = {cohort: float(np.mean(gaps(best, cohort, "copa"))) for cohort in (first, second)}
    repeated = {cohort: ends(table, cohort, "copa-static") for cohort in (first, second)}
    taste = {cohort: fixed_ranks(table, cohort, TASTE_NAME) for cohort in (first, second)}
    chosen = {cohort: float(np.mean(aucs(best, cohort, TASTE_NAME))) for cohort in (first, second)}
    row = results[results["cohort"] == first].iloc[0]
    n_validation, n_test = round(VALIDATION * int(row["n_cases"])), int(row["n_test_cases"])
    return f"""
The two simulated cohorts have the same patients, visits and static features; only the labels differ. In the first, the
risk depends on five planted phenotypes; in the second, age, sex and smoking contribute as well, {STATIC_RISK:g} times
as much as in `simulate.heart_failure` by default. Adding static features to the raw codes changes the AUC by
{gain[first]:+.3f} in the first and by {gain[second]:+.3f} in the second.

**TASTE and COPA** differ by {copa[first]:+.3f} and {copa[second]:+.3f}, although COPA does not use static features.
TASTE has one score for visits and static features together, so that static features contribute to the prediction only
as far as they are associated with a phenotype; the effect of age or sex alone has no score of its own.

**COPA with static features** on every visit has separate definitions for them, which replace diseases if there are few
definitions (the study `heart-failure` shows which): its AUC goes from {repeated[first]} in the first cohort and from
{repeated[second]} in the second, where a score for age or smoking is useful.

**Tuning** on {n_validation} validation cases is noisy. With a fixed number of phenotypes TASTE's AUC is {taste[first]}
in the first cohort and {taste[second]} in the second; with the number chosen on each split it is {chosen[first]:.3f}
and {chosen[second]:.3f}. TASTE is also tuned over λ, thus over more settings than the others. A split has {n_test} test
cases: the error of a single AUC can be several hundredths, and small differences cannot be detected even if paired by
split. The paper had {PAPER_PATIENTS:,} patients: `--size paper` uses this number, and its numbers of phenotypes and
weights.{training_note(results)}
""".strip()


def training_note(results: "pd.DataFrame") -> str:
    if results["epochs"].isna().all():
        return ""
    return (
        " The networks were trained briefly, so that the study runs on a laptop; longer training may improve them."
        if results["epochs"].max() < LONG_TRAINING
        else ""
    )


def fixed_ranks(table: "pd.DataFrame", cohort: str, method: str) -> str:
    """Return the range of the mean AUC over the numbers of phenotypes."""
    means = table[(table["cohort"] == cohort) & (table["method"] == method)]["auc_mean"]
    return f"{means.min():.3f} to {means.max():.3f}"


def ends(table: "pd.DataFrame", cohort: str, method: str) -> str:
    """Return the mean AUC with the smallest and with the largest number of phenotypes."""
    rows = table[(table["cohort"] == cohort) & (table["method"] == method)].sort_values("rank")
    few, many = rows.iloc[0], rows.iloc[-1]
    return f"{few['auc_mean']:.3f} with {few['rank']:g} phenotypes to {many['auc_mean']:.3f} with {many['rank']:g}"
