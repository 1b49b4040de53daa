"""Static features, one-hot encoded as "column=level", as known at the end of the observation window."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build.normalise import Normalised
from phenotaste.build.settings import Static
from phenotaste.build.windows import known_by_end
from phenotaste.errors import InputError
from phenotaste.sources.records import ALCOHOL, BMI, SMOKING
from phenotaste.sources.typed_tables import listed_names

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table

AGE = "age"
MISSING, YES, NO = "missing", "yes", "no"
MAX_LEVELS = 100  # more is an identifier, a measurement or free text
BMI_LEVELS = (
    "underweight (<18.5)",
    "normal (18.5-25)",
    "overweight (25-30)",
    "moderately obese (30-35)",
    "severely obese (>35)",
)
BMI_BOUNDS = (18.5, 25.0, 30.0, np.nextafter(35.0, 36.0))  # 35 itself is moderate
PLAUSIBLE_BMI = (5.0, 200.0)
UNKNOWN = ("unknown", "not asked", "never assessed", "declined", "refused", "not recorded", "not on file")
NO_WORDS = ("", "no", "none", "n", "0", "0.0", "false", "never")
YES_WORDS = (
    "yes",
    "y",
    "1",
    "1.0",
    "true",
    "current",
    "daily",
    "some days",
    "every day",
    "occasional",
    "social",
)


FEW_NUMBERS = 10  # different numbers up to here are codes of categories, as for sex 1 and 2
QUANTILES = (0.25, 0.5, 0.75)  # bounds of the bands of a numeric column
PLACEHOLDERS = (-1.0, -9.0, -99.0, -999.0, -9999.0)  # for missing values, where no other number is negative
DIGITS = 4  # of the bounds of bands: their names state them exactly
BAND = re.compile(r"<(\S+)|(\S+) to (\S+)|(\S+)\+")


class Numbers(NamedTuple):
    """Bounds of the bands of numeric columns: stated by the user or a model, or else learnt on these patients."""

    stated: Mapping[str, tuple[float, ...]]
    learning: np.ndarray  # mask of the kept patients
    learnt: dict[str, tuple[float, ...]]  # the bounds that were learnt, by column
    fixed: bool = False  # whether the columns are a model's: bounds are not learnt then

    def bounds(self, name: str, values: np.ndarray) -> tuple[float, ...] | None:
        """The lower bounds of all bands but the first; None where the column is one of categories."""
        if name in self.stated:
            return self.stated[name]
        known = values[self.learning & ~np.isnan(values)]
        different = np.unique(known)
        identifier = len(different) == len(known) > MAX_LEVELS and (different % 1 == 0).all()
        if self.fixed or identifier or len(different) <= FEW_NUMBERS:
            return None
        self.learnt[name] = tuple(
            np.unique([float(f"{bound:.{DIGITS}g}") for bound in np.quantile(known, QUANTILES)])
        )
        return self.learnt[name]


def model_bounds(model_names: Sequence[str] | None) -> dict[str, tuple[float, ...]]:
    """The bounds of the bands in the names of a model's static columns.

    >>> model_bounds(["weight=<60", "weight=60 to 75.5", "weight=75.5+", "sex=female"])
    {'weight': (60.0, 75.5)}
    """
    bounds: dict[str, set[float]] = {}
    for column in model_names or ():
        name, _, level = column.partition("=")
        if name != AGE and (match := BAND.fullmatch(level)):
            numbers = [_number(text) for text in match.groups() if text is not None]
            if not any(map(math.isnan, numbers)):
                bounds.setdefault(name, set()).update(numbers)
    return {name: tuple(sorted(numbers)) for name, numbers in bounds.items()}


class Column(NamedTuple):
    """The level of each patient as a position in `levels`; -1 where unknown."""

    levels: list[str]
    codes: np.ndarray

    def used_levels(self) -> "Column":
        """Keep the levels that occur, and add one for missing values where there are any."""
        counts = np.bincount(self.codes + 1, minlength=len(self.levels) + 1)
        levels = [level for level, count in zip(self.levels, counts[1:], strict=True) if count]
        position = np.concatenate([[len(levels)], np.cumsum(counts[1:] > 0) - 1])
        return Column(levels + [MISSING] * bool(counts[0] and levels), position[self.codes + 1])


def static_features(
    tables: Normalised,
    kept: np.ndarray,
    age_at: np.ndarray,
    anchors: "Table | None",
    settings: Static,
    numbers: Numbers | None = None,
    persons: np.ndarray | None = None,
) -> tuple[np.ndarray | None, list[str], list[str]]:
    """The matrix of the kept rows, its column names, and notes on omitted columns.

    `kept` are sorted row numbers of `anchors`, or patient numbers without anchors, and `persons` their patients.
    `age_at` is the day at which the age of each is taken; the bounds that numeric columns get are kept in `numbers`.
    """
    numbers = numbers or Numbers({}, np.ones(len(kept), bool), {})
    people = tables.people.order_by("patient").drop("patient", "id", "death").to_pyarrow()
    people = people.take(kept if persons is None else persons)
    columns = _columns(people, _latest(tables.facts, anchors, kept), age_at, settings, numbers)
    notes, blocks, names = [], [], []
    for name in _requested(settings.columns, columns):
        column = columns[name]().used_levels()
        if len(column.levels) > MAX_LEVELS:
            sentence = f"static column {name} has {len(column.levels):,} different values"
            if settings.columns is not None:
                raise InputError(f"{sentence}; group them, or remove the column from static.columns.")
            notes.append(f"{sentence} and is omitted; group them to use it.")
        elif column.levels:
            shown = [place for place, level in enumerate(column.levels) if not _implied(name, level, column)]
            blocks.append(np.eye(len(column.levels))[column.codes][:, shown])
            names += [f"{name}={column.levels[place]}" for place in shown]
    notes += [
        f"Static column {name} is in bands by its quartiles in this cohort: {', '.join(f'{b:g}' for b in bounds)}."
        for name, bounds in numbers.learnt.items()
    ]
    return (np.hstack(blocks) if blocks else None), names, notes


def to_model_columns(
    matrix: np.ndarray | None, names: Sequence[str], model_names: Sequence[str], n_patients: int
) -> tuple[np.ndarray, list[str]]:
    """The columns of a model in its order; unknown columns are dropped, absent ones are zero."""
    result = np.zeros((n_patients, len(model_names)))
    position = {name: number for number, name in enumerate(names)}
    for number, name in enumerate(model_names):
        if name in position and matrix is not None:
            result[:, number] = matrix[:, position[name]]
    unknown = sorted(set(names) - set(model_names))
    notes = []
    if unknown:
        notes.append(
            f"{len(unknown):,} static features are unknown to the model and omitted: {listed_names(unknown)}."
        )
    return result, notes


def _implied(name: str, level: str, column: Column) -> bool:
    """Whether this is the "no" of a binary column, which is redundant with its "yes"."""
    return level == NO and name not in (SMOKING, ALCOHOL) and set(column.levels) <= {NO, YES, MISSING}


def _columns(
    people: "pa.Table",
    facts: dict[str, tuple[np.ndarray, "pa.Table"]],
    age_at: np.ndarray,
    settings: Static,
    numbers: Numbers,
) -> dict[str, Callable[[], Column]]:
    """A function for each available column; only requested columns are computed."""
    columns: dict[str, Callable[[], Column]] = {}
    for name in people.column_names:
        if name == "birth":
            columns[AGE] = partial(_ages, people["birth"], age_at, settings.age_bands)
        elif name == AGE:  # stated in years; where it is not, from the date of birth
            columns[name] = partial(_stated_ages, people[name], settings.age_bands, columns.get(AGE))
        else:
            columns[name] = partial(_text_column, name, people[name], numbers)
    for name, (rows, values) in sorted(facts.items()):
        if name == BMI and not settings.bmi_bands:
            continue
        earlier = columns.get(name)  # a fact takes precedence over the persons table
        columns[name] = partial(_fact_column, name, rows, values, len(people), earlier, numbers)
    return columns


def _requested(asked: Sequence[str] | None, columns: dict[str, Callable[[], Column]]) -> list[str]:
    for name in asked or ():
        if name not in columns:
            raise InputError(
                f"static.columns includes {name}, which no patient of the cohort has; there are {', '.join(columns)}."
            )
    return list(columns) if asked is None else list(asked)


def _text_column(name: str, column: "pa.ChunkedArray", numbers: Numbers) -> Column:
    texts = column.combine_chunks().dictionary_encode()
    levels = [_level(name, text) for text in texts.dictionary.to_pylist()]
    codes = texts.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    values = _values(levels)
    if values is not None:
        each = values[codes]
        bounds = numbers.bounds(name, each)
        if bounds is not None:
            return _banded(each, bounds)
    return _merged(levels, codes)


def _values(levels: Sequence[str | None]) -> np.ndarray | None:
    """The levels as numbers, missing ones and a last one for unknown as NaN; None where a level is not a number."""
    known = [_number(level) for level in levels if level is not None]
    if not known or any(map(math.isnan, known)):
        return None
    values = np.array([math.nan if level is None else _number(level) for level in levels] + [math.nan])
    negative = set(values[values < 0].tolist())
    if len(negative) == 1 and negative <= set(PLACEHOLDERS):
        values[values < 0] = math.nan
    return values


def _number(text: str) -> float:
    """A finite number, NaN for any other text."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _banded(values: np.ndarray, bounds: Sequence[float]) -> Column:
    """Bands from each bound up to, but excluding, the next."""
    inner = [f"{low:.15g} to {high:.15g}" for low, high in pairwise(bounds)]
    levels = [f"<{bounds[0]:.15g}", *inner, f"{bounds[-1]:.15g}+"]
    known = ~np.isnan(values)
    return Column(levels, np.where(known, np.digitize(np.where(known, values, 0), bounds), -1))


def _stated_ages(
    column: "pa.ChunkedArray", lower_ends: Sequence[int], from_birth: Callable[[], Column] | None
) -> Column:
    """Age bands from ages in years; where none is stated, those from the date of birth."""
    texts = column.combine_chunks().dictionary_encode()
    values = np.array([_number(text or "") for text in texts.dictionary.to_pylist()] + [math.nan])
    years = values[texts.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    known = years >= 0
    codes = np.where(known, np.digitize(np.where(known, years, 0), lower_ends), -1)
    if from_birth is not None:
        codes = np.where(known, codes, from_birth().codes)
    return Column(_age_levels(lower_ends), codes)


def _age_levels(lower_ends: Sequence[int]) -> list[str]:
    inner = [f"{low}-{high - 1}" for low, high in pairwise(lower_ends)]
    return [f"<{lower_ends[0]}", *inner, f"{lower_ends[-1]}+"]


def _fact_column(
    name: str,
    rows: np.ndarray,
    values: "pa.Table",
    n_patients: int,
    earlier: Callable[[], Column] | None,
    numbers: Numbers,
) -> Column:
    """The column of a fact; `rows` are the patients with a value, and `earlier` fills the others."""
    of_rows = numbers._replace(learning=numbers.learning[rows])
    column = _bmi(values) if name == BMI else _text_column(name, values["text"], of_rows)
    codes = np.full(n_patients, -1)
    codes[rows] = column.codes
    if earlier is None:
        return Column(column.levels, codes)
    before = earlier()
    both = [*column.levels, *before.levels]
    return _merged(
        both, np.where(codes >= 0, codes, np.where(before.codes >= 0, before.codes + len(column.levels), -1))
    )


def _level(name: str, text: str | None) -> str | None:
    """The level of a value, None where it is uninformative."""
    text = " ".join((text or "").split())
    if name == SMOKING:
        return smoking_level(text)
    if name == ALCOHOL:
        return alcohol_level(text)
    return text or None


def _merged(levels: Sequence[str | None], codes: np.ndarray) -> Column:
    """Merge values of the same level, and sort the levels."""
    distinct = sorted({level for level in levels if level is not None})
    rank = {level: number for number, level in enumerate(distinct)}
    position = np.array([-1 if level is None else rank[level] for level in levels] + [-1], np.int64)
    return Column(distinct, position[codes])


def _bmi(values: "pa.Table") -> Column:
    numbers = values["number"].to_numpy().astype(float)
    low, high = PLAUSIBLE_BMI
    with np.errstate(invalid="ignore"):
        plausible = (numbers > low) & (numbers < high)
    return Column(list(BMI_LEVELS), np.where(plausible, np.digitize(numbers, BMI_BOUNDS), -1))


def _ages(birth: "pa.ChunkedArray", at: np.ndarray, lower_ends: Sequence[int]) -> Column:
    """Age bands, in completed years."""
    born = birth.to_numpy().astype("datetime64[D]")
    born_month, month = born.astype("datetime64[M]"), at.astype("datetime64[M]")
    early = (at - month).astype(np.int64) < (born - born_month).astype(np.int64)  # day of the month
    months = (month - born_month).astype(np.int64) - early
    known = ~np.isnat(born) & ~np.isnat(at) & (np.where(np.isnat(born) | np.isnat(at), -1, months) >= 0)
    years = np.where(known, months, 0) // 12
    codes = np.where(known, np.digitize(years, lower_ends), -1)
    return Column(_age_levels(lower_ends), codes)


def _latest(
    facts: "Table | None", anchors: "Table | None", kept: np.ndarray
) -> dict[str, tuple[np.ndarray, "pa.Table"]]:
    """For each fact, the positions among the kept patients, in order, and the last values before the window ends."""
    import ibis
    import pyarrow.compute as pc

    if facts is None:
        return {}
    known = facts if anchors is None else known_by_end(facts, anchors)
    known = known.mutate(
        number=known.number.coalesce(known.value.try_cast("float64")),
        text=known.value.coalesce(known.number.cast("string")),
    )
    known = known.filter(known.text.notnull(), known.name.notnull())
    last_first = [known.time.desc(nulls_first=False), known.number.desc(nulls_first=False), known.text.desc()]
    rank = ibis.row_number().over(group_by=[known.patient, known.name], order_by=last_first)
    last = known.mutate(rank=rank)
    table = last.filter(last.rank == 0).select("patient", "name", "number", "text").order_by("patient")
    table = table.to_pyarrow()
    positions = np.full(int(kept.max(initial=-1)) + 2, -1)
    positions[kept] = np.arange(len(kept))
    rows = positions[np.minimum(table["patient"].to_numpy(), len(positions) - 1)]
    latest = {}
    for name in pc.unique(table["name"]).to_pylist():
        mask = (rows >= 0) & pc.equal(table["name"], name).to_numpy()
        latest[name] = (rows[mask], table.filter(mask))
    return latest


def last_fact_times(
    tables: Normalised, kept: np.ndarray, anchors: "Table | None", settings: Static
) -> np.ndarray:
    """The time of the last dated fact of each kept row among the columns used; NaT where there is none."""
    times = np.full(int(kept.max(initial=-1)) + 1, "NaT", "datetime64[us]")
    if tables.facts is None:
        return times[kept]
    known = tables.facts if anchors is None else known_by_end(tables.facts, anchors)
    if settings.columns is not None:
        known = known.filter(known.name.isin(settings.columns))
    last = known.filter(known.time.notnull()).group_by("patient").aggregate(time=lambda t: t.time.max())
    rows = last.filter(last.patient < len(times)).to_pyarrow()
    times[rows["patient"].to_numpy()] = rows["time"].to_numpy().astype("datetime64[us]")
    return times[kept]


def smoking_level(text: str) -> str | None:
    """Classify a smoking status as "no", "quit" or "yes"; None where it is unknown.

    >>> [smoking_level(text) for text in ("Never smoker", "Ex-smoker", "Current every day smoker", "unknown")]
    ['no', 'quit', 'yes', None]
    """
    text = text.lower()
    if not text or any(word in text for word in UNKNOWN):
        return None
    if text in ("ex", "past") or any(
        word in text
        for word in ("former", "quit", "ex-", "ex ", "stopped", "previous", "gave up", "past smok")
    ):
        return "quit"
    if text in NO_WORDS or any(
        word in text
        for word in ("never", "non-smok", "nonsmok", "non smok", "does not", "not a ", "no tobacco")
    ):
        return "no"
    if text in YES_WORDS or any(
        word in text for word in ("smok", "tobacco", "cigar", "current", "every day", "some day", "nicotine")
    ):
        return "yes"
    return None


def alcohol_level(text: str) -> str | None:
    """Classify alcohol use as "no" or "yes"; None where it is unknown.

    >>> [alcohol_level(text) for text in ("Non-drinker", "Social drinker", "former drinker", "not asked")]
    ['no', 'yes', 'no', None]
    """
    text = text.lower()
    if not text or any(word in text for word in UNKNOWN):
        return None
    no = (
        "never",
        "non-drink",
        "nondrink",
        "non drink",
        "does not",
        "abst",
        "teetotal",
        "former",
        "ex-",
        "quit",
    )
    if text in NO_WORDS or any(word in text for word in (*no, "stopped", "no alcohol", "denies")):
        return "no"
    if text in YES_WORDS or any(
        word in text for word in ("drink", "alcohol", "current", "social", "occasion")
    ):
        return "yes"
    return None
