"""Records as narrow tables on disk: patients and codes by number, each event in its visit, no row twice."""

from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.build.visits import chosen_unit, encounter_number, visit_number
from phenotaste.errors import InputError
from phenotaste.sources.records import ATC, Records
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table

BEFORE_BIRTH, AFTER_DEATH, IN_FUTURE = 1, 2, 4  # bits of an event's `doubt`
CODE = ("vocabulary", "kind", "code")


class Compact(NamedTuple):
    """Tables of the workspace; `patient` is an int32, the rank of the source's id from 0.

    Events are all that have a known patient, a date and a code, of every kind and in every code group or none,
    so that an index code may be anything; `Attrition.tally` counts those that become features.
    """

    people: "Table"  # patient, id, birth, death: date, then the source's further columns: text
    events: "Table"  # patient, time: timestamp, visit: int64 within the patient, code: int32; and for the
    # builder itself encounter: int64 or null, doubt: the bits above, copies: how many rows were the same
    codes: "pa.Table"  # vocabulary, code, kind, name (or null), events (how many); `code` is the row number
    periods: "Table | None"  # patient, start, end: date, both inclusive
    labels: "Table | None"  # patient, time: timestamp, value: float
    visits: "Table | None"  # patient, visit: the same int64 as in events, time: timestamp of the start
    facts: "Table | None"  # patient, time: timestamp, name, value: text, number: float
    group_names: "pa.Table | None" = (
        None  # vocabulary, code, name of ATC groups, also of codes that no event has
    )


class Reading(NamedTuple):
    """What was met on the way in; the counts of events are of rows in the source."""

    unit: str  # of visits
    events: int
    without_code: int
    without_date: int  # but with a code
    unknown_patients: int  # with both, of a patient that persons does not list
    duplicates: int
    patients: int  # persons, and patients of events whom persons does not list
    lost_visits: int  # visits with none but such events


def compact(workspace: Workspace, records: Records, visit: str | None) -> tuple[Compact, Reading]:
    people = _people(workspace, records.persons)
    source = records.events.mutate(
        vocabulary=records.events.vocabulary.fill_null(""), kind=records.events.kind.fill_null("")
    )
    codes = _codes(workspace, source)
    totals = codes.aggregate(
        events=codes.rows.sum().coalesce(0),
        coded=codes.rows.sum(where=codes.number.notnull()).coalesce(0),
        dated=codes.dated.sum(where=codes.number.notnull()).coalesce(0),
        in_encounters=codes.in_encounters.sum().coalesce(0),
    )
    rows = totals.to_pyarrow().to_pylist()[0]
    unit = chosen_unit(visit, rows["events"], rows["in_encounters"])
    events = _events(workspace, source, people, codes, unit)
    sound = events.aggregate(kept=events.count(), rows=events.copies.sum().coalesce(0))
    sound_rows = sound.to_pyarrow().to_pylist()[0]
    strangers, visits = 0, 0
    if rows["events"] > sound_rows["rows"]:  # seldom so; then the source is read once more
        strangers, visits = _lost(source, people, events, unit)
    reading = Reading(
        unit=unit,
        events=rows["events"],
        without_code=rows["events"] - rows["coded"],
        without_date=rows["coded"] - rows["dated"],
        unknown_patients=rows["dated"] - sound_rows["rows"],
        duplicates=sound_rows["rows"] - sound_rows["kept"],
        patients=int(people.count().execute()) + strangers,
        lost_visits=visits,
    )
    tables = Compact(
        people=people,
        events=events,
        codes=_listed(codes, events, records.names),
        periods=_numbered(workspace, records.periods, people, "periods"),
        labels=_numbered(workspace, records.labels, people, "labels"),
        visits=_starts(workspace, records.visits, people, unit),
        facts=_numbered(workspace, records.facts, people, "facts"),
        group_names=_group_names(records.names),
    )
    return tables, reading


def _people(workspace: Workspace, persons: "Table") -> "Table":
    import ibis

    persons = persons.filter(persons.patient.notnull())
    further = [name for name in persons.columns if name not in ("patient", "birth", "death", "id")]
    people = workspace.keep(
        persons.select(
            patient=ibis.row_number().over(order_by=persons.patient).cast("int32"),
            id=persons.patient,
            birth=persons.birth.cast("date"),
            death=persons.death.cast("date"),
            **{name: persons[name].cast("string") for name in further},
        ),
        "compact people",
    )
    repeated = people.count().execute() - people.id.nunique().execute()
    if repeated:
        raise InputError(f"persons has {repeated:,} rows too many: keep one row for each patient.")
    return people


def _codes(workspace: Workspace, source: "Table") -> "Table":
    """The distinct codes, numbered in order, with how many of their rows have a date and an encounter."""
    import ibis

    distinct = source.group_by(*CODE).aggregate(
        rows=source.count(), dated=source.time.count(), in_encounters=source.visit.count()
    )
    coded = workspace.keep(distinct, "compact distinct codes")
    number = ibis.row_number().over(order_by=[coded.code.isnull(), *(coded[name] for name in CODE)])
    number = ibis.ifelse(coded.code.isnull(), ibis.null("int32"), number.cast("int32"))
    return workspace.keep(coded.mutate(number=number), "compact codes")


def _events(workspace: Workspace, source: "Table", people: "Table", codes: "Table", unit: str) -> "Table":
    import ibis

    rows = source.filter(source.time.notnull())
    rows = rows.inner_join(codes.select("number", *CODE), CODE)
    persons = people.select("id", "birth", "death", position=people.patient)
    rows = rows.inner_join(persons, rows.patient == persons.id)
    day, tomorrow = rows.time.cast("date"), date.today() + timedelta(days=1)
    doubt = (
        ibis.ifelse(day < rows.birth, BEFORE_BIRTH, 0)
        + ibis.ifelse(day > rows.death, AFTER_DEATH, 0)
        + ibis.ifelse(day >= tomorrow, IN_FUTURE, 0)
    )
    narrow = rows.select(
        patient=rows.position,
        time=rows.time,
        encounter=encounter_number(rows.visit),
        code=rows.number,
        doubt=doubt.cast("int8"),
    )
    distinct = narrow.group_by("patient", "time", "encounter", "code").aggregate(
        doubt=narrow.doubt.max(), copies=narrow.count()
    )
    return workspace.keep(
        distinct.mutate(visit=visit_number(unit, distinct.time, distinct.encounter)), "compact events"
    )


def _lost(source: "Table", people: "Table", events: "Table", unit: str) -> tuple[int, int]:
    """How many patients nobody knows, and how many visits have none but events that cannot be used."""
    seen = events.select("patient", "visit").distinct()
    persons = people.select("id", position=people.patient)
    rows = source.left_join(persons, source.patient == persons.id)
    rows = rows.filter(rows.time.isnull() | rows.code.isnull() | rows.position.isnull())
    visit = visit_number(unit, rows.time, encounter_number(rows.visit))
    unused = rows.select("patient", patient_number=rows.position, visit=visit).distinct()
    visits = unused.filter(unused.visit.notnull(), unused.patient.notnull())
    visits = visits.anti_join(seen, [visits.patient_number == seen.patient, visits.visit == seen.visit])
    strangers = unused.filter(unused.patient_number.isnull())
    return int(strangers.patient.nunique().execute()), int(visits.count().execute())


def _listed(codes: "Table", events: "Table", names: "Table | None") -> "pa.Table":
    """The codes as a table in memory, with their names and how many events of known patients have them."""
    import ibis

    used = events.group_by("code").aggregate(events=events.count())
    used = used.select("events", used_code=used.code)
    listed = codes.filter(codes.number.notnull()).left_join(used, codes.number == used.used_code)
    name = ibis.null("string")
    if names is not None:
        called = names.mutate(vocabulary=names.vocabulary.fill_null(""))
        called = called.group_by("vocabulary", "code").aggregate(name=called.name.min())
        called = called.select("name", named_vocabulary=called.vocabulary, named_code=called.code)
        listed = listed.left_join(
            called, [listed.vocabulary == called.named_vocabulary, listed.code == called.named_code]
        )
        name = listed.name
    listed = listed.select(
        "number", "vocabulary", "code", "kind", name=name, events=listed.events.fill_null(0)
    )
    return listed.order_by("number").drop("number").to_pyarrow()


def _group_names(names: "Table | None") -> "pa.Table | None":
    if names is None:
        return None
    atc = names.filter(names.vocabulary.upper() == ATC, names.code.notnull(), names.name.notnull())
    return atc.select("vocabulary", "code", "name").order_by("code", "name").to_pyarrow()


def _numbered(workspace: Workspace, table: "Table | None", people: "Table", name: str) -> "Table | None":
    """A table of known patients, with their number for their id."""
    if table is None:
        return None
    persons = people.select("id", position=people.patient)
    rows = table.inner_join(persons, table.patient == persons.id)
    others = [column for column in table.columns if column != "patient"]
    return workspace.keep(rows.select(*others, patient=rows.position), f"compact {name}")


def _starts(workspace: Workspace, visits: "Table | None", people: "Table", unit: str) -> "Table | None":
    if visits is None:
        return None
    rows = _numbered(workspace, visits.select("patient", "visit", "time"), people, "encounters")
    assert rows is not None
    rows = rows.select("patient", "time", encounter=encounter_number(rows.visit))
    rows = rows.mutate(visit=visit_number(unit, rows.time, rows.encounter))
    return workspace.keep(
        rows.group_by("patient", "visit", "encounter").aggregate(time=rows.time.min()), "compact visits"
    )
