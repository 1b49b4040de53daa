"""The one gate through which numbers about patients leave: none of 1 to 10 patients, and none to be had by subtraction.

A count of zero is shown: there is nobody to hide. Whatever is hidden looks the same, whether it was small itself or
would have given a small one away, for else the smallest of hidden counts could be told from the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

FEWEST = 11
DIGITS = 3  # significant ones; more would say nothing to a reader


@dataclass(frozen=True)
class Suppressed:
    """An entry of the audit list: what is not shown, where, and why. It holds no count of patients.

    Examples
    --------
    >>> from phenotaste.disclosure import Gate
    >>> gate = Gate()
    >>> gate.count("overview", "cases", 4)
    >>> gate.audit[0].where, gate.audit[0].reason
    ('overview', 'fewer than 11 patients, or fewer could be told by subtraction')
    """

    where: str
    what: str
    reason: str


@dataclass
class Gate:
    """Lets through what at least `fewest` patients stand behind; a `trusted` one lets everything through.

    `audit` lists what was held back.

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

    fewest: int = FEWEST
    trusted: bool = False
    audit: list[Suppressed] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """What the audit list says of what is held back."""
        return f"fewer than {self.fewest} patients, or fewer could be told by subtraction"

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

    def few(self, counts: Any) -> Any:
        """Whether a count, or each of several, must not be seen.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.few([0, 1, 10, 11])
        array([False,  True,  True, False])
        """
        found = np.asarray(counts)
        return (found > 0) & (found < (0 if self.trusted else self.fewest))

    @property
    def smallest_group(self) -> int:
        """Of how many patients a mean, a quantile or a point of a curve may be shown; one of nobody never is."""
        return 1 if self.trusted else self.fewest

    def count(self, where: str, what: str, count: int, *differences: int) -> int | None:
        """A count, unless it or one of the `differences` a reader can take with other shown counts is small.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.count("overview", "women", 95), gate.count("overview", "women", 95, 100 - 95)
        (95, None)
        """
        if any(self.few(n) for n in (count, *differences)):
            self.note(where, what)
            return None
        return int(count)

    def number(self, where: str, what: str, value: float, backed_by: int) -> float | None:
        """A mean, quantile or effect of so many patients, rounded; None also for what is not a number.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.number("profile", "age", 61.234, backed_by=40), gate.number("profile", "age", 61.234, backed_by=4)
        (61.2, None)
        """
        if backed_by < self.smallest_group:
            if backed_by:  # nothing is hidden of nobody
                self.note(where, what)
            return None
        return rounded(value)

    def parts(self, where: str, what: str, counts: Sequence[int] | Counts) -> list[int | None]:
        """Counts whose total is known: also the next larger where the hidden ones together are still too few.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.parts("overview", "leading patients", [4, 100, 30])  # 4 alone could be had by subtraction
        [None, 100, None]
        """
        found = np.asarray(counts, np.int64)
        hidden = self.few(found)
        while hidden.any() and self.few(int(found[hidden].sum())):
            others = np.flatnonzero(~hidden & (found > 0))
            if not len(others):
                hidden[:] = True  # the total itself is too small
                break
            hidden[others[found[others].argmin()]] = True
        if hidden.any():
            self.note(where, what)
        return [None if hide else int(n) for hide, n in zip(hidden, found, strict=True)]

    def chain(self, where: str, what: str, counts: Sequence[int]) -> list[int | None]:
        """Counts of which each is what is left of the one before: no two that are shown differ by 1 to 10.

        The last one is known anyhow (it is the size of the cohort), so it is kept, and the rest gives way to it.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.chain("attrition", "patients", [1000, 506, 500])
        [1000, None, 500]
        """
        shown: list[int | None] = []
        for n in reversed(counts):
            seen = [m for m in shown if m is not None]
            safe = not self.few(n) and not any(self.few(abs(n - m)) for m in seen)
            shown.append(int(n) if safe else None)
        if None in shown:
            self.note(where, what)
        return shown[::-1]

    def table(self, counts: Counts, rows: Mask | None = None, columns: Mask | None = None) -> Mask:
        """Which cells to hide in a table of groups by levels in which every patient stands once.

        All row and column totals are taken as known, but for those of `rows` and `columns` that are not open; of
        these only the total together is. Hidden is a rectangle, some rows by some columns. Of a rectangle nothing but
        the sums of its rows and of its columns can be told, so it grows until none of these sums is small; the whole
        table always will do. The caller notes what is hidden.

        Examples
        --------
        >>> import numpy as np
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.table(np.array([[40, 3], [60, 50], [30, 20]]))  # the 3, and what would give it away
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
        if self.few(pooled.sum(axis=0)).any() or self.few(pooled.sum(axis=1)).any():
            return np.ones(counts.shape, bool)
        row, column = self._rectangle(pooled)
        hidden = closed.copy()
        hidden[np.ix_(open_rows, open_columns)] = np.outer(
            row[: open_rows.sum()], column[: open_columns.sum()]
        )
        return hidden

    def _rectangle(self, table: Counts) -> tuple[Mask, Mask]:
        """The rows and the columns whose common cells are to be hidden."""
        few = self.few(table)
        rows, columns = few.any(axis=1), few.any(axis=0)
        while few.any():
            part = table[np.ix_(rows, columns)]
            if (small := self.few(part.sum(axis=0))).any():
                rows[_smallest(table[:, np.flatnonzero(columns)[small]].sum(axis=1), rows)] = True
            elif (small := self.few(part.sum(axis=1))).any():
                columns[_smallest(table[np.flatnonzero(rows)[small]].sum(axis=0), columns)] = True
            else:
                break
        return rows, columns


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """To so many significant digits; None for what is not a finite number.

    Examples
    --------
    >>> rounded(0.123456), rounded(98765.4), rounded(float("nan"))
    (0.123, 98800.0, None)
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{float(value):.{digits}g}")


def rounded_all(values: Any, digits: int = DIGITS) -> list[float]:
    """A curve's numbers, each rounded; they must be finite."""
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
    """The rows that are kept, and the others added up to one more where there are any."""
    if keep.all():
        return counts
    return np.vstack([counts[keep], counts[~keep].sum(axis=0)])


def _smallest(sizes: Counts, taken: Mask) -> int:
    """The one with the fewest, but some, that is not taken yet."""
    candidates = np.flatnonzero(~taken & (sizes > 0))
    return int(candidates[sizes[candidates].argmin()])
