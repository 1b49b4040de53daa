"""A short page about a selection, in Markdown: what was chosen, by which rule, and how sure one may be."""

from typing import TYPE_CHECKING, Any

from phenotaste import __version__
from phenotaste.selection.rules import CPI_FLOOR, RULES, by_rank, choose

if TYPE_CHECKING:
    import pandas as pd

    from phenotaste.selection.selection import Selection


def render(found: "Selection") -> str:
    chosen = found.as_dict()
    lines = [
        "# Choosing the model",
        "",
        f"**{chosen['rank']} phenotypes** with lam = {chosen['lam']:g} and mu = {chosen['mu']:g}, by the rule "
        f"“{found.rule}”: {summary_of(found.rule)} The model in `best` is start {chosen['start']}, "
        "the one of that cell with the lowest RMSE.",
        "",
        "## By number of phenotypes",
        "",
        weights_sentence(found),
        "",
        *markdown(ranks_of(found)),
        "",
        "## What other rules would have named",
        "",
        *markdown(other_rules(found)),
        "",
        "## Would each phenotype be found again?",
        "",
        "Cosine with the one-to-one partner in other starts and in resampled patients; found again from 0.8 on.",
        "",
        *markdown(found.found_again),
        "",
        "A phenotype that starts or resamples do not find again depends on chance: do not build on it. All figures are "
        "in `table.csv` and `evidence.csv`.",
        "",
        f"phenotaste {__version__}",
    ]
    return "\n".join(lines) + "\n"


def summary_of(rule: str) -> str:
    text = (RULES[rule].choose.__doc__ or "").splitlines()[0]
    return text[:1].lower() + text[1:]


def weights_sentence(found: "Selection") -> str:
    if not RULES[found.rule].by_rank:
        return "At each number the weights with the lowest dissimilarity."
    return (
        "At each number the weights with the lowest dissimilarity among those whose phenotypes are unique "
        f"(CPI of at least {CPI_FLOOR:g}), where there are any."
    )


def ranks_of(found: "Selection") -> "pd.DataFrame":
    columns = ["rank", "lam", "mu", "dissimilarity", "dissimilarity_se", "found_again", "rmse", "cpi"]
    columns += [name for name in ("unseen_error", "halves_least") if name in found.table]
    return by_rank(found.rule, found.table)[columns]


def other_rules(found: "Selection") -> "pd.DataFrame":
    """What each rule names in this table."""
    import pandas as pd

    rows = []
    for name, rule in RULES.items():
        if rule.holdout and "halves_least" not in found.table:
            continue
        row = found.table.loc[choose(name, found.table)]
        rows.append((name, int(row["rank"]), row["lam"], row["mu"]))
    return pd.DataFrame(rows, columns=["rule", "rank", "lam", "mu"])


def markdown(table: "pd.DataFrame") -> list[str]:
    names = [str(name).replace("_", " ") for name in table.columns]
    rows = [[shown(value) for value in row] for row in table.itertuples(index=False)]
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *rows)]


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
