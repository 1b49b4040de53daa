"""Statistical disclosure control: figures of 1 to 10 patients are suppressed and cannot be recovered by subtraction.

A count of zero is shown. Hidden entries all look the same, whether they are small themselves (primary suppression) or
would reveal a small one (secondary suppression); otherwise a reader could infer which counts are small.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

MIN_CELL_SIZE = 11
DIGITS = 3  # significant digits


@dataclass(frozen=True)
class Suppressed:
    """An entry of the audit list: what is not shown, where, and why. It contains no count of patients.

    Examples
    --------
    >>> from phenotaste.disclosure import Gate
    >>> gate = Gate()
    >>> gate.count("overview", "cases", 4)
    >>> gate.audit[0].where, gate.audit[0].reason
    ('overview', 'fewer than 11 patients, or fewer could be inferred by subtraction')
    """

    where: str
    what: str
    reason: str


@dataclass
class Gate:
    """Show only numbers that concern at least `min_cell_size` patients; a `trusted` gate shows everything.

    `audit` lists what was suppressed.

    Examples
    --------
    >>> gate = Gate()
    >>> gate.count("overview", "cases", 4), gate.count("overview", "cases", 40)
    (None, 40)
    >>> gate.parts("overview", "leading patients", [4, 100, 30])
    [None, 100, None]
    >>> gate.audit[0].what
    'cases'
    """

    min_cell_size: int = MIN_CELL_SIZE
    trusted: bool = False
    audit: list[Suppressed] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """The reason given in the audit list for suppressed numbers."""
        return f"fewer than {self.min_cell_size} patients, or fewer could be inferred by subtraction"

    def note(self, where: str, what: str, reason: str | None = None) -> None:
        """Add to the audit list.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.note("map", "patients", "points are of single patients")
        >>> gate.audit
        [Suppressed(where='map', what='patients', reason='points are of single patients')]
        """
        self.audit.append(Suppressed(where, what, reason or self.reason))

    def is_small(self, counts: Any) -> Any:
        """Return whether a count, or each of several, must not be shown.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.is_small([0, 1, 10, 11])
        array([False,  True,  True, False])
        """
        counts = np.asarray(counts)
        return (counts > 0) & (counts < (0 if self.trusted else self.min_cell_size))

    @property
    def min_group_size(self) -> int:
        """The minimum number of patients for a mean, a quantile or a point of a curve; never zero."""
        return 1 if self.trusted else self.min_cell_size

    def count(self, where: str, what: str, count: int, *differences: int) -> int | None:
        """Return a count, or None if it or one of its `differences` from other shown counts is small.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.count("overview", "women", 95), gate.count("overview", "women", 95, 100 - 95)
        (95, None)
        """
        if any(self.is_small(n) for n in (count, *differences)):
            self.note(where, what)
            return None
        return int(count)

    def number(self, where: str, what: str, value: float, backed_by: int) -> float | None:
        """Return a mean, quantile or effect, rounded; None if `backed_by` is too few patients, or for NaN.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.number("profile", "age", 61.234, backed_by=40), gate.number("profile", "age", 61.234, backed_by=4)
        (61.2, None)
        """
        if backed_by < self.min_group_size:
            if backed_by:  # without patients nothing is suppressed
                self.note(where, what)
            return None
        return rounded(value)

    def parts(self, where: str, what: str, counts: Sequence[int] | Counts) -> list[int | None]:
        """Return counts whose total is known; while the hidden ones together are small, hide the next larger too.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.parts("overview", "leading patients", [4, 100, 30])  # 4 alone could be inferred by subtraction
        [None, 100, None]
        """
        sizes = np.asarray(counts, np.int64)
        hidden = self.is_small(sizes)
        while hidden.any() and self.is_small(int(sizes[hidden].sum())):
            others = np.flatnonzero(~hidden & (sizes > 0))
            if not len(others):
                hidden[:] = True  # the total itself is too small
                break
            hidden[others[sizes[others].argmin()]] = True
        if hidden.any():
            self.note(where, what)
        return [None if hide else int(n) for hide, n in zip(hidden, sizes, strict=True)]

    def chain(self, where: str, what: str, counts: Sequence[int]) -> list[int | None]:
        """Return counts of nested groups; no two that are shown differ by 1 to 10.

        The last one is known in any case (it is the size of the cohort), so it is kept and others are hidden.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.chain("attrition", "patients", [1000, 506, 500])
        [1000, None, 500]
        """
        shown: list[int | None] = []
        for n in reversed(counts):
            kept = [m for m in shown if m is not None]
            safe = not self.is_small(n) and not any(self.is_small(abs(n - m)) for m in kept)
            shown.append(int(n) if safe else None)
        if None in shown:
            self.note(where, what)
        return shown[::-1]

    def table(self, counts: Counts, rows: Mask | None = None, columns: Mask | None = None) -> Mask:
        """Return which cells to hide in a contingency table that counts every patient once.

        All row and column totals are assumed to be known, except those outside the masks `rows` and `columns`, of
        which only the sum is. The hidden cells form a rectangle, some rows by some columns. A reader can infer only
        the row and column sums of the rectangle, so it grows until none of these sums is small. The caller adds what
        is hidden to the audit list.

        Examples
        --------
        >>> import numpy as np
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.table(np.array([[40, 3], [60, 50], [30, 20]]))  # the 3, and what would reveal it
        array([[ True,  True],
               [False, False],
               [ True,  True]])
        """
        open_rows = np.ones(len(counts), bool) if rows is None else rows
        open_columns = np.ones(counts.shape[1], bool) if columns is None else columns
        closed = ~np.outer(open_rows, open_columns)
        if self.trusted:
            return np.zeros(counts.shape, bool)
        pooled = _pooled(_pooled(counts, open_rows).T, open_columns).T
        if self.is_small(pooled.sum(axis=0)).any() or self.is_small(pooled.sum(axis=1)).any():
            return np.ones(counts.shape, bool)
        row, column = self._rectangle(pooled)
        hidden = closed.copy()
        hidden[np.ix_(open_rows, open_columns)] = np.outer(
            row[: open_rows.sum()], column[: open_columns.sum()]
        )
        return hidden

    def _rectangle(self, table: Counts) -> tuple[Mask, Mask]:
        """Return the rows and the columns whose common cells are to be hidden."""
        primary = self.is_small(table)
        rows, columns = primary.any(axis=1), primary.any(axis=0)
        while primary.any():
            part = table[np.ix_(rows, columns)]
            if (small := self.is_small(part.sum(axis=0))).any():
                rows[_smallest(table[:, np.flatnonzero(columns)[small]].sum(axis=1), rows)] = True
            elif (small := self.is_small(part.sum(axis=1))).any():
                columns[_smallest(table[np.flatnonzero(rows)[small]].sum(axis=0), columns)] = True
            else:
                break
        return rows, columns


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """Round to a number of significant digits; None for NaN and infinity.

    Examples
    --------
    >>> rounded(0.123456), rounded(98765.4), rounded(float("nan"))
    (0.123, 98800.0, None)
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{float(value):.{digits}g}")


def rounded_all(values: Any, digits: int = DIGITS) -> list[float]:
    """Round the finite values of a curve."""
    return [float(f"{value:.{digits}g}") for value in np.asarray(values, np.float64).tolist()]


def printable(name: Any) -> str:
    """Replace characters that cannot be printed: control codes in a name could steer a terminal.

    Examples
    --------
    >>> printable("Gout\\x1b[2J")
    'Gout\ufffd[2J'
    """
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in str(name))


def _pooled(counts: Counts, keep: Mask) -> Counts:
    """Return the rows to keep and, if there are others, their sum as one more row."""
    if keep.all():
        return counts
    return np.vstack([counts[keep], counts[~keep].sum(axis=0)])


def _smallest(sizes: Counts, taken: Mask) -> int:
    """Return the position of the smallest positive size that is not taken yet."""
    candidates = np.flatnonzero(~taken & (sizes > 0))
    return int(candidates[sizes[candidates].argmin()])
