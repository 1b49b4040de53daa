"""The content of page, figures and tables, as plain records.

Every number about patients has passed the gate in `disclosure`; None stands for a withheld one.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from phenotaste.disclosure import MIN_CELL_SIZE
from phenotaste.disclosure import Suppressed as Hidden

FORMAT = 1
Lines = list[tuple[str, str]]  # label and text
Weights = list[tuple[int, float]]  # position in `features` and weight, heaviest first
FeatureGroup = Literal["diagnosis", "medication", "procedure", "other"]
FeatureKind = Literal["temporal", "static"]
Status = Literal["open", "accepted", "rejected", "merged"]


@dataclass(frozen=True)
class AttritionStep:
    step: str
    patients: int | None
    removed: int | None


@dataclass(frozen=True)
class StabilityText:
    """What selection reports about the stability of the whole model."""

    text: str
    lines: Lines = field(default_factory=list)


@dataclass(frozen=True)
class MapPoint:
    """Position of a phenotype on the map (0 to 1); near ones have similar temporal definitions."""

    x: float
    y: float
    size: float | None  # prevalence


@dataclass(frozen=True)
class Overview:
    figures: Lines
    cohort: Lines = field(default_factory=list)
    attrition: list[AttritionStep] | None = None
    stability: StabilityText | None = None
    map: list[MapPoint] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)  # the objective after each iteration
    outcome: str = ""  # how the fit ended
    notes: list[str] = field(default_factory=list)  # warnings, shown above the figures


@dataclass(frozen=True)
class TemporalFeature:
    name: str
    group: FeatureGroup
    share: float | None  # of patients who have it


@dataclass(frozen=True)
class StaticFeature:
    name: str
    share: float | None
    rate: float | None = None  # in the patients of the fit: their share, or their mean if `numeric`
    numeric: bool = False


@dataclass(frozen=True)
class Features:
    """The features that may be named: positions in `Phenotype.temporal` and `.static` point here."""

    temporal: list[TemporalFeature]
    static: list[StaticFeature]


@dataclass(frozen=True)
class Mass:
    """Sums of all weights of a phenotype, including those not listed."""

    temporal: float
    static: float


@dataclass(frozen=True)
class Leading:
    patients: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class Band:
    """Median and quartiles of activity at each x, each a mean over the 11 patients around it."""

    x: list[float]
    median: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Course:
    visits: Band | None = None  # x: the visit's number, from 1
    months: Band | None = None  # x: months since the first visit


@dataclass(frozen=True)
class TypicalCourse:
    """The mean over a group of patients, at 21 points from first to last visit."""

    label: str
    curve: list[float]


@dataclass(frozen=True)
class Contrast:
    """A fact about the patients a phenotype leads in and about all others; effect: standardised mean difference.

    Shares are quotients of rounded counts, means are winsorised and rounded.
    """

    feature: str
    kind: Literal["share", "mean"]
    leading: float | None
    rest: float | None
    effect: float | None


@dataclass(frozen=True)
class OutcomeLink:
    name: str
    odds_ratio: float | None
    low: float | None
    high: float | None
    leading: float | None
    rest: float | None


@dataclass(frozen=True)
class Reproducibility:
    """Cosines with the counterparts in halves of the patients, in other starts, or in resamples."""

    median: float
    low: float
    high: float
    share: float  # of runs that reproduce it
    values: list[float] = field(default_factory=list)  # at most 100
    reproduced: int = 0  # runs that reproduce it, of `comparisons`
    comparisons: int = 0


@dataclass(frozen=True)
class Stability:
    halves: Reproducibility | None = None
    starts: Reproducibility | None = None
    bootstrap: Reproducibility | None = None


@dataclass(frozen=True)
class Similar:
    phenotype: int
    cosine: float


@dataclass(frozen=True)
class Author:
    """Who decided, and when."""

    reviewer: str
    date: str


@dataclass(frozen=True)
class EarlierPhenotype:
    """A phenotype of the model that was reviewed before; the name of one that was merged is that of all of them."""

    number: int
    name: str | None
    status: Status
    comment: str
    authors: list[Author]
    merged_from: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ChangedCode:
    """A code whose share of the phenotype's weights changed, of all codes of its kind that are shown."""

    name: str
    kind: FeatureKind
    before: float
    now: float


@dataclass(frozen=True)
class Change:
    """What became of a phenotype of the last review; of a new one, `earlier` is the most similar one, if any is."""

    kind: Literal["same", "moved", "new"]
    similarity: float | None = None
    earlier: EarlierPhenotype | None = None
    gained: list[ChangedCode] = field(default_factory=list)
    lost: list[ChangedCode] = field(default_factory=list)


@dataclass(frozen=True)
class Gone:
    """A phenotype of the last review that has no counterpart, with its codes of the largest weights."""

    earlier: EarlierPhenotype
    codes: list[str]


@dataclass(frozen=True)
class Changes:
    """The last review, and what is gone since; what became of the others is in `Phenotype.change`."""

    reviewer: str
    date: str
    model: str
    same_from: float  # cosine from which a phenotype is the same
    moved_from: float  # cosine from which it has moved; below it is new
    gone: list[Gone] = field(default_factory=list)


@dataclass(frozen=True)
class Opinion:
    """What one of several reviewers decided about a phenotype."""

    author: Author
    name: str
    status: Status
    comment: str
    merge_with: int | None = None
    merged_with: list[int] = field(default_factory=list)  # all that it is one with


@dataclass(frozen=True)
class Phenotype:
    number: int
    name: str | None
    temporal: Weights
    static: Weights
    mass: Mass
    status: Status = "open"
    merged_from: list[int] = field(default_factory=list)
    prevalence: float | None = None
    leading: Leading = field(default_factory=Leading)
    course: Course = field(default_factory=Course)
    typical: list[TypicalCourse] = field(default_factory=list)
    profile: list[Contrast] = field(default_factory=list)
    outcome: OutcomeLink | None = None
    stability: Stability | None = None
    similar: list[Similar] = field(default_factory=list)
    # Of each static feature among the patients of the fit who have the phenotype, in the order of `Features.static`.
    rates: list[float | None] = field(default_factory=list)
    authors: list[Author] = field(default_factory=list)  # of the decision
    change: Change | None = None  # since the last review
    opinions: list[Opinion] = field(default_factory=list)  # of several reviewers
    disputed: bool = False  # whether they disagree


@dataclass(frozen=True)
class CardSection:
    """A section of the model card."""

    heading: str
    text: list[str] = field(default_factory=list)
    lines: Lines = field(default_factory=list)


@dataclass(frozen=True)
class Content:
    """Everything the page shows. `as_dict()` is ready for JSON, where tuples become lists."""

    version: str
    title: str
    fingerprint: str
    overview: Overview
    features: Features
    phenotypes: list[Phenotype]
    card: list[CardSection] = field(default_factory=list)
    audit: list[Hidden] = field(default_factory=list)
    review: dict[str, Any] | None = None
    carried: bool = False  # whether that review was put together from earlier ones, and is not a file yet
    changes: Changes | None = None  # since the last review
    agreement: str | None = None  # of several reviewers, in words
    min_cell_size: int = MIN_CELL_SIZE
    trusted: bool = False
    format: int = FORMAT

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
