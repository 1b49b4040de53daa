"""Selection of the events that become features: of a requested kind, plausible, in a code group."""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build import groupers
from phenotaste.build.attrition import Attrition
from phenotaste.build.measurements import FEATURE_LEVELS
from phenotaste.build.normalise import Normalised, ReadCounts
from phenotaste.build.settings import Settings
from phenotaste.errors import InputError
from phenotaste.sources.records import KINDS, MEASUREMENT
from phenotaste.sources.typed_tables import listed_names
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from ibis import Table


LEVEL_STEPS = {
    "abnormal": "without measurements that are normal or not rated",
    "all": "without measurements that are not rated",
    "counts": "without implausible measurements",
}
MIN_KEPT = 0.5  # of the events of a kind
CONCEPT_ID = " [OMOP]"  # ends the name of a feature whose concept has no name
NO_LEVEL = "no measurement is abnormal; give a table of ranges, or use all results (--measurements all)."


class Features(NamedTuple):
    """The sorted feature names, the events that have a feature, and the codes that no group maps."""

    names: np.ndarray
    events: "Table"  # patient, time, visit, feature: int32, encounter: that of the source or null
    unmapped: "pd.DataFrame"  # vocabulary, code, kind, name, events; the most frequent first
    coverage: dict[str, dict[str, int]]  # by kind: events and codes, and those of them in a group
    nameless: dict[
        str, tuple[int, str]
    ]  # by kind: events with a feature called by a concept id, and one of these


def select_features(
    workspace: Workspace, tables: Normalised, counts: ReadCounts, settings: Settings, attrition: Attrition
) -> Features:
    """Select the events that become features; records the steps in `attrition` and sets its tally."""
    unknown = [kind for kind in settings.kinds if kind not in KINDS]
    if unknown or not settings.kinds:
        raise InputError(f"kinds must be some of {', '.join(KINDS)}; correct the settings.")
    of_kind = np.isin(tables.codes["kind"].to_pylist(), settings.kinds)
    used = of_kind & _of_level(tables.codes, settings)
    features = _assigned(tables, used, settings)
    distinct = sorted({name for several in features for name in several})
    names = np.array(distinct, dtype=str)
    numbers = {name: number for number, name in enumerate(distinct)}
    assigned = [[numbers[name] for name in several] for several in features]
    unmapped = _unmapped(tables.codes, used, settings)
    coverage = _coverage(tables.codes.filter(used), unmapped)
    if not settings.groups.allow_loss:
        _refuse_losses(tables.codes, used, features, coverage)
    events = _flag_events(workspace, tables, of_kind, used, assigned, settings)
    _record_steps(workspace, events, counts, settings, attrition, _grouped_step(settings, coverage))
    chosen = _with_features(workspace, events.filter(events.grouped), assigned)
    return Features(names, chosen, unmapped, coverage, _nameless(tables.codes, features))


def _of_level(codes: "pa.Table", settings: Settings) -> np.ndarray:
    """Codes other than measurements of a level that is not a feature, such as normal results."""
    levels = FEATURE_LEVELS[settings.measurements.level]
    pairs = zip(codes["kind"].to_pylist(), codes["code"].to_pylist(), strict=True)
    return np.array(
        [kind != MEASUREMENT or groupers.split_level(code)[1] in levels for kind, code in pairs], bool
    )


def _assigned(tables: Normalised, used: np.ndarray, settings: Settings) -> list[tuple[str, ...]]:
    """The features of each code, none where it is not requested or no group maps it."""
    names = iter(groupers.assign(tables.codes.filter(used), settings.groups, tables.group_names))
    return [next(names) if requested else () for requested in used]


def _unmapped(codes: "pa.Table", used: np.ndarray, settings: Settings) -> "pd.DataFrame":
    """Codes that no group maps, also where each is kept as a feature of its own."""
    requested = codes.filter(used)
    groups = groupers.assign(requested, replace(settings.groups, unmapped="drop"))
    table = requested.filter(np.array([not several for several in groups], bool)).to_pandas()
    table = table[table["events"] > 0]
    return table.sort_values(
        ["events", "vocabulary", "code"], ascending=[False, True, True], ignore_index=True
    )


def _coverage(requested: "pa.Table", unmapped: "pd.DataFrame") -> dict[str, dict[str, int]]:
    """By kind, the numbers of events and codes, and of those that are in a group; codes without events are ignored."""
    table = requested.select(["kind", "events"]).to_pandas()
    table = table[table["events"] > 0]
    coverage = {}
    for kind, rows in table.groupby("kind"):
        lost = unmapped[unmapped["kind"] == kind]
        events, codes = int(rows["events"].sum()), len(rows)
        coverage[str(kind)] = {
            "events": events,
            "events_grouped": events - int(lost["events"].sum()),
            "codes": codes,
            "codes_grouped": codes - len(lost),
        }
    return coverage


def _refuse_losses(
    codes: "pa.Table", used: np.ndarray, features: list[tuple[str, ...]], coverage: dict[str, dict[str, int]]
) -> None:
    """Refuse a kind that loses most of its events because their codes have no feature."""
    table = codes.select(["kind", "vocabulary", "code", "events"]).to_pandas()
    lost = table[used & np.array([not several for several in features], bool) & (table["events"] > 0)]
    pairs = zip(lost["vocabulary"], lost["code"], strict=True)
    lost = lost.assign(of=[_vocabulary_name(vocabulary, code) for vocabulary, code in pairs])
    for kind, rows in lost.groupby("kind"):
        events = coverage[str(kind)]["events"]
        left = events - int(rows["events"].sum())
        if left < MIN_KEPT * events:
            sizes = rows.groupby("of")["events"].sum().sort_values(ascending=False)
            listed = listed_names(list(map(str, sizes.index)))
            raise InputError(
                f"only {left:,} of {events:,} {kind} events are in a code group, and the others would be dropped "
                f"(their vocabularies: {listed}); state the vocabulary of the codes, choose other groups, keep "
                "ungrouped codes (--keep-unmapped), or allow the loss (--allow-loss)."
            )


def _vocabulary_name(vocabulary: str, code: str) -> str:
    if (vocabulary.upper(), code) in groupers.NO_CONCEPT:
        return "OMOP's concept 0"
    return vocabulary or "none"


def _nameless(codes: "pa.Table", features: list[tuple[str, ...]]) -> dict[str, tuple[int, str]]:
    """By kind, the events whose feature is called by a concept id, as the vocabulary lacks its name, and the first."""
    found: dict[str, tuple[int, str]] = {}
    for kind, events, several in zip(
        codes["kind"].to_pylist(), codes["events"].to_pylist(), features, strict=True
    ):
        if several and several[0].endswith(CONCEPT_ID) and events:
            count, name = found.get(kind, (0, several[0]))
            found[kind] = count + events, name
    return found


def _grouped_step(settings: Settings, coverage: dict[str, dict[str, int]]) -> str:
    """The title of the step, with the share of the events of each kind that are in a group, where any is requested."""
    groups = settings.groups
    if groups.ccs is None and groups.atc is None and groups.table is None:
        return "in a code group"
    shares = [
        f"{kind} {_percent(counts['events_grouped'], counts['events'])}" for kind, counts in coverage.items()
    ]
    return f"in a code group ({', '.join(shares)} of the events)" if shares else "in a code group"


def _percent(part: int, whole: int) -> str:
    """Rounded down, so that 100% means all."""
    return f"{int(1000 * part / whole) / 10:g}%"


def _flag_events(
    workspace: Workspace,
    tables: Normalised,
    of_kind: np.ndarray,
    used: np.ndarray,
    assigned: list[list[int]],
    settings: Settings,
) -> "Table":
    """All events with the number of their features and a column for each selection step they pass."""
    import pyarrow as pa

    known = pa.table(
        {
            "code": pa.array(np.arange(len(assigned)), pa.int32()),
            "of_kind": pa.array(of_kind, pa.bool_()),
            "used": pa.array(used, pa.bool_()),
            "features": pa.array([len(several) for several in assigned], pa.int32()),
            "feature": pa.array([several[0] if several else None for several in assigned], pa.int32()),
        }
    )
    code_features = workspace.ingest(known.to_reader(), "code features")
    events = tables.events.inner_join(code_features, "code")
    plausible = events.used & ((events.implausible == 0) | (settings.implausible == "keep"))
    events = events.mutate(plausible=plausible)
    return events.mutate(grouped=events.plausible & (events.features > 0))


def _with_features(workspace: Workspace, events: "Table", assigned: list[list[int]]) -> "Table":
    """A row for each feature of an event; its code may be in several groups."""
    import pyarrow as pa

    if max(map(len, assigned), default=0) <= 1:
        return events.select("patient", "time", "visit", "feature", "encounter")
    pairs = pa.table(
        {
            "code": pa.array(np.repeat(np.arange(len(assigned)), list(map(len, assigned))), pa.int32()),
            "feature": pa.array([number for several in assigned for number in several], pa.int32()),
        }
    )
    features = workspace.ingest(pairs.to_reader(), "features of codes")
    return (
        events.drop("feature")
        .inner_join(features, "code")
        .select("patient", "time", "visit", "feature", "encounter")
    )


def _record_steps(
    workspace: Workspace,
    events: "Table",
    read: ReadCounts,
    settings: Settings,
    attrition: Attrition,
    grouped_step: str,
) -> None:
    """Count every step in one pass over the events: first by visit, then by patient."""
    steps = ("usable", "of_kind", "used", "plausible", "grouped", "entered")
    flags = [events.of_kind, events.used, events.plausible, events.grouped]
    visits = events.group_by("patient", "visit").aggregate(
        usable=events.count(),
        **{step: events.count(where=flag) for step, flag in zip(steps[1:-1], flags, strict=True)},
        entered=events.features.sum(where=events.grouped).coalesce(0),
    )
    people = visits.group_by("patient").aggregate(
        **{step: visits[step].sum() for step in steps},
        **{f"{step}_visits": visits.count(where=visits[step] > 0) for step in steps},
    )
    people = workspace.materialise(people, "tally")
    totals = people.aggregate(
        **{step: people[step].sum().coalesce(0) for step in steps},
        **{f"{step}_visits": people[f"{step}_visits"].sum().coalesce(0) for step in steps},
        **{f"{step}_patients": (people[step] > 0).sum().coalesce(0) for step in steps},
    )
    counts = {name: int(count) for name, count in totals.to_pyarrow().to_pylist()[0].items()}
    attrition.tally = people.filter(people.grouped > 0).select(
        "patient", visits=people.grouped_visits, events=people.entered
    )

    def record(title: str, step: str, if_empty: str) -> None:
        attrition.record(title, counts[f"{step}_patients"], counts[f"{step}_visits"], counts[step], if_empty)

    attrition.record(
        "in the source",
        read.patients,
        counts["usable_visits"] + read.lost_visits,
        read.events,
        "the source has no events for these patients; check the source.",
    )
    record(
        "with a date and a code, of a listed patient, without duplicates",
        "usable",
        "no event has a date, a code and a patient listed in the persons table; check that the ids agree.",
    )
    listed = " or ".join(settings.kinds)
    record(f"of kind {listed}", "of_kind", f"no event is a {listed}; choose other kinds.")
    if MEASUREMENT in settings.kinds:
        record(LEVEL_STEPS[settings.measurements.level], "used", NO_LEVEL)
    if settings.implausible == "drop":
        record(
            "between birth and death, not in the future",
            "plausible",
            "every event is before birth, after death or in the future; check the dates.",
        )
    record(
        grouped_step,
        "grouped",
        "no code belongs to a group; check the vocabulary and the groups, or keep unmapped codes.",
    )
    if counts["entered"] > counts["grouped"]:
        record("each event once for every group of its code", "entered", "no code belongs to a group.")
