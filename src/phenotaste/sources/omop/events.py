"""Events: conditions, drugs and procedures as source codes or standard concepts, rolled up where requested."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources.coding import EITHER_ICD, icd_by_form
from phenotaste.sources.omop.cdm import CdmBackend, column_or_null, event_time
from phenotaste.sources.omop.cdm_schema import (
    ANCESTOR,
    CONCEPT,
    CONDITION,
    CONDITION_ERA,
    DRUG,
    DRUG_ERA,
    EVENT_TABLES,
    OMOP,
    PROCEDURES,
    UNMAPPED,
    VISIT,
    EventTable,
)
from phenotaste.sources.omop.persons import Population
from phenotaste.sources.omop.vocabulary import concepts, condition_classes, drug_classes
from phenotaste.sources.records import DIAGNOSIS, EVENTS, MEDICATION, NAMES, PROCEDURE
from phenotaste.sources.typed_tables import listed_names

if TYPE_CHECKING:
    from ibis import Table, Value

SOURCE = "source"  # vocabulary of codes whose vocabulary is unknown


class EventOptions(NamedTuple):
    """How events are coded; see `omop.read`."""

    codes: str = "standard"
    drugs: str = "auto"
    condition_level: int | None = None
    kinds: tuple[str, ...] = (DIAGNOSIS, MEDICATION)
    source_vocabulary: str | None = None
    types: Mapping[str, tuple[int, ...]] = MappingProxyType({})  # by kind, the type concepts to use


class Coded(NamedTuple):
    """Events of one kind, and the names of their codes where the vocabulary is available."""

    events: "Table"
    names: "Table | None"


def events(
    cdm: CdmBackend, population: Population, options: EventOptions
) -> tuple["Table", "Table | None", list[str]]:
    """The events and names tables of Records, and notes on the choices made."""
    import ibis

    coded: list[Coded] = []
    notes: list[str] = []
    for kind in options.kinds:
        name = _event_table(cdm, kind, options)
        if name is not None:
            coded.append(_code_events(cdm, population, options, EVENT_TABLES[name], notes))
        else:
            notes.append(f"{cdm.label} has no table of {kind} events; the kind is omitted.")
    if not coded:
        listed = ", ".join(EVENT_TABLES)
        raise InputError(
            f"{cdm.label} has no event table for {', '.join(options.kinds)}; it needs one of: {listed}."
        )
    names = [part.names for part in coded if part.names is not None]
    return (
        ibis.union(*(part.events for part in coded)),
        ibis.union(*names, distinct=True) if names else None,
        notes,
    )


def visits(
    cdm: CdmBackend, population: Population, events: "Table"
) -> tuple["Table", "Table | None", list[str]]:
    """Events and visits; where the visit table lacks most visits of the events, their ids mean nothing."""
    import ibis

    raw = cdm.table(VISIT)
    listed = None
    if raw is not None:
        table = cdm.fetch(population.restrict(raw), "omop_visits")
        listed = table.select(
            patient=population.patient(table.person_id),
            visit=_visit(table),
            time=event_time(table, VISIT, "visit_start_date", "visit_start_datetime"),
            end_time=_visit_end(table),
        )
    linked = events.filter(events.visit.notnull()) if listed is None else events.semi_join(listed, "visit")
    total, in_visits = events.visit.count().to_pyarrow().as_py(), linked.count().to_pyarrow().as_py()
    if 2 * in_visits >= total:
        return events, listed, []
    note = (
        f"only {in_visits:,} of {total:,} events with a visit_occurrence_id have their visit in {VISIT}: "
        "visits are by date."
    )
    return events.mutate(visit=ibis.null("string")), None, [note]


def _event_table(cdm: CdmBackend, kind: str, options: EventOptions) -> str | None:
    """The table with events of a kind; None where it does not exist."""
    if kind == PROCEDURE:
        return PROCEDURES if cdm.has(PROCEDURES) else None
    if kind == DIAGNOSIS:
        return _first(cdm, CONDITION, CONDITION_ERA)
    if options.drugs == "era":
        return _first(cdm, DRUG_ERA) or _raise_missing(cdm, DRUG_ERA)
    if options.drugs == "exposure":
        return _first(cdm, DRUG) or _raise_missing(cdm, DRUG)
    if options.drugs != "auto" or options.codes == SOURCE or _can_roll_up(cdm) or _exposures_in_visits(cdm):
        return _first(cdm, DRUG, DRUG_ERA)
    return _first(cdm, DRUG_ERA, DRUG)


def _exposures_in_visits(cdm: CdmBackend) -> bool:
    """Whether most exposures are in a listed visit; eras, which have none, would separate drugs from diagnoses."""
    exposures, visits = cdm.table(DRUG), cdm.table(VISIT)
    if exposures is None or visits is None or "visit_occurrence_id" not in exposures.columns:
        return False
    ids, listed = exposures.visit_occurrence_id, visits.visit_occurrence_id
    if ids.type().is_string() != listed.type().is_string():
        ids, listed = ids.cast("string"), listed.cast("string")
    counts = exposures.aggregate(rows=exposures.count(), linked=ids.isin(listed).sum())
    row = cdm.fetch(counts, "omop_exposures_in_visits").to_pyarrow().to_pylist()[0]
    return 2 * int(row["linked"] or 0) > int(row["rows"])


def _first(cdm: CdmBackend, *names: str) -> str | None:
    return next((name for name in names if cdm.has(name)), None)


def _raise_missing(cdm: CdmBackend, table: str) -> str:
    raise InputError(f'{cdm.label} has no table {table}, which this choice of drugs needs; use "auto".')


def _can_roll_up(cdm: CdmBackend) -> bool:
    return cdm.vocabulary.has(ANCESTOR) and cdm.vocabulary.has(CONCEPT)


def _code_events(
    cdm: CdmBackend, population: Population, options: EventOptions, event: EventTable, notes: list[str]
) -> Coded:
    level = _drug_level(cdm, options, event)
    rolled = level is not None or (event.kind == DIAGNOSIS and options.condition_level is not None)
    by_source = options.codes == SOURCE and not rolled
    if by_source and event.name == CONDITION_ERA:
        raise InputError(
            f"{cdm.label} has conditions as eras only, which have no source codes; use standard codes."
        )
    if by_source and event.source_value is not None:
        return _by_source(cdm, _rows(cdm, population, event, options, notes, sources=True), event, options)
    rows = _rows(cdm, population, event, options, notes, sources=False)
    if level is not None:
        classes = drug_classes(cdm, _used(cdm, rows, "concept", event), level)
        return _rolled_up(cdm, rows, event, classes, own=False)
    if rolled and options.condition_level is not None:
        classes = condition_classes(cdm, _used(cdm, rows, "concept", event), options.condition_level)
        return _rolled_up(cdm, rows, event, classes, own=True)
    if event.kind == MEDICATION:
        notes.append(f"medications are the concepts of {event.name}, not rolled up.")
    return _by_concept(cdm, rows, event)


def _drug_level(cdm: CdmBackend, options: EventOptions, event: EventTable) -> str | None:
    """The level that drugs are rolled up to: "ingredient", "atc1" … or None."""
    if event.kind != MEDICATION or options.drugs in ("era", "exposure"):
        return None
    if options.drugs != "auto":
        return options.drugs
    ingredients = event.name == DRUG and options.codes != SOURCE and _can_roll_up(cdm)
    return "ingredient" if ingredients else None


def of_types(
    cdm: CdmBackend, table: "Table", name: str, column: str | None, types: tuple[int, ...], notes: list[str]
) -> "Table":
    """The rows with one of these type concepts; a note counts the others."""
    if column is None or column not in table.columns:
        raise InputError(f"{name} has no type concepts to select rows by; omit those of its kind.")
    groups = table.group_by(type=table[column]).aggregate(rows=table.count())
    rows = cdm.fetch(groups, f"omop_types_{name}").to_pyarrow().to_pylist()
    chosen = sum(row["rows"] for row in rows if row["type"] in types)
    if not chosen:
        found = sorted((row["type"] for row in rows if row["type"] is not None), key=int)
        listed = listed_names([str(number) for number in found]) or "none"
        raise InputError(f"no row of {name} has the type concepts asked for; it has: {listed}.")
    if others := sum(row["rows"] for row in rows) - chosen:
        notes.append(f"Rows of {name} with other type concepts than those asked for, left out: {others:,}.")
    return table.filter(table[column].isin(types))


def _rows(
    cdm: CdmBackend,
    population: Population,
    event: EventTable,
    options: EventOptions,
    notes: list[str],
    *,
    sources: bool,
) -> "Table":
    """patient, time, visit, concept of an event table in the workspace, and the source codes if requested."""
    import ibis

    raw = cdm.table(event.name)
    assert raw is not None
    raw = population.restrict(raw)
    if types := options.types.get(event.kind):
        raw = of_types(cdm, raw, event.name, event.type, types, notes)
    selected = raw.select(
        person_id="person_id",
        time=event_time(raw, event.name, event.date, event.datetime),
        visit_occurrence_id=column_or_null(raw, "visit_occurrence_id", "string"),
        concept=event.concept,
        **(_source_columns(raw, event) if sources else {}),
    )
    table = cdm.fetch(selected, f"omop_{event.name}")
    return table.mutate(
        patient=population.patient(table.person_id),
        time=table.time.cast("timestamp"),
        visit=_visit(table),
        concept=ibis.coalesce(table.concept, 0),
    ).drop("person_id", "visit_occurrence_id")


def _source_columns(raw: "Table", event: EventTable) -> "dict[str, Value]":
    return {
        "source_concept": column_or_null(raw, event.source_concept, "int64"),
        "source_value": column_or_null(raw, event.source_value, "string"),
    }


def _visit_end(table: "Table") -> "Value":
    names = ("visit_end_date", "visit_end_datetime")
    if not any(name in table.columns for name in names):
        return column_or_null(table, None, "timestamp")
    return event_time(table, VISIT, *names).cast("timestamp")


def _visit(table: "Table") -> "Value":
    return table.visit_occurrence_id.cast("string").nullif("0")  # some exports write 0 for none


def _used(cdm: CdmBackend, rows: "Table", column: str, event: EventTable) -> "Table":
    ids = rows.select(id=rows[column].cast("int64")).distinct()
    return cdm.workspace.materialise(ids, f"omop_used_{column}_{event.name}")


def _as_events(rows: "Table", kind: str, code: "Value", vocabulary: "Value") -> "Table":
    import ibis

    return rows.mutate(
        code=code, vocabulary=vocabulary, kind=ibis.literal(kind), value=ibis.null("float64")
    ).select(*EVENTS)


def _by_concept(cdm: CdmBackend, rows: "Table", event: EventTable) -> Coded:
    import ibis

    found = concepts(cdm, _used(cdm, rows, "concept", event), f"omop_concepts_{event.name}")
    return Coded(
        _as_events(rows, event.kind, rows.concept.cast("string"), ibis.literal(OMOP)), _concept_names(found)
    )


def _concept_names(found: "Table | None") -> "Table | None":
    import ibis

    if found is None:
        return None
    return found.select(
        vocabulary=ibis.literal(OMOP), code=found.concept_id.cast("string"), name=found.concept_name
    )


def _rolled_up(cdm: CdmBackend, rows: "Table", event: EventTable, classes: "Table", *, own: bool) -> Coded:
    """One event per class of a concept; without a class, its own code or the unmapped concept."""
    import ibis

    table = cdm.workspace.materialise(classes, f"omop_classes_{event.name}")
    target = table.select(concept_="concept", code_="code", vocabulary_="vocabulary")
    joined = rows.left_join(target, rows.concept == target.concept_)
    fallback = joined.concept.cast("string") if own else ibis.literal(UNMAPPED)
    events = _as_events(
        joined, event.kind, ibis.coalesce(joined.code_, fallback), ibis.coalesce(joined.vocabulary_, OMOP)
    )
    names = table.select(*NAMES).distinct()
    if own:
        used = _used(cdm, rows.anti_join(table, "concept"), "concept", event)
        kept = _concept_names(concepts(cdm, used, f"omop_concepts_{event.name}"))
        assert kept is not None  # a roll-up requires the table
        names = names.union(kept, distinct=True)
    return Coded(events, names)


def _by_source(cdm: CdmBackend, rows: "Table", event: EventTable, options: EventOptions) -> Coded:
    """The code of the source concept, else the source value, else the unmapped concept."""
    import ibis

    stated = options.source_vocabulary if event.kind == DIAGNOSIS else None
    used = _used(cdm, rows.mutate(source_concept=rows.source_concept.nullif(0)), "source_concept", event)
    found = concepts(cdm, used, f"omop_sources_{event.name}")
    null = ibis.null("string")
    if found is None:
        code, vocabulary, joined = null, null, rows
    else:
        known = found.filter(found.concept_id != 0).select(
            known="concept_id", code_="concept_code", vocabulary_="vocabulary_id"
        )
        joined = rows.left_join(known, rows.source_concept == known.known)
        code, vocabulary = joined.code_, joined.vocabulary_
    default = ibis.literal(stated or SOURCE)
    if stated == EITHER_ICD:
        default = icd_by_form(joined.source_value, ibis.literal(event.kind)).coalesce(SOURCE)
    vocabulary = ibis.cases(
        (code.notnull(), vocabulary), (joined.source_value.notnull(), default), else_=ibis.literal(OMOP)
    )
    events = _as_events(joined, event.kind, ibis.coalesce(code, joined.source_value, UNMAPPED), vocabulary)
    if found is None:
        return Coded(events, None)
    return Coded(
        events,
        found.select(vocabulary="vocabulary_id", code="concept_code", name="concept_name").distinct(),
    )
