"""Which events become features, step by step: of the kinds asked for, plausible, in a code group."""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build import groupers
from phenotaste.build.attrition import Attrition
from phenotaste.build.normalise import Compact, Reading
from phenotaste.build.settings import Settings
from phenotaste.errors import InputError
from phenotaste.sources.records import KINDS
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from ibis import Table


class Features(NamedTuple):
    """The names of the features in order, the events that have one, and the codes that no group takes."""

    names: np.ndarray
    events: "Table"  # patient, time, visit, feature: int32
    unmapped: "pd.DataFrame"  # vocabulary, code, kind, name, events; the commonest first


def choose(
    workspace: Workspace, compact: Compact, reading: Reading, settings: Settings, attrition: Attrition
) -> Features:
    """The events that become features; adds the steps so far to the attrition and sets its tally."""
    unknown = [kind for kind in settings.kinds if kind not in KINDS]
    if unknown or not settings.kinds:
        raise InputError(f"kinds must be some of {', '.join(KINDS)}; correct the settings.")
    of_kind = np.isin(compact.codes["kind"].to_pylist(), settings.kinds)
    features = _assigned(compact, of_kind, settings)
    names = np.array(sorted({name for name in features if name is not None}), dtype=str)
    numbers = {str(name): number for number, name in enumerate(names)}
    taken = [None if name is None else numbers[name] for name in features]
    events = _marked(workspace, compact, of_kind, taken, settings)
    _count(workspace, events, reading, settings, attrition)
    chosen = events.filter(events.grouped).select("patient", "time", "visit", "feature")
    return Features(names, chosen, _unmapped(compact.codes, of_kind, settings))


def _assigned(compact: Compact, of_kind: np.ndarray, settings: Settings) -> list[str | None]:
    """The feature of each code, None where its kind is not asked for or no group takes it."""
    found = iter(groupers.assign(compact.codes.filter(of_kind), settings.groups, compact.group_names))
    return [next(found) if wanted else None for wanted in of_kind]


def _unmapped(codes: "pa.Table", of_kind: np.ndarray, settings: Settings) -> "pd.DataFrame":
    """Codes that no group takes, listed also where each is kept as a feature of its own."""
    wanted = codes.filter(of_kind)
    groups = groupers.assign(wanted, replace(settings.groups, unmapped="drop"))
    table = wanted.filter([group is None for group in groups]).to_pandas()
    table = table[table["events"] > 0]
    return table.sort_values(
        ["events", "vocabulary", "code"], ascending=[False, True, True], ignore_index=True
    )


def _marked(
    workspace: Workspace, compact: Compact, of_kind: np.ndarray, taken: list[int | None], settings: Settings
) -> "Table":
    """All events, with how far each one comes and the number of its feature."""
    import pyarrow as pa

    known = pa.table(
        {
            "code": pa.array(np.arange(len(taken)), pa.int32()),
            "of_kind": pa.array(of_kind, pa.bool_()),
            "feature": pa.array(taken, pa.int32()),
        }
    )
    code_features = workspace.take(known.to_reader(), "compact features")
    events = compact.events.inner_join(code_features, "code")
    plausible = events.of_kind & ((events.doubt == 0) | (settings.implausible == "keep"))
    events = events.mutate(plausible=plausible)
    return events.mutate(grouped=events.plausible & events.feature.notnull())


def _count(
    workspace: Workspace, events: "Table", reading: Reading, settings: Settings, attrition: Attrition
) -> None:
    """Every step in one pass over the events: first by visit, then by patient."""
    steps = ("sound", "of_kind", "plausible", "grouped")
    flags = [events.of_kind, events.plausible, events.grouped]
    visits = events.group_by("patient", "visit").aggregate(
        sound=events.count(),
        **{step: events.count(where=flag) for step, flag in zip(steps[1:], flags, strict=True)},
    )
    people = visits.group_by("patient").aggregate(
        **{step: visits[step].sum() for step in steps},
        **{f"{step}_visits": visits.count(where=visits[step] > 0) for step in steps},
    )
    people = workspace.keep(people, "compact tally")
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
        reading.patients,
        counts["sound_visits"] + reading.lost_visits,
        reading.events,
        "the source has no events; check that it holds any for these patients.",
    )
    record(
        "with a date and a code, of a known patient, each once",
        "sound",
        "no event has a date, a code and a patient that the persons table knows; check that the ids agree.",
    )
    listed = " or ".join(settings.kinds)
    record(f"of kind {listed}", "of_kind", f"no event is a {listed}; choose other kinds.")
    if settings.implausible == "drop":
        record(
            "between birth and death, not in the future",
            "plausible",
            "every event lies before birth, after death or in the future; check the dates.",
        )
    record(
        "in a code group",
        "grouped",
        "no code belongs to a group; check the vocabulary and the groups, or keep unmapped codes.",
    )
