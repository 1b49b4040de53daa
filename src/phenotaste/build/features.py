"""Selection of the events that become features: of a requested kind, plausible, in a code group."""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build import groupers
from phenotaste.build.attrition import Attrition
from phenotaste.build.normalise import Normalised, ReadCounts
from phenotaste.build.settings import Settings
from phenotaste.errors import InputError
from phenotaste.sources.records import KINDS
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from ibis import Table


class Features(NamedTuple):
    """The sorted feature names, the events that have a feature, and the codes that no group maps."""

    names: np.ndarray
    events: "Table"  # patient, time, visit, feature: int32
    unmapped: "pd.DataFrame"  # vocabulary, code, kind, name, events; the most frequent first


def select_features(
    workspace: Workspace, tables: Normalised, counts: ReadCounts, settings: Settings, attrition: Attrition
) -> Features:
    """Select the events that become features; records the steps in `attrition` and sets its tally."""
    unknown = [kind for kind in settings.kinds if kind not in KINDS]
    if unknown or not settings.kinds:
        raise InputError(f"kinds must be some of {', '.join(KINDS)}; correct the settings.")
    of_kind = np.isin(tables.codes["kind"].to_pylist(), settings.kinds)
    features = _assigned(tables, of_kind, settings)
    names = np.array(sorted({name for name in features if name is not None}), dtype=str)
    numbers = {str(name): number for number, name in enumerate(names)}
    feature_numbers = [None if name is None else numbers[name] for name in features]
    events = _flag_events(workspace, tables, of_kind, feature_numbers, settings)
    _record_steps(workspace, events, counts, settings, attrition)
    chosen = events.filter(events.grouped).select("patient", "time", "visit", "feature")
    return Features(names, chosen, _unmapped(tables.codes, of_kind, settings))


def _assigned(tables: Normalised, of_kind: np.ndarray, settings: Settings) -> list[str | None]:
    """The feature of each code, None where its kind is not requested or no group maps it."""
    names = iter(groupers.assign(tables.codes.filter(of_kind), settings.groups, tables.group_names))
    return [next(names) if requested else None for requested in of_kind]


def _unmapped(codes: "pa.Table", of_kind: np.ndarray, settings: Settings) -> "pd.DataFrame":
    """Codes that no group maps, also where each is kept as a feature of its own."""
    requested = codes.filter(of_kind)
    groups = groupers.assign(requested, replace(settings.groups, unmapped="drop"))
    table = requested.filter([group is None for group in groups]).to_pandas()
    table = table[table["events"] > 0]
    return table.sort_values(
        ["events", "vocabulary", "code"], ascending=[False, True, True], ignore_index=True
    )


def _flag_events(
    workspace: Workspace,
    tables: Normalised,
    of_kind: np.ndarray,
    feature_numbers: list[int | None],
    settings: Settings,
) -> "Table":
    """All events with their feature number and a column for each selection step they pass."""
    import pyarrow as pa

    known = pa.table(
        {
            "code": pa.array(np.arange(len(feature_numbers)), pa.int32()),
            "of_kind": pa.array(of_kind, pa.bool_()),
            "feature": pa.array(feature_numbers, pa.int32()),
        }
    )
    code_features = workspace.ingest(known.to_reader(), "code features")
    events = tables.events.inner_join(code_features, "code")
    plausible = events.of_kind & ((events.implausible == 0) | (settings.implausible == "keep"))
    events = events.mutate(plausible=plausible)
    return events.mutate(grouped=events.plausible & events.feature.notnull())


def _record_steps(
    workspace: Workspace, events: "Table", read: ReadCounts, settings: Settings, attrition: Attrition
) -> None:
    """Count every step in one pass over the events: first by visit, then by patient."""
    steps = ("usable", "of_kind", "plausible", "grouped")
    flags = [events.of_kind, events.plausible, events.grouped]
    visits = events.group_by("patient", "visit").aggregate(
        usable=events.count(),
        **{step: events.count(where=flag) for step, flag in zip(steps[1:], flags, strict=True)},
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
        "patient", visits=people.grouped_visits, events=people.grouped
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
    if settings.implausible == "drop":
        record(
            "between birth and death, not in the future",
            "plausible",
            "every event is before birth, after death or in the future; check the dates.",
        )
    record(
        "in a code group",
        "grouped",
        "no code belongs to a group; check the vocabulary and the groups, or keep unmapped codes.",
    )
