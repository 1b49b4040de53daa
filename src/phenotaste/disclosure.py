"""Statistical disclosure control: the one rule that every number about patients passes before it is shown.

Counts are rounded at random to a multiple of 5 (random rounding: 12 becomes 10 or 15, and is 12 on average), and those
rounded to less than 15 are withheld, zero included. What is shown is therefore of at least 11 patients, and a count is
known to within 4. Shares are quotients of rounded counts. Means are of winsorised values, and rounded so that a
patient changes them by at most a fifth of a step. Whether a number is shown depends on rounded counts only, so that
what is withheld says no more than a count does.

The rounding is drawn from a hash of the data: the same cohort has the same numbers in every report, which cannot be
averaged, and a cohort with one patient more has others, so that a difference between two reports does not show what
that patient has.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Matrix = NDArray[np.float64]

MIN_CELL_SIZE = 11
BASE = 5  # counts are multiples of it
DIGITS = 3  # significant digits
OLDEST = 90  # ages from this one up are one band
KEY_BLOCK = 2**16  # rows that are hashed at a time
QUANTILE_STEPS = 20  # of the grid that quantiles are on
# Words that go with an age in the name of a feature.
AGE_WORDS = (
    "at|index|group|band|range|category|class|years?|yrs?|old|between|from|over|above|greater|than|more|older|equal|"
    "to|or|is|in|the|of|first|last|visit|entry|baseline|diagnosis|enrolment|enrollment|least|under|less|below|up|and"
)
AGE_ITSELF = re.compile(rf"(?i)^(?:.*[^a-z])?ages?(?:[^a-z0-9]|(?:{AGE_WORDS})(?![a-z]))*$", re.S)


@dataclass(frozen=True)
class Suppressed:
    """An entry of the audit list: what is not shown, where, and why. It contains no count of patients.

    Examples
    --------
    >>> from phenotaste.disclosure import Gate
    >>> gate = Gate()
    >>> gate.note("overview", "cases")
    >>> gate.audit[0].where, gate.audit[0].reason
    ('overview', 'too few patients on one side: fewer than 15 after rounding')
    """

    where: str
    what: str
    reason: str


class Limits(tuple[float, float]):
    """The two values that smaller and larger ones are replaced by (winsorised); enough patients reach each of them."""

    def clip(self, values: Any) -> Matrix:
        return np.clip(np.asarray(values, np.float64), *self)

    @property
    def range(self) -> float:
        return self[1] - self[0]


@dataclass
class Gate:
    """Decide which numbers are shown, and round them; a `trusted` gate shows everything as it is.

    `key` identifies the data (`rounding_key`); `audit` lists what was suppressed. The name of a number, `what`, is part
    of the draw: the same count of the same patients must have the same name wherever it is shown.

    Examples
    --------
    >>> gate = Gate(key="a cohort")
    >>> gate.count("cases", 4), gate.count("cases", 41)
    (None, 40)
    >>> gate.share(gate.count("cases", 41), gate.count("patients", 103))
    0.4
    >>> Gate(trusted=True).count("cases", 4)
    4
    """

    min_cell_size: int = MIN_CELL_SIZE
    trusted: bool = False
    key: str = ""
    audit: list[Suppressed] = field(default_factory=list)

    def for_rows(self, rows_per_patient: int) -> "Gate":
        """The gate for counts of rows, of which a patient may have several; it has the same audit list.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> Gate().min_shown, Gate().for_rows(2).min_shown  # 22 rows are those of at least 11 patients
        (15, 30)
        """
        return replace(self, min_cell_size=self.min_cell_size * rows_per_patient)

    def keyed(self, key: str) -> "Gate":
        """The same rule for other data; the audit list is common.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.keyed("another cohort").audit is gate.audit
        True
        """
        return replace(self, key=key)

    @property
    def min_shown(self) -> int:
        """The smallest rounded count that is shown: it is of at least `min_cell_size` patients."""
        return 0 if self.trusted else BASE * -(-(self.min_cell_size + BASE - 1) // BASE)

    @property
    def min_difference(self) -> int:
        """The smallest difference of two rounded counts that is of at least `min_cell_size` patients."""
        return 0 if self.trusted else BASE * -(-(self.min_cell_size + 2 * (BASE - 1)) // BASE)

    @property
    def min_group_size(self) -> int:
        """The minimum number of patients for a mean or a point of a curve; never zero."""
        return 1 if self.trusted else self.min_cell_size

    @property
    def reason(self) -> str:
        """The reason given in the audit list for suppressed numbers."""
        return f"too few patients on one side: fewer than {self.min_shown} after rounding"

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

    def _step(self, what: str, value: float, exact: Any) -> int:
        """Round down or up at random, right on average; one draw for each name and exact value."""
        text = f"{self.key}|{what}|{exact!r}".encode()
        draw = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
        below = math.floor(value)
        return below + (draw < value - below)

    def rounded(self, what: str, count: int) -> int:
        """A count as a multiple of 5, before the decision whether it is shown.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> {Gate(key=f"cohort {i}").rounded("cases", 12) for i in range(20)} == {10, 15}
        True
        """
        return int(count) if self.trusted else BASE * self._step(what, int(count) / BASE, int(count))

    def count(self, what: str, count: int) -> int | None:
        """A rounded count, or None if it is too small to be shown.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate(key="a cohort")
        >>> gate.count("women", 10), gate.count("women", 0), gate.count("women", 960)
        (None, None, 960)
        """
        shown = self.rounded(what, count)
        return shown if shown >= self.min_shown else None

    def share(self, part: int | None, whole: int | None) -> float | None:
        """The quotient of two rounded counts; None unless the part and the rest are both large enough to be shown.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> Gate().share(30, 100), Gate().share(90, 100)  # the rest of 90 is 10
        (0.3, None)
        """
        if part is None or not whole or min(part, whole - part) < self.min_shown:
            return None
        return rounded(part / whole)

    def four_cells(
        self, part: int | None, size: int | None, total: int | None, everyone: int
    ) -> tuple[int, int, int, int] | None:
        """The rounded counts of a group with and without a fact, and of all others; None if one of them is too small.

        `part` of the `size` patients of the group have the fact, and `total` of all.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> Gate().four_cells(20, 50, 60, 200)
        (20, 30, 40, 110)
        >>> Gate().four_cells(50, 70, 60, 200) is None  # ten others have it
        True
        """
        if part is None or size is None or total is None:
            return None
        cells = part, size - part, total - part, everyone - size - (total - part)
        empty = min(cells[0] + cells[1], cells[2] + cells[3]) < 1
        return None if empty or min(cells) < self.min_shown else cells

    def limits(self, values: Any) -> Limits | None:
        """The limits of winsorised values; None if there are too few patients, or all but a few have one value.

        Examples
        --------
        >>> import numpy as np
        >>> from phenotaste.disclosure import Gate
        >>> Gate().limits(np.r_[1:40, 1e6])  # the largest ten count as the eleventh
        (11.0, 30.0)
        """
        values = np.asarray(values, np.float64)
        n = self.min_group_size
        if len(values) < 2 * n:
            return None
        ordered = np.partition(values, (n - 1, len(values) - n))
        low, high = float(ordered[n - 1]), float(ordered[len(values) - n])
        return Limits((low, high)) if low < high else None

    def mean(self, what: str, value: float, limits: Limits | None, size: int | None) -> float | None:
        """A mean of winsorised values over a group whose rounded size is shown, a multiple of a round step.

        A patient moves the mean by at most a fifth of the step, as a patient moves a count of multiples of 5.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate, Limits
        >>> Gate(key="a cohort").mean("age", 61.234, Limits((40.0, 90.0)), size=500)
        61.0
        >>> Gate().mean("age", 61.234, Limits((40.0, 90.0)), size=None) is None
        True
        """
        if size is None or not math.isfinite(value):
            return None
        if self.trusted:
            return rounded(value)
        if limits is None:
            return None
        step = round_step(BASE * limits.range / size)
        return rounded(step * self._step(what, value / step, float(f"{value:.9g}")), 6)

    def total(self, what: str, values: Any) -> int | None:
        """The sum of winsorised values, rounded like a count in units of the largest; None if there are too few.

        Examples
        --------
        >>> import numpy as np
        >>> from phenotaste.disclosure import Gate
        >>> Gate(key="a cohort").total("visits", np.arange(1, 101))  # exactly 5,050
        5000
        """
        values = np.asarray(values, np.float64)
        if self.trusted:
            return int(values.sum())
        limits = self.limits(values)
        if limits is None:
            return None
        step, exact = round_step(BASE * limits[1]), float(limits.clip(values).sum())
        return int(step * self._step(what, exact / step, exact))

    def quantiles(
        self, what: str, values: Any, probabilities: Sequence[float] = (0.25, 0.5, 0.75)
    ) -> list[float] | None:
        """Quantiles on a grid of round values, from the rounded counts of patients up to each of them.

        Examples
        --------
        >>> import numpy as np
        >>> from phenotaste.disclosure import Gate
        >>> Gate(key="a cohort").quantiles("visits", np.arange(1, 201))
        [50.0, 100.0, 150.0]
        >>> Gate().quantiles("visits", np.arange(10)) is None
        True
        """
        values = np.asarray(values, np.float64)
        if self.trusted and len(values):
            return [rounded(float(q)) or 0.0 for q in np.quantile(values, probabilities)]
        limits = self.limits(values)
        if limits is None:
            return None
        step = round_step(limits.range / QUANTILE_STEPS)
        grid = step * np.arange(math.floor(limits[0] / step), math.ceil(limits[1] / step) + 1)
        below = np.searchsorted(np.sort(values), grid * (1 + 1e-9), side="right").tolist()
        counts = np.array([self.rounded(what, n) for n in below])
        size = self.rounded(what, len(values))
        found = [grid[min(int(np.argmax(counts >= q * size)), len(grid) - 1)] for q in probabilities]
        return [rounded(float(value), 6) or 0.0 for value in found]

    def curve(self, curves: Matrix, size: int) -> list[float]:
        """The mean of patients' curves (patients × points), winsorised, in steps of about one patient in `size`.

        Examples
        --------
        >>> import numpy as np
        >>> from phenotaste.disclosure import Gate
        >>> one = np.r_[np.ones((19, 2)), [[1, 500]]]  # the last patient does not dominate
        >>> Gate().curve(one, size=20)
        [1.0, 1.0]
        """
        if self.trusted:
            return rounded_all(curves.mean(axis=0))
        top = np.sort(curves.max(axis=1))[-min(self.min_group_size, len(curves))]
        return in_steps(np.minimum(curves, top).mean(axis=0), float(top), size)

    def parts(self, where: str, what: str, counts: Sequence[int] | Counts) -> list[int | None]:
        """Which of several parts of a total may be named: small ones may not and, while those not named are small
        together, the next larger one may not either. The counts themselves are not shown.

        Examples
        --------
        >>> from phenotaste.disclosure import Gate
        >>> gate = Gate()
        >>> gate.parts("columns", "levels", [4, 100, 30])
        [None, 100, None]
        """
        sizes = np.asarray(counts, np.int64)

        def small(n: Any) -> Any:
            return (n > 0) & (n < (0 if self.trusted else self.min_cell_size))

        hidden = small(sizes)
        while hidden.any() and small(sizes[hidden].sum()):
            others = np.flatnonzero(~hidden & (sizes > 0))
            if not len(others):
                hidden[:] = True  # the total itself is too small
                break
            hidden[others[sizes[others].argmin()]] = True
        if hidden.any():
            self.note(where, what)
        return [None if hide else int(n) for hide, n in zip(hidden, sizes, strict=True)]


def rounding_key(*parts: Any) -> str:
    """A hash of arrays of the data, from which a gate draws its rounding; None stands for an absent part.

    Examples
    --------
    >>> import numpy as np
    >>> from phenotaste.disclosure import rounding_key
    >>> rounding_key(np.arange(3), None) == rounding_key(np.arange(3)), len(rounding_key(np.arange(3)))
    (False, 64)
    """
    digest = hashlib.sha256()
    for part in parts:
        array = np.zeros(0) if part is None else np.asarray(part)
        digest.update(f"{array.dtype} {array.shape} {part is None} ".encode())
        for first in range(0, len(array), KEY_BLOCK):
            digest.update(np.ascontiguousarray(array[first : first + KEY_BLOCK]).tobytes())
    return digest.hexdigest()


def round_step(size: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `size`.

    Examples
    --------
    >>> round_step(0.3), round_step(5.0), round_step(5.1)
    (0.5, 5.0, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(size))
    return next(float(f"{m * power:.1g}") for m in (1, 2, 5, 10) if m * power >= size * (1 - 1e-12))


def in_steps(values: Matrix, top: float, size: int) -> list[float]:
    """Points of a curve of height `top` over `size` patients, in steps that one patient may move them by."""
    if not top > 0:
        return [0.0] * len(values)
    step = round_step(top / size)
    return rounded_all(step * np.rint(values / step), 6)


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


def is_age(name: str) -> bool:
    """Whether a numeric column of this name holds ages."""
    return AGE_ITSELF.match(name) is not None
