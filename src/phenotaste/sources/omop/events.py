"""Events: conditions, drugs and procedures as codes, of the source or standard, rolled up where asked for."""

from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources.omop.cdm import Place, day, or_null
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
from phenotaste.sources.omop.population import Population
from phenotaste.sources.omop.vocabulary import concepts, condition_classes, drug_classes
from phenotaste.sources.records import DIAGNOSIS, EVENTS, MEDICATION, NAMES, PROCEDURE

if TYPE_CHECKING:
    from ibis import Table, Value

SOURCE = "source"  # the vocabulary of a code of which nothing more is known


class Wish(NamedTuple):
    """How events are to be coded."""

    codes: str = "standard"
    drugs: str = "auto"
    condition_level: int | None = None
    kinds: tuple[str, ...] = (DIAGNOSIS, MEDICATION)
    source_vocabulary: str | None = None


class Coded(NamedTuple):
    """Events of one kind, and the names of their codes where the vocabulary has them."""

    events: "Table"
    names: "Table | None"


def events(cdm: Place, who: Population, wish: Wish) -> tuple["Table", "Table | None", list[str]]:
    """The events and names tables of Records, and sentences about what was chosen."""
    import ibis

    coded: list[Coded] = []
    notes: list[str] = []
    for kind in wish.kinds:
        name = _table_of(cdm, kind, wish)
        if name is not None:
            coded.append(_coded(cdm, who, wish, EVENT_TABLES[name], notes))
        else:
            notes.append(f"{cdm.where} has no table of the kind {kind}: it was passed over.")
    if not coded:
        listed = ", ".join(EVENT_TABLES)
        raise InputError(
            f"{cdm.where} has no event table for {', '.join(wish.kinds)}; it needs one of: {listed}."
        )
    names = [part.names for part in coded if part.names is not None]
    return (
        ibis.union(*(part.events for part in coded)),
        ibis.union(*names, distinct=True) if names else None,
        notes,
    )


def visits(cdm: Place, who: Population, held: "Table") -> tuple["Table", "Table | None", list[str]]:
    """Events and visits; where most events name no visit that is known, both go by the date alone."""
    import ibis

    raw = cdm.table(VISIT)
    known = None
    if raw is not None:
        table = cdm.fetch(who.only(raw), "omop_visits")
        known = table.select(
            patient=who.patient(table.person_id),
            visit=_visit(table),
            time=day(table, VISIT, "visit_start_date", "visit_start_datetime").cast("timestamp"),
        )
    tied = held.filter(held.visit.notnull()) if known is None else held.semi_join(known, "visit")
    total, found = held.count().to_pyarrow().as_py(), tied.count().to_pyarrow().as_py()
    if 2 * found >= total:
        return held, known, []
    share = f"{found:,} of {total:,} events"
    said = f"only {share} name a visit that {VISIT} knows: visits go by date."
    return held.mutate(visit=ibis.null("string")), None, [said]


def _table_of(cdm: Place, kind: str, wish: Wish) -> str | None:
    """The table that events of a kind come from; None where there is none."""
    if kind == PROCEDURE:
        return PROCEDURES if cdm.has(PROCEDURES) else None
    if kind == DIAGNOSIS:
        return _first(cdm, CONDITION, CONDITION_ERA)
    if wish.drugs == "era":
        return _first(cdm, DRUG_ERA) or _refuse(cdm, DRUG_ERA)
    if wish.drugs == "exposure":
        return _first(cdm, DRUG) or _refuse(cdm, DRUG)
    if wish.drugs != "auto" or wish.codes == SOURCE or _can_roll_up(cdm):
        return _first(cdm, DRUG, DRUG_ERA)
    return _first(cdm, DRUG_ERA, DRUG)


def _first(cdm: Place, *names: str) -> str | None:
    return next((name for name in names if cdm.has(name)), None)


def _refuse(cdm: Place, table: str) -> str:
    raise InputError(f'{cdm.where} has no table {table}, which this choice of drugs needs; choose "auto".')


def _can_roll_up(cdm: Place) -> bool:
    return cdm.has(ANCESTOR) and cdm.has(CONCEPT)


def _coded(cdm: Place, who: Population, wish: Wish, event: EventTable, notes: list[str]) -> Coded:
    level = _drug_level(cdm, wish, event)
    rolled = level is not None or (event.kind == DIAGNOSIS and wish.condition_level is not None)
    by_source = wish.codes == SOURCE and not rolled
    if by_source and event.name == CONDITION_ERA:
        raise InputError(
            f"{cdm.where} has conditions as eras only, which hold no source codes; use standard codes."
        )
    if by_source and event.source_value is not None:
        return _by_source(cdm, _rows(cdm, who, event, sources=True), event, wish)
    rows = _rows(cdm, who, event, sources=False)
    if level is not None:
        classes = drug_classes(cdm, _used(cdm, rows, "concept", event), level)
        return _rolled_up(cdm, rows, event, classes, own=False)
    if rolled and wish.condition_level is not None:
        classes = condition_classes(cdm, _used(cdm, rows, "concept", event), wish.condition_level)
        return _rolled_up(cdm, rows, event, classes, own=True)
    if event.kind == MEDICATION:
        notes.append(f"medications are the concepts of {event.name} as they are.")
    return _by_concept(cdm, rows, event)


def _drug_level(cdm: Place, wish: Wish, event: EventTable) -> str | None:
    """What drugs are rolled up to: "ingredient", "atc1" … or nothing."""
    if event.kind != MEDICATION or wish.drugs in ("era", "exposure"):
        return None
    if wish.drugs != "auto":
        return wish.drugs
    wanted = event.name == DRUG and wish.codes != SOURCE and _can_roll_up(cdm)
    return "ingredient" if wanted else None


def _rows(cdm: Place, who: Population, event: EventTable, *, sources: bool) -> "Table":
    """patient, time, visit, concept of an event table in the workspace; with the source's codes if asked for."""
    import ibis

    raw = cdm.table(event.name)
    assert raw is not None
    ours = {
        "source_concept": or_null(raw, event.source_concept, "int64"),
        "written": or_null(raw, event.source_value, "string"),
    }
    slim = who.only(raw).select(
        person_id="person_id",
        day=day(raw, event.name, event.date, event.datetime),
        visit_occurrence_id=or_null(raw, "visit_occurrence_id", "string"),
        concept=event.concept,
        **(ours if sources else {}),
    )
    table = cdm.fetch(slim, f"omop_{event.name}")
    return table.mutate(
        patient=who.patient(table.person_id),
        time=table.day.cast("timestamp"),
        visit=_visit(table),
        concept=ibis.coalesce(table.concept, 0),
    ).drop("person_id", "day", "visit_occurrence_id")


def _visit(table: "Table") -> "Value":
    return table.visit_occurrence_id.cast("string").nullif("0")  # 0 is what some exports write for none


def _used(cdm: Place, rows: "Table", column: str, event: EventTable) -> "Table":
    ids = rows.select(id=rows[column].cast("int64")).distinct()
    return cdm.workspace.keep(ids, f"omop_used_{column}_{event.name}")


def _finished(rows: "Table", kind: str, code: "Value", vocabulary: "Value") -> "Table":
    import ibis

    return rows.mutate(
        code=code, vocabulary=vocabulary, kind=ibis.literal(kind), value=ibis.null("float64")
    ).select(*EVENTS)


def _by_concept(cdm: Place, rows: "Table", event: EventTable) -> Coded:
    import ibis

    found = concepts(cdm, _used(cdm, rows, "concept", event), f"omop_concepts_{event.name}")
    return Coded(
        _finished(rows, event.kind, rows.concept.cast("string"), ibis.literal(OMOP)), _concept_names(found)
    )


def _concept_names(found: "Table | None") -> "Table | None":
    import ibis

    if found is None:
        return None
    return found.select(
        vocabulary=ibis.literal(OMOP), code=found.concept_id.cast("string"), name=found.concept_name
    )


def _rolled_up(cdm: Place, rows: "Table", event: EventTable, classes: "Table", *, own: bool) -> Coded:
    """Several events where a concept has several classes; without one its own code, or that of none."""
    import ibis

    held = cdm.workspace.keep(classes, f"omop_classes_{event.name}")
    target = held.select(concept_="concept", code_="code", vocabulary_="vocabulary")
    joined = rows.left_join(target, rows.concept == target.concept_)
    left = joined.concept.cast("string") if own else ibis.literal(UNMAPPED)
    finished = _finished(
        joined, event.kind, ibis.coalesce(joined.code_, left), ibis.coalesce(joined.vocabulary_, OMOP)
    )
    names = held.select(*NAMES).distinct()
    if own:
        used = _used(cdm, rows.anti_join(held, "concept"), "concept", event)
        kept = _concept_names(concepts(cdm, used, f"omop_concepts_{event.name}"))
        assert kept is not None  # a roll-up needs the table
        names = names.union(kept, distinct=True)
    return Coded(finished, names)


def _by_source(cdm: Place, rows: "Table", event: EventTable, wish: Wish) -> Coded:
    """The source concept's own code, else what the source wrote, else the code that stands for none."""
    import ibis

    said = wish.source_vocabulary if event.kind == DIAGNOSIS and wish.source_vocabulary else SOURCE
    used = _used(cdm, rows.mutate(source_concept=rows.source_concept.nullif(0)), "source_concept", event)
    found = concepts(cdm, used, f"omop_sources_{event.name}")
    nothing = ibis.null("string")
    if found is None:
        code, vocabulary, joined = nothing, nothing, rows
    else:
        known = found.filter(found.concept_id != 0).select(
            known="concept_id", code_="concept_code", vocabulary_="vocabulary_id"
        )
        joined = rows.left_join(known, rows.source_concept == known.known)
        code, vocabulary = joined.code_, joined.vocabulary_
    vocabulary = ibis.cases(
        (code.notnull(), vocabulary), (joined.written.notnull(), said), else_=ibis.literal(OMOP)
    )
    finished = _finished(joined, event.kind, ibis.coalesce(code, joined.written, UNMAPPED), vocabulary)
    if found is None:
        return Coded(finished, None)
    return Coded(
        finished,
        found.select(vocabulary="vocabulary_id", code="concept_code", name="concept_name").distinct(),
    )
