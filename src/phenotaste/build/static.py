"""Static features, one-hot "column=level": what is known of a patient when the observation window ends."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build.habits import alcohol, smoking
from phenotaste.build.normalise import Compact
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
BMI_BOUNDS = (18.5, 25.0, 30.0, np.nextafter(35.0, 36.0))  # 35 itself is still moderate
PLAUSIBLE_BMI = (5.0, 200.0)


class Column(NamedTuple):
    """The level of each patient, as a position in `levels`; -1 where it is not known."""

    levels: list[str]
    codes: np.ndarray

    def used(self) -> "Column":
        """Only levels that somebody has, with one for what is missing where somebody lacks the value."""
        counts = np.bincount(self.codes + 1, minlength=len(self.levels) + 1)
        levels = [level for level, count in zip(self.levels, counts[1:], strict=True) if count]
        place = np.concatenate([[len(levels)], np.cumsum(counts[1:] > 0) - 1])
        return Column(levels + [MISSING] * bool(counts[0] and levels), place[self.codes + 1])


def static_features(
    compact: Compact, kept: np.ndarray, age_at: np.ndarray, anchors: "Table | None", settings: Static
) -> tuple[np.ndarray | None, list[str], list[str]]:
    """The matrix of the kept patients (positions in order), its names, and notes on what was left out.

    `age_at` is the day that each one's age is taken at.
    """
    columns = _columns(compact, kept, age_at, anchors, settings)
    notes, blocks, names = [], [], []
    for name in _wanted(settings.columns, columns):
        column = columns[name]().used()
        if len(column.levels) > MAX_LEVELS:
            sentence = f"static column {name} has {len(column.levels):,} different values"
            if settings.columns is not None:
                raise InputError(f"{sentence}; group them or leave the column out of static.columns.")
            notes.append(f"{sentence} and is left out; group them to use it.")
        elif column.levels:
            shown = [place for place, level in enumerate(column.levels) if not _implied(name, level, column)]
            blocks.append(np.eye(len(column.levels))[column.codes][:, shown])
            names += [f"{name}={column.levels[place]}" for place in shown]
    return (np.hstack(blocks) if blocks else None), names, notes


def like_model(
    matrix: np.ndarray | None, names: Sequence[str], known: Sequence[str], n_patients: int
) -> tuple[np.ndarray, list[str]]:
    """The model's columns in its order; what it does not know is left out, what the data lack is zero."""
    result = np.zeros((n_patients, len(known)))
    place = {name: number for number, name in enumerate(names)}
    for number, name in enumerate(known):
        if name in place and matrix is not None:
            result[:, number] = matrix[:, place[name]]
    unknown = sorted(set(names) - set(known))
    notes = []
    if unknown:
        notes.append(f"{len(unknown):,} static features are unknown to the model: {', '.join(unknown[:10])}.")
    return result, notes


def _implied(name: str, level: str, column: Column) -> bool:
    """Whether this is the "no" of a yes-or-no question: it says nothing that the "yes" does not."""
    return level == NO and name not in (SMOKING, ALCOHOL) and set(column.levels) <= {NO, YES, MISSING}


def _columns(
    compact: Compact, kept: np.ndarray, age_at: np.ndarray, anchors: "Table | None", settings: Static
) -> dict[str, Callable[[], Column]]:
    """How to get each column that there is; only those asked for are computed."""
    people = compact.people.order_by("patient").drop("patient", "id", "death").to_pyarrow().take(kept)
    facts = _latest(compact.facts, anchors, kept)
    columns: dict[str, Callable[[], Column]] = {}
    for name in people.column_names:
        if name == "birth":
            columns[AGE] = partial(_ages, people["birth"], age_at, settings.age_bands)
        else:
            columns[name] = partial(_of_text, name, people[name])
    for name, (rows, values) in sorted(facts.items()):
        if name == BMI and not settings.bmi_bands:
            continue
        earlier = columns.get(name)  # a fact is newer than what the persons table says
        columns[name] = partial(_of_facts, name, rows, values, len(kept), earlier)
    return columns


def _wanted(asked: Sequence[str] | None, columns: dict[str, Callable[[], Column]]) -> list[str]:
    for name in asked or ():
        if name not in columns:
            raise InputError(
                f"static.columns names {name}, which the source lacks; it has {', '.join(columns)}."
            )
    return list(columns) if asked is None else list(asked)


def _of_text(name: str, column: "pa.ChunkedArray") -> Column:
    texts = column.combine_chunks().dictionary_encode()
    levels = [_level(name, text) for text in texts.dictionary.to_pylist()]
    return _merged(levels, texts.indices.fill_null(-1).to_numpy(zero_copy_only=False))


def _of_facts(
    name: str, rows: np.ndarray, values: "pa.Table", n_patients: int, earlier: Callable[[], Column] | None
) -> Column:
    """The column of a fact; `rows` are the patients that have one, and what was known earlier fills the rest."""
    column = _bmi(values) if name == BMI else _of_text(name, values["text"])
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
    """The level that a value stands for, None for one that says nothing."""
    text = " ".join((text or "").split())
    if name == SMOKING:
        return smoking(text)
    if name == ALCOHOL:
        return alcohol(text)
    return text or None


def _merged(levels: Sequence[str | None], codes: np.ndarray) -> Column:
    """Values that stand for one level brought together, levels sorted."""
    distinct = sorted({level for level in levels if level is not None})
    rank = {level: number for number, level in enumerate(distinct)}
    place = np.array([-1 if level is None else rank[level] for level in levels] + [-1], np.int64)
    return Column(distinct, place[codes])


def _bmi(values: "pa.Table") -> Column:
    numbers = values["number"].to_numpy().astype(float)
    low, high = PLAUSIBLE_BMI
    with np.errstate(invalid="ignore"):
        sound = (numbers > low) & (numbers < high)
    return Column(list(BMI_LEVELS), np.where(sound, np.digitize(numbers, BMI_BOUNDS), -1))


def _ages(birth: "pa.ChunkedArray", at: np.ndarray, lower_ends: Sequence[int]) -> Column:
    """Bands of the age in completed years."""
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
    """For each name the rows of kept patients, in order, and their last values known before the window ends."""
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
    places = np.full(int(kept.max(initial=-1)) + 2, -1)
    places[kept] = np.arange(len(kept))
    rows = places[np.minimum(table["patient"].to_numpy(), len(places) - 1)]
    found = {}
    for name in pc.unique(table["name"]).to_pylist():
        mask = (rows >= 0) & pc.equal(table["name"], name).to_numpy()
        found[name] = (rows[mask], table.filter(mask))
    return found
