"""Static features, one-hot encoded as "column=level", as known at the end of the observation window."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build.normalise import Normalised
from phenotaste.build.settings import Static
from phenotaste.build.windows import known_by_end
from phenotaste.errors import InputError
from phenotaste.sources.records import ALCOHOL, BMI, SMOKING

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
    tables: Normalised, kept: np.ndarray, age_at: np.ndarray, anchors: "Table | None", settings: Static
) -> tuple[np.ndarray | None, list[str], list[str]]:
    """The matrix of the kept patients (sorted patient numbers), its column names, and notes on omitted columns.

    `age_at` is the day at which the age of each is taken.
    """
    columns = _columns(tables, kept, age_at, anchors, settings)
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
            f"{len(unknown):,} static features are unknown to the model and omitted: {', '.join(unknown[:10])}."
        )
    return result, notes


def _implied(name: str, level: str, column: Column) -> bool:
    """Whether this is the "no" of a binary column, which is redundant with its "yes"."""
    return level == NO and name not in (SMOKING, ALCOHOL) and set(column.levels) <= {NO, YES, MISSING}


def _columns(
    tables: Normalised, kept: np.ndarray, age_at: np.ndarray, anchors: "Table | None", settings: Static
) -> dict[str, Callable[[], Column]]:
    """A function for each available column; only requested columns are computed."""
    people = tables.people.order_by("patient").drop("patient", "id", "death").to_pyarrow().take(kept)
    facts = _latest(tables.facts, anchors, kept)
    columns: dict[str, Callable[[], Column]] = {}
    for name in people.column_names:
        if name == "birth":
            columns[AGE] = partial(_ages, people["birth"], age_at, settings.age_bands)
        else:
            columns[name] = partial(_text_column, name, people[name])
    for name, (rows, values) in sorted(facts.items()):
        if name == BMI and not settings.bmi_bands:
            continue
        earlier = columns.get(name)  # a fact takes precedence over the persons table
        columns[name] = partial(_fact_column, name, rows, values, len(kept), earlier)
    return columns


def _requested(asked: Sequence[str] | None, columns: dict[str, Callable[[], Column]]) -> list[str]:
    for name in asked or ():
        if name not in columns:
            raise InputError(
                f"static.columns includes {name}, which the source lacks; it has {', '.join(columns)}."
            )
    return list(columns) if asked is None else list(asked)


def _text_column(name: str, column: "pa.ChunkedArray") -> Column:
    texts = column.combine_chunks().dictionary_encode()
    levels = [_level(name, text) for text in texts.dictionary.to_pylist()]
    return _merged(levels, texts.indices.fill_null(-1).to_numpy(zero_copy_only=False))


def _fact_column(
    name: str, rows: np.ndarray, values: "pa.Table", n_patients: int, earlier: Callable[[], Column] | None
) -> Column:
    """The column of a fact; `rows` are the patients with a value, and `earlier` fills the others."""
    column = _bmi(values) if name == BMI else _text_column(name, values["text"])
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
    inner = [f"{low}-{high - 1}" for low, high in pairwise(lower_ends)]
    return Column([f"<{lower_ends[0]}", *inner, f"{lower_ends[-1]}+"], codes)


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
