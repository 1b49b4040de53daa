"""How a cohort is to be built, as plain records: what a TOML file, the command line and Python all say."""

from dataclasses import dataclass, field
from typing import Any

from phenotaste.build import rules
from phenotaste.build.rules import Bands, Choice, Day, Flag, Number, Rule, Text, Texts, Whole
from phenotaste.errors import InputError
from phenotaste.sources.records import KINDS

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
    table: str | None = None  # a file of two columns, code and group, for what the others leave
    multi3: str | None = None  # the file of two columns behind ccs = "multi3"
    unmapped: str = "drop"  # or "keep": a code that no grouper knows is a feature of its own

    def __post_init__(self) -> None:
        rules.check(self, GROUPS_RULES, "groups.")
        if self.ccs == "multi3" and self.multi3 is None:
            raise InputError(
                'groups.ccs = "multi3" needs groups.multi3: a file of ICD codes and their categories.'
            )


@dataclass(frozen=True)
class Index:
    """The event that time is counted from, and the stretch before it that is looked at.

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

    codes: tuple[
        str, ...
    ] = ()  # "ICD9CM:428*", "CCS:108", "SNOMED:84114007"; the first occurrence is the index
    labels: str | None = None  # or a file of patient, time and value (1 case, 0 control)
    window_months: int = 24
    gap_months: int = 6  # the window ends this long before the index
    washout_months: int = 0  # known history without an index code before the index
    covered: bool = True  # the history must reach back to the start of the window

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
    age_years: float = 5.0  # most difference in age
    encounter_days: int = 30  # an encounter of the control lies this close to the index date
    same: tuple[str, ...] = ()  # static columns that must agree, such as "sex"
    seed: int = 0  # breaks ties

    def __post_init__(self) -> None:
        rules.check(self, MATCH_RULES, "match.")


@dataclass(frozen=True)
class Static:
    """Static features, one-hot with a level for what is missing; each is the last value before the window ends.

    Examples
    --------
    >>> from phenotaste.build.settings import Static
    >>> Static(columns=("age", "sex"), age_bands=(18, 45, 65, 80)).bmi_bands
    True
    """

    columns: tuple[str, ...] | None = None  # None: all that the source has
    age_bands: tuple[int, ...] = (
        18,
        30,
        40,
        50,
        60,
        70,
        80,
        90,
    )  # lower ends; the last takes all who are older
    age_at: str | None = None  # a date, or None: the end of the window, without one the last visit
    bmi_bands: bool = True  # normal, overweight, moderately and severely obese

    def __post_init__(self) -> None:
        rules.check(self, STATIC_RULES, "static.")


@dataclass(frozen=True)
class Settings:
    """Everything a build depends on besides the source; saved beside the cohort.

    Examples
    --------
    >>> from phenotaste.build.settings import Groups, Index, Match, Settings
    >>> Settings(min_visits=5, groups=Groups(ccs="single"), index=Index(codes=("CCS:108",))).values
    'counts'
    >>> Settings(match=Match())
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: match needs an index: say in index which codes or labels make a case.
    """

    visit: str | None = None  # of VISITS; None: what the source suggests
    values: str = "counts"
    kinds: tuple[str, ...] = ("diagnosis", "medication")
    min_visits: int = 1
    min_patients: int = 1  # a feature is kept if this many patients have it
    implausible: str = "keep"  # or "drop": events before birth, after death or in the future
    groups: Groups = field(default_factory=Groups)
    index: Index | None = None
    match: Match | None = None
    static: Static = field(default_factory=Static)

    def __post_init__(self) -> None:
        rules.check(self, RULES, "")
        if self.match is not None and self.index is None:
            raise InputError("match needs an index: say in index which codes or labels make a case.")


RULES: dict[str, Rule] = {
    "visit": Choice("What one visit is", VISITS, none="auto"),
    "values": Choice("An entry counts codes, says whether there is one, or is log(1 + count)", VALUES),
    "kinds": Texts("Events that become features", 1, KINDS),
    "min_visits": Whole("Patients with fewer visits are left out", 1),
    "min_patients": Whole("Features that fewer patients have are left out", 1),
    "implausible": Choice("Events before birth, after death or in the future", IMPLAUSIBLE),
}
GROUPS_RULES: dict[str, Rule] = {
    "ccs": Choice("ICD-9-CM and ICD-10-CM diagnoses as CCS categories", CCS, none="none"),
    "atc": Whole("Level that ATC codes are cut to, 0 leaves them as they are", 1, 5, none=0),
    "table": Text("A file of two columns, code and group, for what the others leave", none=""),
    "multi3": Text('The file of two columns, code and category, behind ccs = "multi3"', none=""),
    "unmapped": Choice("Codes that no grouper asked for knows", UNMAPPED),
}
INDEX_RULES: dict[str, Rule] = {
    "codes": Texts('The first of them is the index, e.g. "ICD9CM:428*", "CCS:108", "SNOMED:84114007"'),
    "labels": Text("Or a file of patient, time and value (1 case, 0 control)", none=""),
    "window_months": Whole("Length of the observation window", 1, 1200),
    "gap_months": Whole("The window ends this long before the index", 0, 1200),
    "washout_months": Whole("History without an index code that a new case has before the index", 0, 1200),
    "covered": Flag("The history must reach back to the start of the window"),
}
MATCH_RULES: dict[str, Rule] = {
    "ratio": Whole("Most controls for each case, each used once", 1),
    "age_years": Number("Most difference in age", 0),
    "encounter_days": Whole("A control has an encounter this close to its case's index date", 0),
    "same": Texts('Static columns that must agree, such as "sex"'),
    "seed": Whole("Breaks ties, the same seed gives the same controls", 0, 2**32 - 1),
}
STATIC_RULES: dict[str, Rule] = {
    "columns": Texts("Static columns to use", none="all"),
    "age_bands": Bands("Where age bands begin, the last takes all who are older"),
    "age_at": Day("Ages are those on this date, without one at the end of the window or last visit", none=""),
    "bmi_bands": Flag("Body-mass index as normal, overweight, moderately or severely obese"),
}
SECTIONS: dict[str, tuple[Any, dict[str, Rule]]] = {
    "groups": (Groups, GROUPS_RULES),
    "index": (Index, INDEX_RULES),
    "match": (Match, MATCH_RULES),
    "static": (Static, STATIC_RULES),
}
