"""Build settings as plain records, shared by TOML files, the command line and Python."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any

from phenotaste.build import durations, rules
from phenotaste.build.durations import Duration
from phenotaste.build.rules import (
    Bands,
    Choice,
    Day,
    Flag,
    Integer,
    Length,
    Number,
    Positive,
    Quantiles,
    Rule,
    Text,
    Texts,
    Visit,
)
from phenotaste.errors import InputError
from phenotaste.sources.records import DIAGNOSIS, KINDS

VISITS = ("encounter", "day", "week", "month")
LABEL_ROWS = ("all", "first")
VALUES = ("counts", "binary", "log")
IMPLAUSIBLE = ("keep", "drop")
CCS = ("single", "multi3", "ccsr")
UNMAPPED = ("drop", "keep")
MATCH_BY = CALENDAR, HISTORY = ("calendar", "history")
MEASUREMENT_LEVELS = ("abnormal", "all", "counts")


@dataclass(frozen=True)
class Groups:
    """Which codes become which features.

    Examples
    --------
    >>> from phenotaste.build.settings import Groups
    >>> Groups(ccs="single", atc=3).unmapped
    'drop'
    """

    ccs: str | None = None  # "single", "multi3" or "ccsr": ICD-9-CM and ICD-10-CM diagnoses to CCS
    atc: int | None = None  # 1 to 5: ATC codes cut to this level
    table: str | None = (
        None  # a file with two columns, code and group, for codes that the others do not group
    )
    multi3: str | None = None  # the categories for ccs = "multi3"; AHRQ's DXCCSR file for "ccsr", optional
    unmapped: str = "drop"  # or "keep": an ungrouped code becomes a feature of its own
    names: str | None = None  # a file with code and name; also vocabulary or icd_version
    allow_loss: bool = False  # build although most events of a kind are dropped for want of a group

    def __post_init__(self) -> None:
        rules.check(self, GROUPS_RULES, "groups.")
        if self.ccs == "multi3" and self.multi3 is None:
            raise InputError(
                'groups.ccs = "multi3" needs groups.multi3: a file of ICD codes and their categories.'
            )


@dataclass(frozen=True)
class Index:
    """The index event, and the observation window before it; or, with `first`, the window that a history begins with.

    Durations are texts such as "48h", "30d" or "24mo"; a number is months. Minutes and hours are counted from the time
    of the index, longer units from its date.

    Examples
    --------
    >>> from phenotaste.build.settings import Index
    >>> Index(codes=("ICD9CM:428*", "ICD10CM:I50*"), window=24).gap
    '6mo'
    >>> Index(labels="labels.csv", window="48 hours", gap=0).window
    '48h'
    >>> Index(codes=("428",))
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: index.codes holds "428"; write vocabulary and code, such as "ICD9CM:428*".
    """

    # Such as "ICD9CM:428*", "CCS:108", "SNOMED:84114007"; the first occurrence is the index.
    codes: tuple[str, ...] = ()
    labels: str | None = None  # or a file with patient, time and value (1 case, 0 control)
    label_rows: str = "all"  # or "first": of several label rows of a patient, all are rows of the cohort
    first: str | None = None  # the window is this first part of a history; labels need no time then
    window: str = "24mo"
    gap: str = "6mo"  # between the end of the window and the index
    washout: str = "0mo"  # observed history without an index code before the index
    covered: bool = True  # require observation since the start of the window

    def __post_init__(self) -> None:
        for name in ("first", "window", "gap", "washout"):
            object.__setattr__(self, name, durations.normalised(getattr(self, name)))
        rules.check(self, INDEX_RULES, "index.")
        if self.first is not None and self.codes:
            raise InputError(
                "index.first has no index codes: remove one of them, or use a window before the index."
            )
        for code in self.codes:
            vocabulary, colon, pattern = code.partition(":")
            if not (vocabulary.strip() and colon and pattern.strip()):
                raise InputError(
                    f'index.codes holds "{code}"; write vocabulary and code, such as "ICD9CM:428*".'
                )

    @property
    def lengths(self) -> tuple[Duration, Duration, Duration]:
        """Window, gap and wash-out."""
        return durations.known(self.window), durations.known(self.gap), durations.known(self.washout)

    @property
    def exact(self) -> bool:
        """Whether times of the day count, because a duration is in minutes or hours."""
        if self.first is not None:
            return durations.known(self.first).exact
        return any(length.exact for length in self.lengths)


@dataclass(frozen=True)
class Match:
    """Controls for each case, without replacement; they take their case's index date, or its time in the history.

    Examples
    --------
    >>> from phenotaste.build.settings import Match
    >>> Match(ratio=5, same=("sex",)).age_years
    5.0
    """

    ratio: int = 10
    age_years: float = 5.0  # maximum difference in age
    encounter_days: int = 30  # maximum distance of a control's encounter from the index date
    same: tuple[str, ...] = ()  # static columns that must agree, such as "sex"
    seed: int = 0  # of the random order that breaks ties
    by: str = "calendar"  # or "history": times since each patient's first record, where dates are shifted

    def __post_init__(self) -> None:
        rules.check(self, MATCH_RULES, "match.")


@dataclass(frozen=True)
class Static:
    """Static features, one-hot encoded with a level for missing values; each is the last value before the window ends.

    Examples
    --------
    >>> from phenotaste.build.settings import Static
    >>> Static(columns=("age", "sex"), age_bands=(18, 45, 65, 80)).bmi_bands
    True
    """

    columns: tuple[str, ...] | None = None  # None: all columns of the source
    age_bands: tuple[int, ...] = (18, 30, 40, 50, 60, 70, 80, 90)  # lower bounds; the last band is open
    age_at: str | None = None  # a date; None: the end of the window or, without one, the last visit
    bmi_bands: bool = True  # normal, overweight, moderately and severely obese
    # Such as "weight=60,80": lower bounds of the bands of a numeric column; by default its quartiles.
    bands: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rules.check(self, STATIC_RULES, "static.")
        self.bounds()

    def bounds(self) -> dict[str, tuple[float, ...]]:
        """The lower bounds of the bands of numeric columns, by column.

        Examples
        --------
        >>> from phenotaste.build.settings import Static
        >>> Static(bands=("weight=60,80",)).bounds()
        {'weight': (60.0, 80.0)}
        """
        bounds = {}
        for text in self.bands:
            name, _, numbers = text.partition("=")
            try:
                bounds[name.strip()] = tuple(float(part) for part in numbers.split(","))
            except ValueError:
                bounds[name.strip()] = ()
            found = bounds[name.strip()]
            if not name.strip() or not found or any(not a < b for a, b in pairwise((-inf, *found, inf))):
                raise InputError(
                    f'static.bands holds "{text}"; write a column and increasing bounds, such as "weight=60,80".'
                )
        return bounds


@dataclass(frozen=True)
class Measurements:
    """How results of measurements become features, where "measurement" is one of the kinds.

    A result is rated by its own reference range, else its own flag, else `ranges`, else quantiles of the cohort.

    Examples
    --------
    >>> from phenotaste.build.settings import Measurements
    >>> Measurements(level="all", quantiles=(0.05, 0.95)).ranges
    """

    level: str = "abnormal"  # or "all": normal results too, "counts": that it was measured
    ranges: str | None = None  # a file with code, low, high and, optionally, unit
    quantiles: tuple[float, ...] | None = (0.1, 0.9)  # below and above which a result is low and high
    learn_from: str | None = (
        None  # a file of the patients on whom quantiles are learnt; None: all in the cohort
    )

    def __post_init__(self) -> None:
        rules.check(self, MEASUREMENT_RULES, "measurements.")


@dataclass(frozen=True)
class Weights:
    """Factors by which the entries of each kind are multiplied.

    Examples
    --------
    >>> from phenotaste.build.settings import Weights
    >>> Weights(measurement=0.5).diagnosis
    1.0
    """

    diagnosis: float = 1.0
    medication: float = 1.0
    procedure: float = 1.0
    measurement: float = 1.0

    def __post_init__(self) -> None:
        rules.check(self, WEIGHT_RULES, "weights.")


@dataclass(frozen=True)
class SourceOptions:
    """A source and the options with which it was read; the command line reads them back from a settings file.

    Examples
    --------
    >>> from phenotaste.build.settings import SourceOptions
    >>> SourceOptions("omop", {"codes": "source", "drugs": "atc4"}).name
    'omop'
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)  # texts, numbers, booleans and lists of texts

    def __post_init__(self) -> None:
        if self.name not in SOURCES:
            raise InputError(f"source.name must be {rules.join_choices(SOURCES)}.")
        for name, value in self.options.items():
            items = value if isinstance(value, tuple) else (value,)
            if not all(isinstance(item, str | int | float) for item in items):
                raise InputError(f"source.{name} must be a text, a number, true, false or a list of texts.")


@dataclass(frozen=True)
class Settings:
    """Everything a build depends on besides the location of the source; saved with the cohort.

    Examples
    --------
    >>> from phenotaste.build.settings import Groups, Index, Match, Settings
    >>> Settings(min_visits=5, groups=Groups(ccs="single"), index=Index(codes=("CCS:108",))).values
    'counts'
    >>> Settings(match=Match())
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: match needs an index: set index.codes or index.labels to define the cases.
    """

    # Of VISITS, or a duration such as "6h"; None: encounters where the source has them, else days.
    visit: str | None = None
    place_hours: float = 24.0  # from an event without an encounter to the encounter it is placed in
    values: str = "counts"
    kinds: tuple[str, ...] = ("diagnosis", "medication")
    min_visits: int = 1
    min_patients: int = 1  # with a feature, for the feature to be kept
    implausible: str = "keep"  # or "drop": events before birth, after death or in the future
    like: str | None = None  # a fitted model or a cohort, whose features are used; the command line reads it
    groups: Groups = field(default_factory=Groups)
    index: Index | None = None
    match: Match | None = None
    static: Static = field(default_factory=Static)
    measurements: Measurements = field(default_factory=Measurements)
    weights: Weights = field(default_factory=Weights)
    source: SourceOptions | None = None

    def __post_init__(self) -> None:
        if self.visit not in VISITS:
            object.__setattr__(self, "visit", durations.normalised(self.visit))
        rules.check(self, RULES, "")
        if self.match is not None and (self.index is None or self.index.first is not None):
            raise InputError("match needs an index: set index.codes or index.labels to define the cases.")


RULES: dict[str, Rule] = {
    "visit": Visit("What one visit is", VISITS, none="auto"),
    "place_hours": Number("Maximum hours from an event without an encounter to the one it is placed in"),
    "values": Choice("Entries are counts of codes, 0 or 1, or log(1 + count)", VALUES),
    "kinds": Texts("Events to use", 1, KINDS),
    "min_visits": Integer("Patients with fewer visits are excluded", 1),
    "min_patients": Integer("Features with fewer patients are excluded", 1),
    "implausible": Choice("Events before birth, after death or in the future", IMPLAUSIBLE),
    "like": Text("The folder of a fitted model or a cohort, to use its features", none=""),
}
GROUPS_RULES: dict[str, Rule] = {
    "ccs": Choice("ICD-9-CM and ICD-10-CM diagnoses as CCS categories", CCS, none="none"),
    "atc": Integer("Level to truncate ATC codes to, 0 keeps them unchanged", 1, 5, none=0),
    "table": Text("A file with two columns, code and group, for codes that the others do not group", none=""),
    "multi3": Text(
        'A file of code and category for ccs = "multi3"; for "ccsr", AHRQ\'s DXCCSR file', none=""
    ),
    "unmapped": Choice("Codes that the requested groupers do not map", UNMAPPED),
    "names": Text("A file of names of codes: code, name and, optionally, vocabulary or icd_version", none=""),
    "allow_loss": Flag("Build although most events of a kind are in no group and dropped"),
}
INDEX_RULES: dict[str, Rule] = {
    "codes": Texts('The first occurrence is the index, e.g. "ICD9CM:428*", "CCS:108", "SNOMED:84114007"'),
    "labels": Text("Or a file with patient, time and value (1 case, 0 control)", none=""),
    "label_rows": Choice("Which label rows of a patient are rows of the cohort", LABEL_ROWS),
    "first": Length("Or the first part of each history as its window", 1, none=""),
    "window": Length("Length of the observation window", 1),
    "gap": Length("Time between the end of the window and the index"),
    "washout": Length("History without an index code required before the index"),
    "covered": Flag("Require observation since the start of the window"),
}
MATCH_RULES: dict[str, Rule] = {
    "ratio": Integer("Maximum number of controls per case, each used once", 1),
    "age_years": Number("Maximum difference in age", 0),
    "encounter_days": Integer("Maximum distance of a control's encounter from the index date of its case", 0),
    "same": Texts('Static columns that must agree, such as "sex"'),
    "seed": Integer("Seed for ties, the same seed gives the same controls", 0, 2**32 - 1),
    "by": Choice("Dates of cases and controls, or times since their first records", MATCH_BY),
}
STATIC_RULES: dict[str, Rule] = {
    "columns": Texts("Static columns to use", none="all"),
    "age_bands": Bands("Lower bounds of the age bands, the last band is open"),
    "age_at": Day(
        "Date at which ages are taken, by default the end of the window or the last visit", none=""
    ),
    "bmi_bands": Flag("Body-mass index as normal, overweight, moderately or severely obese"),
    "bands": Texts('Bounds of bands of numeric columns, "weight=60,80", by default quartiles'),
}
MEASUREMENT_RULES: dict[str, Rule] = {
    "level": Choice(
        "Results that are features: not the normal ones, all, or measured at all", MEASUREMENT_LEVELS
    ),
    "ranges": Text("A file with code, low, high, for results without a range of their own", none=""),
    "quantiles": Quantiles("Quantiles beyond which results without a range are low or high", none="none"),
    "learn_from": Text("A file of the patients on whom quantiles are learnt, by default all", none=""),
}
WEIGHT_RULES: dict[str, Rule] = {kind: Positive(f"Factor of the entries of kind {kind}") for kind in KINDS}
SECTIONS: dict[str, tuple[Any, dict[str, Rule]]] = {
    "groups": (Groups, GROUPS_RULES),
    "index": (Index, INDEX_RULES),
    "match": (Match, MATCH_RULES),
    "static": (Static, STATIC_RULES),
    "measurements": (Measurements, MEASUREMENT_RULES),
    "weights": (Weights, WEIGHT_RULES),
}


SOURCES = ("synpuf", "omop", "meds", "synthea", "tables", "mimic4", "eicu", "fhir")


def source_defaults(source: str | None) -> Settings:
    """Default settings of a source, or of all sources for None; a settings file overrides them, flags override both."""
    if source == "synpuf":
        # As in the paper: SynPUF's drug codes are scrambled, and its patients are insured from the age of 65.
        return Settings(
            visit="day",
            kinds=(DIAGNOSIS,),
            groups=Groups(ccs="single"),
            static=Static(age_bands=(65, 70, 75, 80, 85)),
        )
    if source == "eicu":
        return Settings(visit="day")  # a stay in a unit is short of visits: days from the admission
    return Settings()
