"""Counts of patients as pages and figures may show them: none below 11, and none to be had by subtraction."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEWEST = 11
TOO_FEW = f"<{FEWEST}"
NOT_SHOWN = "not shown"


def shown(count: int) -> str:
    return f"{count:,}" if count >= FEWEST else TOO_FEW


def hidden_parts(counts: Sequence[int]) -> set[int]:
    """Which counts to hide when their total is known.

    Those below 11; and where these stand for fewer than 11 patients, which the total would tell, the next larger
    one too. Where all small counts are zero there is nobody to hide.
    """
    by_size = sorted(range(len(counts)), key=lambda i: counts[i])
    small = [count for count in counts if count < FEWEST]
    told_by_total = 0 < sum(small) < FEWEST
    return set(by_size[: len(small) + told_by_total])


def shown_parts(counts: Sequence[int]) -> list[str]:
    """Counts with a known total, as text; a share stands beside those that are shown."""
    hidden = hidden_parts(counts)
    total = sum(counts)
    return [
        (f"{TOO_FEW} patients" if count < FEWEST else "some patients")
        if i in hidden
        else f"{count:,} patients ({count / total:.0%})"
        for i, count in enumerate(counts)
    ]


def in_steps(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts for bars, rounded down to steps of 11: neither a small one nor a difference can be read off."""
    return counts // FEWEST * FEWEST
