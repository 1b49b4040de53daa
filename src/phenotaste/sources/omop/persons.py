"""Who the patients are: birth, death, sex, race and ethnicity in words, and when they were under observation."""

from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources.omop.cdm import Place, or_null
from phenotaste.sources.omop.cdm_schema import DEATH, PERIOD, PERSON, WELL_KNOWN
from phenotaste.sources.omop.vocabulary import concepts

if TYPE_CHECKING:
    from ibis import Table, Value

    from phenotaste.sources.omop.population import Population

WORDS = {"sex": "gender", "race": "race", "ethnicity": "ethnicity"}
LETTERS = {"m": "male", "f": "female"}  # of gender_source_value


def persons(cdm: Place, population: "Population") -> tuple["Table", list[str]]:
    """The persons table of Records, and a sentence where births had to be guessed."""
    raw = cdm.table(PERSON)
    assert raw is not None  # a place without persons is refused when it is opened
    held = cdm.workspace.keep(cdm.fetch(population.only(raw), "omop_person"), "omop_persons")
    twice = held.count().to_pyarrow().as_py() - held.person_id.nunique().to_pyarrow().as_py()
    if twice:
        raise InputError(f"person has {twice:,} rows whose person_id is missing or repeated; correct them.")
    named = _named(cdm, held)
    table = named.select(
        patient=population.patient(named.person_id),
        birth=_birth(named),
        **{word: named[word] for word in WORDS},
    )
    died = _deaths(cdm, population)
    joined = table.left_join(died, table.patient == died.dead)
    order = ["patient", "birth", "death", "sex", "race", "ethnicity"]
    # Ibis goes on with a join that is not closed, and loses its way when others join it.
    return joined.drop("dead").select(*order), _guessed(held)


def periods(cdm: Place, population: "Population") -> "Table | None":
    """When a patient was under observation."""
    raw = cdm.table(PERIOD)
    if raw is None:
        return None
    table = cdm.fetch(population.only(raw), "omop_periods")
    return table.select(
        patient=population.patient(table.person_id),
        start="observation_period_start_date",
        end="observation_period_end_date",
    )


def _birth(table: "Table") -> "Value":
    """birth_datetime, else the parts of the date: without a day the first of the month, without a month mid-year."""
    import ibis

    day = or_null(table, "birth_datetime", "date")
    year, month, of_month = (
        or_null(table, f"{part}_of_birth", "int64").cast("string") for part in ("year", "month", "day")
    )
    written = year.lpad(4, "0") + "-"
    full = (written + month.lpad(2, "0") + "-" + of_month.lpad(2, "0")).try_cast("date")
    first = (written + month.lpad(2, "0") + "-01").try_cast("date")
    return ibis.coalesce(day, full, first, (written + "07-01").try_cast("date"))


def _guessed(table: "Table") -> list[str]:
    known = or_null(table, "birth_datetime", "date").notnull()
    month = or_null(table, "month_of_birth", "int64").notnull()
    day = or_null(table, "day_of_birth", "int64").notnull()
    year = or_null(table, "year_of_birth", "int64").notnull()
    counts = (
        table.aggregate(
            year=(~known & year & ~month).sum(),
            month=(~known & year & month & ~day).sum(),
        )
        .to_pyarrow()
        .to_pylist()[0]
    )
    said = []
    if counts["year"]:
        said.append(f"{counts['year']:,} persons have only a year of birth: taken as its 1 July.")
    if counts["month"]:
        said.append(f"{counts['month']:,} persons have no day of birth: taken as the first of the month.")
    return said


def _deaths(cdm: Place, population: "Population") -> "Table":
    """The first date of death of each patient."""
    import ibis

    raw = cdm.table(DEATH)
    if raw is None:
        kind = "int64" if population.whole else "string"
        return nothing({"dead": kind, "death": "date"})
    table = cdm.fetch(population.only(raw), "omop_death")
    date = ibis.coalesce(
        or_null(table, "death_date", "date"), or_null(table, "death_datetime", "timestamp").cast("date")
    )
    return (
        table.select(dead=population.patient(table.person_id), death=date)
        .group_by("dead")
        .aggregate(death=lambda t: t.death.min())
    )


def _named(cdm: Place, table: "Table") -> "Table":
    """Adds sex, race and ethnicity: the concept's name, or what the source wrote where there is no concept."""
    import ibis

    used = _used(cdm, [table[c] for c in (f"{w}_concept_id" for w in WORDS.values()) if c in table.columns])
    for word, column in WORDS.items():
        concept = or_null(table, f"{column}_concept_id", "int64").nullif(0)
        written = or_null(table, f"{column}_source_value", "string").lower()
        if word == "sex":
            written = written.cases(*LETTERS.items(), else_=written)
        table = table.mutate(concept_=concept, written_=written)
        names = used.rename(f"{word}_{{name}}")
        joined = table.left_join(names, table.concept_ == names[f"{word}_concept_id_"])
        said = joined[f"{word}_concept_name_"].lower()
        table = joined.mutate(
            **{
                word: ibis.coalesce(
                    joined.concept_.cases(*WELL_KNOWN.items(), else_=said), said, joined.written_
                )
            }
        ).drop("concept_", "written_", *names.columns)
    return table


def _used(cdm: Place, columns: "list[Value]") -> "Table":
    """concept_id_, concept_name_ of the concepts in some columns of persons."""
    import ibis

    none = nothing({"concept_id_": "int64", "concept_name_": "string"})
    if not columns:
        return none
    ids = ibis.union(*(c.name("id").as_table() for c in columns), distinct=True)
    found = concepts(cdm, ids, "omop_person_concepts")
    if found is None:
        return none
    return found.select(concept_id_="concept_id", concept_name_="concept_name")


def nothing(columns: dict[str, str]) -> "Table":
    """A table without rows, of the columns and types given."""
    import ibis

    schema = ibis.schema(columns)
    return ibis.memtable(schema.to_pyarrow().empty_table(), schema=schema)
