"""Measurements as events: each result is rated low, normal or high, and "code level" becomes its code.

A result is rated by the first of these that applies: its own reference range, its own flag, the user's table of ranges,
quantiles of the cohort. The quantiles are stored with the cohort and its model, and are never learnt on new patients.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.build.groupers import clean_cell, code_keys, read_rows, vocabulary_key
from phenotaste.build.settings import Measurements
from phenotaste.disclosure import MIN_CELL_SIZE
from phenotaste.errors import InputError
from phenotaste.sources.records import EVENTS, MEASUREMENT, MEASUREMENTS, NAMES, Records, conform, union
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table, Value

LOW, NORMAL, HIGH, ABNORMAL, MEASURED = "low", "normal", "high", "abnormal", "measured"
UNRATED, IMPLAUSIBLE = "unrated", "implausible"  # never features
LEVELS = (LOW, NORMAL, HIGH, ABNORMAL, MEASURED, UNRATED, IMPLAUSIBLE)
# The levels that become features, by the setting.
FEATURE_LEVELS = {
    "abnormal": (LOW, HIGH, ABNORMAL),
    "all": (LOW, NORMAL, HIGH, ABNORMAL),
    "counts": (MEASURED,),
}
# HL7 interpretation codes and the words of common exports, in upper case.
FLAGS = {
    **dict.fromkeys(("L", "LL", "LU", "LOW", "CRITICAL LOW", "LOW CRITICAL", "LOW PANIC", "BELOW LOW NORMAL"), LOW),
    **dict.fromkeys(("H", "HH", "HU", "HIGH", "CRITICAL HIGH", "HIGH CRITICAL", "HIGH PANIC"), HIGH),
    "ABOVE HIGH NORMAL": HIGH,
    **dict.fromkeys(("N", "NORMAL", "WITHIN RANGE"), NORMAL),
    **dict.fromkeys(("A", "AA", "ABN", "ABNORMAL", "CRITICAL ABNORMAL", "*"), ABNORMAL),
}  # fmt: skip
# Numbers that laboratory systems write in place of a result.
PLACEHOLDERS = (999999.0, 9999999.0, 99999999.0, -999999.0, -9999.0)
# How a result was rated, in quality.json.
BY_RANGE, BY_FLAG, BY_TABLE, BY_QUANTILE = "own_range", "own_flag", "ranges_table", "quantiles"
UNIT_MISMATCH, NO_RANGE, NO_VALUE = "unit_mismatch", "without_range", "without_value"
COUNTED = (BY_RANGE, BY_FLAG, BY_TABLE, BY_QUANTILE, UNIT_MISMATCH, NO_RANGE, NO_VALUE, IMPLAUSIBLE)
RANGE_COLUMNS = ("low", "high", "implausible_below", "implausible_above")


class Threshold(NamedTuple):
    """Quantiles of the results of one code, learnt on the patients of a cohort."""

    vocabulary: str
    code: str
    unit: str | None  # the most frequent one; results in another are not rated
    low: float
    high: float
    values: int
    patients: int


class Limits(NamedTuple):
    """The ranges of one code that are not its rows' own; those of the table are the user's."""

    listed: bool = False  # in the user's table: then never rated by quantiles
    table_low: float | None = None
    table_high: float | None = None
    table_unit: str | None = None
    below: float | None = None
    above: float | None = None
    learnt_low: float | None = None
    learnt_high: float | None = None
    learnt_unit: str | None = None


LIMIT_TYPES = {name: "text" if name.endswith("unit") else "number" for name in Limits._fields[1:]}


def rows(records: Records) -> "Table":
    """The measurements of a source, those that it lists among its events included."""
    import ibis

    events = records.events
    listed = conform(events.filter(events.kind == MEASUREMENT), MEASUREMENTS)
    own = [] if records.measurements is None else [conform(records.measurements, MEASUREMENTS)]
    found = union([*own, listed])
    value = found.value.cast("float64")
    unit = found.unit.lower().re_replace(r"\s+", "").replace("µ", "u").replace("μ", "u").nullif("")
    return found.mutate(
        vocabulary=found.vocabulary.fill_null(""),
        value=(value.isnan() | value.isinf()).ifelse(ibis.null("float64"), value),
        unit=unit,
    )


class Rater:
    """Rates the measurements of a source by the ranges available."""

    def __init__(
        self,
        workspace: Workspace,
        records: Records,
        settings: Measurements,
        thresholds: Iterable[Threshold] = (),
    ) -> None:
        self.workspace, self.records, self.settings = workspace, records, settings
        self.rows = workspace.materialise(rows(records), "measurements")
        codes = self.rows.filter(self.rows.code.notnull()).select("vocabulary", "code").distinct()
        self.codes: list[tuple[str, str]] = sorted(
            (row["vocabulary"], row["code"]) for row in codes.to_pyarrow().to_pylist()
        )
        self.ranges = None if settings.ranges is None else RangeTable.read(settings.ranges)
        self.thresholds = tuple(thresholds)
        self._rated: tuple[tuple[Threshold, ...], Table] | None = None

    def rated(self) -> "Table":
        """The rows with their level and how it was found; computed again only for other thresholds."""
        if self._rated is None or self._rated[0] != self.thresholds:
            self._rated = self.thresholds, self._rate()
        return self._rated[1]

    def _rate(self) -> "Table":
        joined = _with_limits(self.workspace, self.rows, self._limits())
        how = _how(joined)
        joined = joined.mutate(how=how)
        level = _level(joined)
        if self.settings.level == "counts":
            level = (joined.how == IMPLAUSIBLE).ifelse(IMPLAUSIBLE, MEASURED)
        return self.workspace.materialise(
            joined.mutate(level=level).select(*MEASUREMENTS, "how", "level"), "rated measurements"
        )

    def _limits(self) -> dict[tuple[str, str], Limits]:
        learnt = {(row.vocabulary, row.code): row for row in self.thresholds}
        limits = {}
        for vocabulary, code in self.codes:
            found = Limits() if self.ranges is None else self.ranges.get(vocabulary, code)
            row = learnt.get((vocabulary, code))
            if row is not None and not found.listed:
                found = found._replace(learnt_low=row.low, learnt_high=row.high, learnt_unit=row.unit)
            limits[vocabulary, code] = found
        return limits

    def as_records(self) -> tuple[Records, dict[str, int]]:
        """The records with the measurements among their events, and counts for the data quality."""
        rated, events = self.rated(), self.records.events
        coded = rated.mutate(code=rated.code + " " + rated.level)
        changed = self.records._replace(
            events=union(
                [
                    events.filter(events.kind.fill_null("") != MEASUREMENT),
                    conform(coded, EVENTS, kind=MEASUREMENT),
                ]
            ),
            names=self._names(),
            measurements=None,
        )
        return changed, _counts(rated)

    def _names(self) -> "Table | None":
        """The names of the source, also for the codes with a level; those keep the name without it."""
        names = self.records.names
        if names is None:
            return None
        used = self.rows.select("vocabulary", "code").distinct()
        named = names.mutate(vocabulary=names.vocabulary.fill_null("")).semi_join(
            used, ["vocabulary", "code"]
        )
        levels = [named.mutate(code=named.code + f" {level}").select(*NAMES) for level in LEVELS]
        return union([names.select(*NAMES), *levels])

    def learn(self, windows: "Table | None") -> tuple[Threshold, ...]:
        """Quantiles of the codes that have results without a range, inside the windows (id, start, end) only."""
        rated = self.rated()
        if windows is not None:
            # A semi-join: a result in several windows of its patient counts once.
            in_window = [rated.patient == windows.id, rated.time >= windows.start, rated.time < windows.end]
            rated = rated.semi_join(windows, in_window)
        if self.settings.learn_from is not None:
            chosen = _listed_patients(self.workspace, self.settings.learn_from)
            rated = rated.semi_join(chosen, rated.patient.cast("string") == chosen.listed)
        keys = ["vocabulary", "code"]
        unrated = rated.filter(rated.how == NO_RANGE, rated.code.notnull()).select(*keys).distinct()
        valued = rated.filter(rated.value.notnull(), rated.how != IMPLAUSIBLE).semi_join(unrated, keys)
        valued = self.workspace.materialise(
            valued.select("patient", *keys, "value", "unit"), "values to learn from"
        )
        units = _usual_units(valued)
        return tuple(row for row in self._quantiles(valued, units) if not self._is_listed(row))

    def _quantiles(self, valued: "Table", units: Mapping[tuple[str, str], str]) -> list[Threshold]:
        import pyarrow as pa

        assert self.settings.quantiles is not None
        usual = self.workspace.ingest(
            pa.table(
                {
                    "unit_vocabulary": pa.array([vocabulary for vocabulary, _ in units], pa.string()),
                    "unit_code": pa.array([code for _, code in units], pa.string()),
                    "usual": pa.array(list(units.values()), pa.string()),
                }
            ).to_reader(),
            "usual units",
        )
        joined = valued.left_join(
            usual, [valued.vocabulary == usual.unit_vocabulary, valued.code == usual.unit_code]
        )
        same = joined.filter(~_differs(joined.unit, joined.usual))
        low, high = self.settings.quantiles
        found = same.group_by("vocabulary", "code").aggregate(
            unit=same.usual.max(),
            low=same.value.quantile(low),
            high=same.value.quantile(high),
            values=same.count(),
            patients=same.patient.nunique(),
        )
        # A quantile of few patients could be the result of one of them.
        found = found.filter(found.patients >= MIN_CELL_SIZE).order_by("vocabulary", "code")
        return [Threshold(**row) for row in found.to_pyarrow().to_pylist()]

    def _is_listed(self, row: Threshold) -> bool:
        return self.ranges is not None and self.ranges.get(row.vocabulary, row.code).listed


def _usual_units(valued: "Table") -> dict[tuple[str, str], str]:
    """The most frequent unit of each code that has any; the first in the alphabet of equally frequent ones."""
    stated = valued.filter(valued.unit.notnull())
    counts = stated.group_by("vocabulary", "code", "unit").aggregate(n=stated.count())
    rows = counts.to_pyarrow().to_pylist()
    rows.sort(key=lambda row: (row["n"], *(-ord(letter) for letter in row["unit"])))
    return {(row["vocabulary"], row["code"]): row["unit"] for row in rows}


def _counts(rated: "Table") -> dict[str, int]:
    """Counts of rows by how they were rated, and of the codes in several units."""
    rows = rated.group_by("how").aggregate(n=rated.count()).to_pyarrow().to_pylist()
    found = {row["how"]: row["n"] for row in rows}
    units = rated.group_by("vocabulary", "code").aggregate(units=rated.unit.nunique())
    several = units.aggregate(n=units.count(where=units.units > 1)).to_pyarrow().to_pylist()[0]["n"]
    return {
        "measurements": sum(found.values()),
        **{f"measurements_{name}": found.get(name, 0) for name in COUNTED},
        "measurement_codes_in_several_units": int(several),
    }


def _with_limits(workspace: Workspace, rows: "Table", limits: Mapping[tuple[str, str], Limits]) -> "Table":
    import pyarrow as pa

    types = {"text": pa.string(), "number": pa.float64()}
    columns = {
        "limit_vocabulary": pa.array([vocabulary for vocabulary, _ in limits], pa.string()),
        "limit_code": pa.array([code for _, code in limits], pa.string()),
        "listed": pa.array([row.listed for row in limits.values()], pa.bool_()),
    }
    for name, kind in LIMIT_TYPES.items():
        columns[name] = pa.array([getattr(row, name) for row in limits.values()], types[kind])
    table = workspace.ingest(pa.table(columns).to_reader(), "limits of measurements")
    return rows.left_join(table, [rows.vocabulary == table.limit_vocabulary, rows.code == table.limit_code])


def _how(rows: "Table") -> "Value":
    """By what each row is rated, or why it is not."""
    import ibis

    valued = rows.value.notnull()
    own = (rows.low.notnull() | rows.high.notnull()) & ~(rows.low > rows.high).fill_null(False)
    table = rows.table_low.notnull() | rows.table_high.notnull()
    learnt = rows.learnt_low.notnull() & ~rows.listed.fill_null(False)
    return ibis.cases(
        (valued & _implausible(rows), IMPLAUSIBLE),
        (valued & own, BY_RANGE),
        (_flag(rows).notnull(), BY_FLAG),
        (~valued, NO_VALUE),
        (table & _differs(rows.unit, rows.table_unit), UNIT_MISMATCH),
        (table, BY_TABLE),
        (learnt & _differs(rows.unit, rows.learnt_unit), UNIT_MISMATCH),
        (learnt, BY_QUANTILE),
        else_=NO_RANGE,
    )


def _implausible(rows: "Table") -> "Value":
    """Placeholders, values beyond the user's limits, and negative ones where the range has no negative value."""
    import ibis

    low, high = ibis.coalesce(rows.low, rows.table_low), ibis.coalesce(rows.high, rows.table_high)
    never_negative = (ibis.coalesce(low, high) >= 0).fill_null(False)
    beyond = _less(rows.value, rows.below) | _less(rows.above, rows.value)
    return rows.value.isin(PLACEHOLDERS) | beyond | ((rows.value < 0) & never_negative)


def _level(rows: "Table") -> "Value":
    import ibis

    def between(low: "Value", high: "Value") -> "Value":
        return ibis.cases((_less(rows.value, low), LOW), (_less(high, rows.value), HIGH), else_=NORMAL)

    return rows.how.cases(
        (IMPLAUSIBLE, IMPLAUSIBLE),
        (BY_RANGE, between(rows.low, rows.high)),
        (BY_FLAG, _flag(rows)),
        (BY_TABLE, between(rows.table_low, rows.table_high)),
        (BY_QUANTILE, between(rows.learnt_low, rows.learnt_high)),
        else_=UNRATED,
    )


def _flag(rows: "Table") -> "Value":
    return rows.flag.strip().upper().cases(*FLAGS.items(), else_=None)


def _less(a: "Value", b: "Value") -> "Value":
    """Compared in single precision, in which many sources store results: 0.6 is not above a limit of 0.6."""
    return (a.cast("float32") < b.cast("float32")).fill_null(False)


def _differs(unit: "Value", expected: "Value") -> "Value":
    """Whether both units are stated and differ."""
    return (unit != expected).fill_null(False)


class RangeTable:
    """A user's table of reference ranges: code, low, high, and optionally unit, vocabulary and plausible limits."""

    def __init__(self, ranges: Mapping[tuple[str | None, str], Limits]) -> None:
        self.ranges = ranges

    def get(self, vocabulary: str, code: str) -> Limits:
        key = vocabulary_key(vocabulary)
        (spelling,) = code_keys(key, code)
        return self.ranges.get((key, spelling)) or self.ranges.get((None, spelling)) or Limits()

    @classmethod
    def read(cls, path: str) -> "RangeTable":
        header, lines = read_rows(Path(path), "ranges")
        names = [clean_cell(name).lower() for name in header]
        if "low" not in names or "high" not in names:
            raise InputError(
                f"{path} lacks the columns low and high; a table of ranges has code, low and high."
            )
        place = {name: names.index(name) for name in (*RANGE_COLUMNS, "unit", "vocabulary") if name in names}
        code = names.index("code") if "code" in names else 0
        if any(len(line) < len(names) for line in lines):
            raise InputError(f"{path} has rows that are too short; complete them.")
        ranges: dict[tuple[str | None, str], Limits] = {}
        for line in lines:
            if not clean_cell(line[code]):
                continue
            cells = {name: clean_cell(line[column]) for name, column in place.items()}
            key = vocabulary_key(cells["vocabulary"]) if cells.get("vocabulary") else None
            limits = _limits_of(cells, path)
            for spelling in code_keys(key, clean_cell(line[code])):
                if ranges.setdefault((key, spelling), limits) != limits:
                    raise InputError(f"{path} has several ranges for some codes; keep one row per code.")
        return cls(ranges)


def _limits_of(cells: Mapping[str, str], path: str) -> Limits:
    low, high, below, above = (_number(cells.get(name, ""), path) for name in RANGE_COLUMNS)
    if (low is not None and high is not None and low > high) or (
        below is not None and above is not None and below > above
    ):
        raise InputError(f"{path} has rows whose lower limit is above the upper one; correct them.")
    unit = "".join(cells.get("unit", "").lower().split()).replace("µ", "u").replace("μ", "u") or None
    return Limits(True, low, high, unit, below, above)


def _number(text: str, path: str) -> float | None:
    if not text or text.lower() == "nan":
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{path} has limits that are not numbers; correct them, or leave the cells empty.")
    return number


def patients_of(path: str) -> list[str]:
    """The patients on whom quantiles are learnt, from a file with a column patient."""
    header, lines = read_rows(Path(path), "patients to learn from")
    names = [clean_cell(name).lower() for name in header]
    column = names.index("patient") if "patient" in names else 0
    patients = sorted({clean_cell(line[column]) for line in lines if len(line) > column} - {""})
    if not patients:
        raise InputError(f"{path} lists no patient; it needs a column patient.")
    return patients


def _listed_patients(workspace: Workspace, path: str) -> "Table":
    import pyarrow as pa

    table = pa.table({"listed": pa.array(patients_of(path), pa.string())})
    return workspace.ingest(table.to_reader(), "listed patients")
