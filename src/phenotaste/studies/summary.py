"""Means and standard deviations over starts: the summary that each study's table is made of."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def summarise(results: "pd.DataFrame", by: Sequence[str], measured: Sequence[str]) -> "pd.DataFrame":
    """A row for each setting, in the order of the results: how many there are, `NAME_mean` and `NAME_sd` of each."""
    import pandas as pd

    groups = results.groupby(list(by), sort=False, dropna=False)
    parts: list[Any] = [groups.size().rename("count")]
    for name in measured:
        parts.append(groups[name].mean().rename(f"{name}_mean"))
        parts.append(groups[name].std().rename(f"{name}_sd"))
    return pd.concat(parts, axis=1).reset_index()
