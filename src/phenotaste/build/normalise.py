"""Records as narrow tables on disk: integer patients and codes, events assigned to visits, duplicates merged."""

from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.build import durations
from phenotaste.build.placement import Placed, intervals, place
from phenotaste.build.settings import VISITS
from phenotaste.errors import InputError
from phenotaste.sources.records import ATC, ORIGIN, Records, conform
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table, Value

BEFORE_BIRTH, AFTER_DEATH, IN_FUTURE = 1, 2, 4  # bits of an event's `implausible`
CODE = ("vocabulary", "kind", "code")
ENCOUNTER, DAY, WEEK, MONTH = VISITS
HASH_BITS = 2**62 - 1
BELOW_ALL_HASHES = 2**40  # maps days without an encounter to negative numbers, disjoint from the hashes


class Normalised(NamedTuple):
    """Tables of the workspace; `patient` is an int32, the rank of the source's id from 0.

    Events are all rows with a listed patient, a date and a code, of any kind and whether or not a code group maps
    them, so that any code can be an index code; `Attrition.tally` counts those that become features.
    """

    people: "Table"  # patient, id, birth, death: date, then the source's other columns: text
    # patient, time: timestamp, visit: int64 within the patient, code: int32, encounter: int64, that of the source or
    # null, implausible: the bits above, copies: the number of identical rows
    events: "Table"
    codes: "pa.Table"  # vocabulary, code, kind, name (or null), events (number); `code` is the row number
    periods: "Table | None"  # patient, start, end: date, both inclusive
    labels: "Table | None"  # patient, time: timestamp, value: float
    # patient, encounter, visit: the same int64 as in events, time, end_time: timestamps of start and end
    visits: "Table | None"
    facts: "Table | None"  # patient, time: timestamp, name, value: text, number: float
    group_names: "pa.Table | None" = (
        None  # vocabulary, code, name of ATC groups, also of codes without events
    )
    outcomes: "Table | None" = None  # patient, value: float, and time: null
    time_unit: str | None = None  # of times that are not dates, as in Records


class ReadCounts(NamedTuple):
    """Counts from reading the source; those of events are numbers of rows."""

    unit: str  # of visits
    events: int
    without_code: int
    without_date: int  # rows with a code
    unknown_patients: int  # rows with both, of a patient that persons does not list
    duplicates: int
    patients: int  # listed in persons or having events
    lost_visits: int  # visits that have only unusable events
    placed: Placed | None  # events and their encounters, where visits are encounters or could have been


def normalise(
    workspace: Workspace, records: Records, visit: str | None, place_hours: float | None = None
) -> tuple[Normalised, ReadCounts]:
    """Number patients and codes, assign events to visits and merge duplicates; `visit` is the requested unit.

    Events without an encounter are placed in one within `place_hours`; None leaves them as visits by day.
    """
    people = _people(workspace, records.persons)
    source = records.events.mutate(
        vocabulary=records.events.vocabulary.fill_null(""), kind=records.events.kind.fill_null("")
    )
    codes = _codes(workspace, source)
    totals = codes.aggregate(
        events=codes.rows.sum().coalesce(0),
        coded=codes.rows.sum(where=codes.number.notnull()).coalesce(0),
        dated=codes.dated.sum(where=codes.number.notnull()).coalesce(0),
    )
    rows = totals.to_pyarrow().to_pylist()[0]
    encounters = _encounters(workspace, records.visits, people)
    events = _events(workspace, source, people, codes, records.shifted_dates)
    events, unit, placed = _with_visits(workspace, events, encounters, visit, place_hours)
    usable = events.aggregate(kept=events.count(), rows=events.copies.sum().coalesce(0))
    usable_rows = usable.to_pyarrow().to_pylist()[0]
    unlisted, visits = 0, 0
    if rows["events"] > usable_rows["rows"]:  # rare; only then is the source read a second time
        unlisted, visits = _count_unusable(source, people, events, unit)
    counts = ReadCounts(
        unit=unit,
        events=rows["events"],
        without_code=rows["events"] - rows["coded"],
        without_date=rows["coded"] - rows["dated"],
        unknown_patients=rows["dated"] - usable_rows["rows"],
        duplicates=usable_rows["rows"] - usable_rows["kept"],
        patients=int(people.count().execute()) + unlisted,
        lost_visits=visits,
        placed=placed,
    )
    tables = Normalised(
        people=people,
        events=events,
        codes=_code_table(codes, events, records.names),
        periods=_numbered(workspace, records.periods, people, "periods"),
        labels=_numbered(workspace, records.labels, people, "labels"),
        visits=None
        if encounters is None
        else encounters.mutate(visit=visit_number(unit, encounters.time, encounters.encounter)),
        facts=_numbered(workspace, records.facts, people, "facts"),
        group_names=_group_names(records.names),
        outcomes=_numbered(workspace, records.outcomes, people, "outcomes"),
        time_unit=records.time_unit,
    )
    return tables, counts


def _people(workspace: Workspace, persons: "Table") -> "Table":
    import ibis

    persons = persons.filter(persons.patient.notnull())
    extra = [name for name in persons.columns if name not in ("patient", "birth", "death", "id")]
    people = workspace.materialise(
        persons.select(
            patient=ibis.row_number().over(order_by=persons.patient).cast("int32"),
            id=persons.patient,
            birth=persons.birth.cast("date"),
            death=persons.death.cast("date"),
            **{name: persons[name].cast("string") for name in extra},
        ),
        "the table of patients",
    )
    _refuse_nul(people.select(*extra, patient="id"), "the patients")
    repeated = people.count().execute() - people.id.nunique().execute()
    if repeated:
        raise InputError(f"persons has {repeated:,} repeated patients: keep one row per patient.")
    return people


def _codes(workspace: Workspace, source: "Table") -> "Table":
    """The distinct codes, numbered in order, with the number of their rows that have a date."""
    import ibis

    distinct = source.group_by(*CODE).aggregate(rows=source.count(), dated=source.time.count())
    coded = workspace.materialise(distinct, "distinct codes")
    _refuse_nul(coded.select(*CODE), "the events")
    number = ibis.row_number().over(order_by=[coded.code.isnull(), *(coded[name] for name in CODE)])
    number = ibis.ifelse(coded.code.isnull(), ibis.null("int32"), number.cast("int32"))
    return workspace.materialise(coded.mutate(number=number), "normalised codes")


def _refuse_nul(texts: "Table", what: str) -> None:
    """NumPy drops NUL at the end of a text, and would take two texts for the same."""
    counts = {name: texts[name].cast("string").re_search(r"\x00").sum() for name in texts.columns}
    for name, rows in texts.aggregate(**counts).to_pyarrow().to_pylist()[0].items():
        if rows:
            raise InputError(f"column {name} of {what} contains the character NUL; remove it from the data.")


def _events(workspace: Workspace, source: "Table", people: "Table", codes: "Table", shifted: bool) -> "Table":
    import ibis

    rows = source.filter(source.time.notnull())
    rows = rows.inner_join(codes.select("number", *CODE), CODE)
    persons = people.select("id", "birth", "death", position=people.patient)
    rows = rows.inner_join(persons, rows.patient == persons.id)
    day, tomorrow = rows.time.cast("date"), date.today() + timedelta(days=1)
    implausible = (
        ibis.ifelse(day < rows.birth, BEFORE_BIRTH, 0)
        + ibis.ifelse(day > rows.death, AFTER_DEATH, 0)
        + (0 if shifted else ibis.ifelse(day >= tomorrow, IN_FUTURE, 0))
    )
    narrow = rows.select(
        patient=rows.position,
        time=rows.time,
        encounter=encounter_number(rows.visit),
        code=rows.number,
        implausible=implausible.cast("int8"),
    )
    distinct = narrow.group_by("patient", "time", "encounter", "code").aggregate(
        implausible=narrow.implausible.max(), copies=narrow.count()
    )
    return workspace.materialise(distinct, "normalised events")


def _with_visits(
    workspace: Workspace,
    events: "Table",
    encounters: "Table | None",
    requested: str | None,
    place_hours: float | None,
) -> tuple["Table", str, Placed | None]:
    """The events with the column `visit`, the unit of visits, and how events came to their encounters."""
    unit = visit_unit(requested)
    if unit not in (None, ENCOUNTER):
        return events.mutate(visit=visit_number(unit, events.time, events.encounter)), unit, None
    counts = events.aggregate(own=events.encounter.count(), rows=events.count()).to_pyarrow().to_pylist()[0]
    placed = Placed(counts["own"], by_day=counts["rows"] - counts["own"])
    filled = events.mutate(placed=events.encounter)
    if place_hours is not None and placed.by_day and (placed.own or encounters is not None):
        filled, placed = place(workspace, events, intervals(events, encounters), place_hours)
    if unit is None and 2 * placed.in_encounters < max(1, counts["rows"]):
        days = events.mutate(visit=visit_number(DAY, events.time, events.encounter))
        return days, DAY, placed if encounters is not None or placed.own else None
    visits = filled.mutate(visit=visit_number(ENCOUNTER, filled.time, filled.placed)).drop("placed")
    return visits, ENCOUNTER, placed


def _count_unusable(source: "Table", people: "Table", events: "Table", unit: str) -> tuple[int, int]:
    """The numbers of patients whom persons does not list, and of visits that have only unusable events."""
    seen = events.select("patient", "visit").distinct()
    persons = people.select("id", position=people.patient)
    rows = source.left_join(persons, source.patient == persons.id)
    rows = rows.filter(rows.time.isnull() | rows.code.isnull() | rows.position.isnull())
    visit = visit_number(unit, rows.time, encounter_number(rows.visit))
    unused = rows.select("patient", patient_number=rows.position, visit=visit).distinct()
    visits = unused.filter(unused.visit.notnull(), unused.patient.notnull())
    visits = visits.anti_join(seen, [visits.patient_number == seen.patient, visits.visit == seen.visit])
    unlisted = unused.filter(unused.patient_number.isnull())
    return int(unlisted.patient.nunique().execute()), int(visits.count().execute())


def _code_table(codes: "Table", events: "Table", names: "Table | None") -> "pa.Table":
    """The codes as a table in memory, with their names and their number of events of listed patients."""
    import ibis

    used = events.group_by("code").aggregate(events=events.count())
    used = used.select("events", used_code=used.code)
    listed = codes.filter(codes.number.notnull()).left_join(used, codes.number == used.used_code)
    name = ibis.null("string")
    if names is not None:
        named = names.mutate(vocabulary=names.vocabulary.fill_null(""))
        named = named.group_by("vocabulary", "code").aggregate(name=named.name.min())
        named = named.select("name", named_vocabulary=named.vocabulary, named_code=named.code)
        listed = listed.left_join(
            named, [listed.vocabulary == named.named_vocabulary, listed.code == named.named_code]
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
    """The rows of listed patients, with the patient number in place of the id."""
    if table is None:
        return None
    persons = people.select("id", position=people.patient)
    rows = table.inner_join(persons, table.patient == persons.id)
    others = [column for column in table.columns if column != "patient"]
    return workspace.materialise(rows.select(*others, patient=rows.position), f"normalised {name}")


def _encounters(workspace: Workspace, visits: "Table | None", people: "Table") -> "Table | None":
    """patient, encounter, time, end_time of the encounters that the source lists."""
    if visits is None:
        return None
    rows = _numbered(
        workspace, conform(visits, ("patient", "visit", "time", "end_time")), people, "encounters"
    )
    assert rows is not None
    rows = rows.mutate(encounter=encounter_number(rows.visit))
    return workspace.materialise(
        rows.group_by("patient", "encounter").aggregate(time=rows.time.min(), end_time=rows.end_time.max()),
        "normalised visits",
    )


def visit_unit(requested: str | None) -> str | None:
    """The requested unit; None for encounters where most events are in one, else days."""
    if requested is not None and requested not in VISITS and durations.parse(requested) is None:
        raise InputError(f"visit = {requested!r} is unknown; use one of {', '.join(VISITS)}, or hours (6h).")
    return requested


def encounter_number(visit: "Value") -> "Value":
    """Hash an encounter id of the source to 62 bits; null without one.

    Two encounters of one patient collide with a probability below one in 10^12.
    """
    import ibis

    return ibis.ifelse(visit.isnull(), ibis.null("int64"), visit.hash() & HASH_BITS)


def visit_number(unit: str, time: "Value", encounter: "Value") -> "Value":
    """The visit of an event within its patient; those by time are numbered in order of time.

    Weeks begin on Monday; durations such as "6h" are counted from midnight, or from zero for times that are not dates.
    """
    import ibis

    if unit not in VISITS:
        return blocks(unit, time, ibis.literal(ORIGIN, type="timestamp"))
    day = time.cast("date").epoch_days().cast("int64")
    if unit == ENCOUNTER:
        return encounter.coalesce(day - BELOW_ALL_HASHES)
    if unit == MONTH:
        return time.year().cast("int64") * 12 + time.month()
    if unit == WEEK:
        return ((day + 3) / 7).floor().cast("int64")  # 1 January 1970 was a Thursday
    return day


def blocks(unit: str, time: "Value", start: "Value") -> "Value":
    """The number of whole durations, such as "6h", between a start and a time."""
    size = durations.known(unit).minutes * 60_000_000
    return (time.delta(start, unit="microsecond") / size).floor().cast("int64")
