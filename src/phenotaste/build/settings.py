"""Build settings as plain records, shared by TOML files, the command line and Python."""

from dataclasses import dataclass, field
from typing import Any

from phenotaste.build import rules
from phenotaste.build.rules import Bands, Choice, Day, Flag, Integer, Number, Rule, Text, Texts
from phenotaste.errors import InputError
from phenotaste.sources.records import DIAGNOSIS, KINDS

VISITS = ("encounter", "day", "week", "month")
VALUES = ("counts", "binary", "log")
IMPLAUSIBLE = ("keep", "drop")
CCS = ("single", "multi3")
UNMAPPED = ("drop", "keep")


@dataclass(frozen=True)
class Groups:
    """Which codes become which features.

    Examples
    --------
    >>> from phenotaste.build.settings import Groups
    >>> Groups(ccs="single", atc=3).unmapped
    'drop'
    """

    ccs: str | None = None  # "single" or "multi3": ICD-9-CM and ICD-10-CM diagnoses to CCS
    atc: int | None = None  # 1 to 5: ATC codes cut to this level
    table: str | None = (
        None  # a file with two columns, code and group, for codes that the others do not group
    )
    multi3: str | None = None  # the file with two columns for ccs = "multi3"
    unmapped: str = "drop"  # or "keep": an ungrouped code becomes a feature of its own

    def __post_init__(self) -> None:
        rules.check(self, GROUPS_RULES, "groups.")
        if self.ccs == "multi3" and self.multi3 is None:
            raise InputError(
                'groups.ccs = "multi3" needs groups.multi3: a file of ICD codes and their categories.'
            )


@dataclass(frozen=True)
class Index:
    """The index event, and the observation window before it.

    Examples
    --------
    >>> from phenotaste.build.settings import Index
    >>> Index(codes=("ICD9CM:428*", "ICD10CM:I50*"), window_months=24).gap_months
    6
    >>> Index(codes=("428",))
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: index.codes holds "428"; write vocabulary and code, such as "ICD9CM:428*".
    """

    # Such as "ICD9CM:428*", "CCS:108", "SNOMED:84114007"; the first occurrence is the index.
    codes: tuple[str, ...] = ()
    labels: str | None = None  # or a file with patient, time and value (1 case, 0 control)
    window_months: int = 24
    gap_months: int = 6  # between the end of the window and the index
    washout_months: int = 0  # observed history without an index code before the index
    covered: bool = True  # require observation since the start of the window

    def __post_init__(self) -> None:
        rules.check(self, INDEX_RULES, "index.")
        for code in self.codes:
            vocabulary, colon, pattern = code.partition(":")
            if not (vocabulary.strip() and colon and pattern.strip()):
                raise InputError(
                    f'index.codes holds "{code}"; write vocabulary and code, such as "ICD9CM:428*".'
                )


@dataclass(frozen=True)
class Match:
    """Controls for each case, without replacement; they take their case's index date.

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

    def __post_init__(self) -> None:
        rules.check(self, STATIC_RULES, "static.")


@dataclass(frozen=True)
class Settings:
    """Everything a build depends on besides the source; saved with the cohort.

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

    visit: str | None = None  # of VISITS; None: encounters where the source has them, else days
    values: str = "counts"
    kinds: tuple[str, ...] = ("diagnosis", "medication")
    min_visits: int = 1
    min_patients: int = 1  # with a feature, for the feature to be kept
    implausible: str = "keep"  # or "drop": events before birth, after death or in the future
    groups: Groups = field(default_factory=Groups)
    index: Index | None = None
    match: Match | None = None
    static: Static = field(default_factory=Static)

    def __post_init__(self) -> None:
        rules.check(self, RULES, "")
        if self.match is not None and self.index is None:
            raise InputError("match needs an index: set index.codes or index.labels to define the cases.")


RULES: dict[str, Rule] = {
    "visit": Choice("What one visit is", VISITS, none="auto"),
    "values": Choice("Entries are counts of codes, 0 or 1, or log(1 + count)", VALUES),
    "kinds": Texts("Events that become features", 1, KINDS),
    "min_visits": Integer("Patients with fewer visits are excluded", 1),
    "min_patients": Integer("Features with fewer patients are excluded", 1),
    "implausible": Choice("Events before birth, after death or in the future", IMPLAUSIBLE),
}
GROUPS_RULES: dict[str, Rule] = {
    "ccs": Choice("ICD-9-CM and ICD-10-CM diagnoses as CCS categories", CCS, none="none"),
    "atc": Integer("Level to truncate ATC codes to, 0 keeps them unchanged", 1, 5, none=0),
    "table": Text("A file with two columns, code and group, for codes that the others do not group", none=""),
    "multi3": Text('The file with two columns, code and category, for ccs = "multi3"', none=""),
    "unmapped": Choice("Codes that the requested groupers do not map", UNMAPPED),
}
INDEX_RULES: dict[str, Rule] = {
    "codes": Texts('The first occurrence is the index, e.g. "ICD9CM:428*", "CCS:108", "SNOMED:84114007"'),
    "labels": Text("Or a file with patient, time and value (1 case, 0 control)", none=""),
    "window_months": Integer("Length of the observation window", 1, 1200),
    "gap_months": Integer("Time between the end of the window and the index", 0, 1200),
    "washout_months": Integer("History without an index code required before the index", 0, 1200),
    "covered": Flag("Require observation since the start of the window"),
}
MATCH_RULES: dict[str, Rule] = {
    "ratio": Integer("Maximum number of controls per case, each used once", 1),
    "age_years": Number("Maximum difference in age", 0),
    "encounter_days": Integer("Maximum distance of a control's encounter from the index date of its case", 0),
    "same": Texts('Static columns that must agree, such as "sex"'),
    "seed": Integer("Seed for ties, the same seed gives the same controls", 0, 2**32 - 1),
}
STATIC_RULES: dict[str, Rule] = {
    "columns": Texts("Static columns to use", none="all"),
    "age_bands": Bands("Lower bounds of the age bands, the last band is open"),
    "age_at": Day(
        "Date at which ages are taken, by default the end of the window or the last visit", none=""
    ),
    "bmi_bands": Flag("Body-mass index as normal, overweight, moderately or severely obese"),
}
SECTIONS: dict[str, tuple[Any, dict[str, Rule]]] = {
    "groups": (Groups, GROUPS_RULES),
    "index": (Index, INDEX_RULES),
    "match": (Match, MATCH_RULES),
    "static": (Static, STATIC_RULES),
}


SOURCES = ("synpuf", "omop", "meds", "synthea", "tables")


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
    return Settings()
