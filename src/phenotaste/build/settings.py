"""How a cohort is to be built, as plain records: what a TOML file, the command line and Python all say."""

from dataclasses import dataclass, field

VISITS = ("encounter", "day", "week", "month")
VALUES = ("counts", "binary", "log")


@dataclass(frozen=True)
class Groups:
    """Which codes become which features."""

    ccs: str | None = None  # "single" or "multi3": ICD-9-CM and ICD-10-CM diagnoses to CCS
    atc: int | None = None  # 1 to 5: ATC codes cut to this level
    table: str | None = None  # a file of two columns, code and group, for what the others leave
    multi3: str | None = None  # the file of two columns behind ccs = "multi3"
    unmapped: str = "drop"  # or "keep": a code that no grouper knows is a feature of its own


@dataclass(frozen=True)
class Index:
    """The event that time is counted from, and the stretch before it that is looked at."""

    codes: tuple[
        str, ...
    ] = ()  # "ICD9CM:428*", "CCS:108", "SNOMED:84114007"; the first occurrence is the index
    labels: str | None = None  # or a file of patient, time and value (1 case, 0 control)
    window_months: int = 24
    gap_months: int = 6  # the window ends this long before the index
    washout_months: int = 0  # known history without an index code before the index
    covered: bool = True  # the history must reach back to the start of the window


@dataclass(frozen=True)
class Match:
    """Controls for each case, without replacement; they take their case's index date."""

    ratio: int = 10
    age_years: float = 5.0  # most difference in age
    encounter_days: int = 30  # an encounter of the control lies this close to the index date
    same: tuple[str, ...] = ()  # static columns that must agree, such as "sex"
    seed: int = 0  # breaks ties


@dataclass(frozen=True)
class Static:
    """Static features, one-hot with a level for what is missing; each is the last value before the window ends."""

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


@dataclass(frozen=True)
class Settings:
    """Everything a build depends on besides the source; saved beside the cohort."""

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
