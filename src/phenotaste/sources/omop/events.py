"""Events: conditions, drugs and procedures as source codes or standard concepts, rolled up where requested."""

from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources.omop.cdm import CdmBackend, column_or_null, event_date
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
    """Events and visits; where most events have no visit in the visit table, visits are by date instead."""
    import ibis

    raw = cdm.table(VISIT)
    listed = None
    if raw is not None:
        table = cdm.fetch(population.restrict(raw), "omop_visits")
        listed = table.select(
            patient=population.patient(table.person_id),
            visit=_visit(table),
            time=event_date(table, VISIT, "visit_start_date", "visit_start_datetime").cast("timestamp"),
        )
    linked = events.filter(events.visit.notnull()) if listed is None else events.semi_join(listed, "visit")
    total, in_visits = events.count().to_pyarrow().as_py(), linked.count().to_pyarrow().as_py()
    if 2 * in_visits >= total:
        return events, listed, []
    note = f"only {in_visits:,} of {total:,} events have a visit in {VISIT}: visits are by date."
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
    if options.drugs != "auto" or options.codes == SOURCE or _can_roll_up(cdm):
        return _first(cdm, DRUG, DRUG_ERA)
    return _first(cdm, DRUG_ERA, DRUG)


def _first(cdm: CdmBackend, *names: str) -> str | None:
    return next((name for name in names if cdm.has(name)), None)


def _raise_missing(cdm: CdmBackend, table: str) -> str:
    raise InputError(f'{cdm.label} has no table {table}, which this choice of drugs needs; use "auto".')


def _can_roll_up(cdm: CdmBackend) -> bool:
    return cdm.has(ANCESTOR) and cdm.has(CONCEPT)


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
        return _by_source(cdm, _rows(cdm, population, event, sources=True), event, options)
    rows = _rows(cdm, population, event, sources=False)
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


def _rows(cdm: CdmBackend, population: Population, event: EventTable, *, sources: bool) -> "Table":
    """patient, time, visit, concept of an event table in the workspace, and the source codes if requested."""
    import ibis

    raw = cdm.table(event.name)
    assert raw is not None
    source_columns = {
        "source_concept": column_or_null(raw, event.source_concept, "int64"),
        "source_value": column_or_null(raw, event.source_value, "string"),
    }
    selected = population.restrict(raw).select(
        person_id="person_id",
        day=event_date(raw, event.name, event.date, event.datetime),
        visit_occurrence_id=column_or_null(raw, "visit_occurrence_id", "string"),
        concept=event.concept,
        **(source_columns if sources else {}),
    )
    table = cdm.fetch(selected, f"omop_{event.name}")
    return table.mutate(
        patient=population.patient(table.person_id),
        time=table.day.cast("timestamp"),
        visit=_visit(table),
        concept=ibis.coalesce(table.concept, 0),
    ).drop("person_id", "day", "visit_occurrence_id")


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

    default = options.source_vocabulary if event.kind == DIAGNOSIS and options.source_vocabulary else SOURCE
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
