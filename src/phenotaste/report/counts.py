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

    Those below 11; and where these could be worked out from the total, the next larger ones too, until two or
    more are hidden that stand for 11 patients or more. Where all small counts are zero there is nobody to hide.
    """
    by_size = sorted(range(len(counts)), key=lambda i: counts[i])
    n_hidden = sum(count < FEWEST for count in counts)
    if any(0 < count < FEWEST for count in counts):
        while n_hidden < len(counts) and (
            n_hidden < 2 or sum(counts[i] for i in by_size[:n_hidden]) < FEWEST
        ):
            n_hidden += 1
    return set(by_size[:n_hidden])


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
