"""A short page about a selection, in Markdown: what was chosen, by which rule, and how reproducible it is."""

from typing import TYPE_CHECKING, Any

from phenotaste import __version__
from phenotaste.selection.rules import MIN_CPI, RULES, by_rank, choose

if TYPE_CHECKING:
    import pandas as pd

    from phenotaste.selection.selection import Selection


def render(result: "Selection") -> str:
    chosen = result.as_dict()
    lines = [
        "# Model selection",
        "",
        f"**{chosen['rank']} phenotypes** with lam = {chosen['lam']:g} and mu = {chosen['mu']:g}, by the rule "
        f"“{result.rule}”: {rule_summary(result.rule)} The model in `best` is start {chosen['start']}, "
        "the one of that cell with the lowest RMSE.",
        "",
        "## By number of phenotypes",
        "",
        weights_sentence(result),
        "",
        *markdown(rank_table(result)),
        "",
        "## The choice of other rules",
        "",
        *markdown(other_rules(result)),
        "",
        "## Reproducibility of each phenotype",
        "",
        "Cosine with the one-to-one partner in other starts and in bootstrap samples; a phenotype is reproduced if it "
        "is at least 0.8.",
        "",
        *markdown(result.reproducibility),
        "",
        "A phenotype that other starts or bootstrap samples do not reproduce depends on chance: do not rely on it. "
        "`table.csv` and `evidence.csv` have all figures.",
        "",
        f"phenotaste {__version__}",
    ]
    return "\n".join(lines) + "\n"


def rule_summary(rule: str) -> str:
    text = (RULES[rule].choose.__doc__ or "").splitlines()[0]
    return text[:1].lower() + text[1:]


def weights_sentence(result: "Selection") -> str:
    if not RULES[result.rule].by_rank:
        return "At each number the weights with the lowest dissimilarity."
    return (
        "At each number the weights with the lowest dissimilarity among those whose phenotypes are unique "
        f"(CPI of at least {MIN_CPI:g}), if there are any."
    )


def rank_table(result: "Selection") -> "pd.DataFrame":
    columns = ["rank", "lam", "mu", "dissimilarity", "dissimilarity_se", "reproducibility", "rmse", "cpi"]
    columns += [name for name in ("held_out_error", "split_half_cosine_min") if name in result.table]
    return by_rank(result.rule, result.table)[columns]


def other_rules(result: "Selection") -> "pd.DataFrame":
    """Return the cell that each rule chooses in this table."""
    import pandas as pd

    rows = []
    for name, rule in RULES.items():
        if rule.holdout and "split_half_cosine_min" not in result.table:
            continue
        row = result.table.loc[choose(name, result.table)]
        rows.append((name, int(row["rank"]), row["lam"], row["mu"]))
    return pd.DataFrame(rows, columns=["rule", "rank", "lam", "mu"])


def markdown(table: "pd.DataFrame") -> list[str]:
    names = [str(name).replace("_", " ") for name in table.columns]
    rows = [[format_value(value) for value in row] for row in table.itertuples(index=False)]
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *rows)]


def format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
