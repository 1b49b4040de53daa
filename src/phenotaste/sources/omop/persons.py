"""Patients: the selected population, birth, death, demographics in words, and observation periods."""

from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources.omop.cdm import CdmBackend, column_or_null
from phenotaste.sources.omop.cdm_schema import COHORT, DEATH, PERIOD, PERSON, WELL_KNOWN
from phenotaste.sources.omop.vocabulary import concepts

if TYPE_CHECKING:
    from ibis import Table, Value

WORDS = {"sex": "gender", "race": "race", "ethnicity": "ethnicity"}
LETTERS = {"m": "male", "f": "female"}  # of gender_source_value
INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"


def persons(cdm: CdmBackend, population: "Population") -> tuple["Table", list[str]]:
    """The persons table of Records, and notes on imputed dates of birth."""
    raw = cdm.table(PERSON)
    assert raw is not None  # a CDM without persons is refused when it is opened
    table = cdm.workspace.materialise(cdm.fetch(population.restrict(raw), "omop_person"), "omop_persons")
    repeated = table.count().to_pyarrow().as_py() - table.person_id.nunique().to_pyarrow().as_py()
    if repeated:
        raise InputError(
            f"person has {repeated:,} rows whose person_id is missing or repeated; correct them."
        )
    named = _with_demographics(cdm, table)
    selected = named.select(
        patient=population.patient(named.person_id),
        birth=_birth(named),
        **{word: named[word] for word in WORDS},
    )
    died = _deaths(cdm, population)
    joined = selected.left_join(died, selected.patient == died.dead)
    order = ["patient", "birth", "death", "sex", "race", "ethnicity"]
    # The final select closes the join: Ibis would otherwise extend it, and fail when other tables join it.
    return joined.drop("dead").select(*order), _birth_notes(table)


def periods(cdm: CdmBackend, population: "Population") -> "Table | None":
    """Observation periods."""
    raw = cdm.table(PERIOD)
    if raw is None:
        return None
    table = cdm.fetch(population.restrict(raw), "omop_periods")
    return table.select(
        patient=population.patient(table.person_id),
        start="observation_period_start_date",
        end="observation_period_end_date",
    )


def _birth(table: "Table") -> "Value":
    """birth_datetime, else the parts of the date, with the first of the month or 1 July where parts are missing."""
    import ibis

    day = column_or_null(table, "birth_datetime", "date")
    year, month, of_month = (
        column_or_null(table, f"{part}_of_birth", "int64").cast("string") for part in ("year", "month", "day")
    )
    written = year.lpad(4, "0") + "-"
    full = (written + month.lpad(2, "0") + "-" + of_month.lpad(2, "0")).try_cast("date")
    first = (written + month.lpad(2, "0") + "-01").try_cast("date")
    return ibis.coalesce(day, full, first, (written + "07-01").try_cast("date"))


def _birth_notes(table: "Table") -> list[str]:
    known = column_or_null(table, "birth_datetime", "date").notnull()
    month = column_or_null(table, "month_of_birth", "int64").notnull()
    day = column_or_null(table, "day_of_birth", "int64").notnull()
    year = column_or_null(table, "year_of_birth", "int64").notnull()
    counts = (
        table.aggregate(
            year=(~known & year & ~month).sum(),
            month=(~known & year & month & ~day).sum(),
        )
        .to_pyarrow()
        .to_pylist()[0]
    )
    notes = []
    if counts["year"]:
        notes.append(f"{counts['year']:,} persons have only a year of birth: 1 July is assumed.")
    if counts["month"]:
        notes.append(f"{counts['month']:,} persons have no day of birth: the first of the month is assumed.")
    return notes


def _deaths(cdm: CdmBackend, population: "Population") -> "Table":
    """The first date of death of each patient."""
    import ibis

    raw = cdm.table(DEATH)
    if raw is None:
        kind = "int64" if population.integer_ids else "string"
        return empty_table({"dead": kind, "death": "date"})
    table = cdm.fetch(population.restrict(raw), "omop_death")
    date = ibis.coalesce(
        column_or_null(table, "death_date", "date"),
        column_or_null(table, "death_datetime", "timestamp").cast("date"),
    )
    return (
        table.select(dead=population.patient(table.person_id), death=date)
        .group_by("dead")
        .aggregate(death=lambda t: t.death.min())
    )


def _with_demographics(cdm: CdmBackend, table: "Table") -> "Table":
    """Add sex, race and ethnicity: the name of the concept, or the source value where there is no concept."""
    import ibis

    used = _concept_names(
        cdm, [table[c] for c in (f"{w}_concept_id" for w in WORDS.values()) if c in table.columns]
    )
    for word, column in WORDS.items():
        concept = column_or_null(table, f"{column}_concept_id", "int64").nullif(0)
        source_value = column_or_null(table, f"{column}_source_value", "string").lower()
        if word == "sex":
            source_value = source_value.cases(*LETTERS.items(), else_=source_value)
        table = table.mutate(concept_=concept, source_value_=source_value)
        names = used.rename(f"{word}_{{name}}")
        joined = table.left_join(names, table.concept_ == names[f"{word}_concept_id_"])
        name = joined[f"{word}_concept_name_"].lower()
        table = joined.mutate(
            **{
                word: ibis.coalesce(
                    joined.concept_.cases(*WELL_KNOWN.items(), else_=name), name, joined.source_value_
                )
            }
        ).drop("concept_", "source_value_", *names.columns)
    return table


def _concept_names(cdm: CdmBackend, columns: "list[Value]") -> "Table":
    """concept_id_, concept_name_ of the concepts in these columns of persons."""
    import ibis

    none = empty_table({"concept_id_": "int64", "concept_name_": "string"})
    if not columns:
        return none
    ids = ibis.union(*(c.name("id").as_table() for c in columns), distinct=True)
    found = concepts(cdm, ids, "omop_person_concepts")
    if found is None:
        return none
    return found.select(concept_id_="concept_id", concept_name_="concept_name")


def empty_table(columns: dict[str, str]) -> "Table":
    """A table without rows, with these columns and types."""
    import ibis

    schema = ibis.schema(columns)
    return ibis.memtable(schema.to_pyarrow().empty_table(), schema=schema)


class Population(NamedTuple):
    """The subjects of `cohort`, or all persons; `integer_ids`: every person_id is an integer, possibly as text."""

    integer_ids: bool
    cohort: "Table | None" = None

    def restrict(self, table: "Table", key: str = "person_id") -> "Table":
        """The rows of these persons, as an expression over the same backend."""
        if self.cohort is None:
            return table
        ids, subjects = table[key], self.cohort.subject_id
        if ids.type().is_string() != subjects.type().is_string():
            ids, subjects = ids.cast("string"), subjects.cast("string")
        return table.filter(ids.isin(subjects))

    def patient(self, column: "Value") -> "Value":
        """A person_id in the type that all tables of Records share; for tables of the workspace."""
        if not self.integer_ids:
            return column.cast("string")
        return column.try_cast("int64") if column.type().is_string() else column.cast("int64")


def population(cdm: CdmBackend, cohort_table: str | None, cohort_id: int | None) -> Population:
    """All persons, or the subjects of one cohort definition."""
    person = cdm.table(PERSON)
    assert person is not None
    integer_ids = True
    if person.person_id.type().is_string():
        ids = cdm.fetch(person.select("person_id"), "omop_person_ids")
        integer_ids = ids.filter(~ids.person_id.re_search(INTEGER)).count().to_pyarrow().as_py() == 0
    if cohort_table is None and cohort_id is None:
        return Population(integer_ids)
    if cohort_table is None or cohort_id is None:
        raise InputError("a cohort needs both its table and its definition id; give both.")
    return Population(integer_ids, _cohort(cdm, cohort_table, cohort_id))


def labels(cdm: CdmBackend, population: Population) -> "Table | None":
    """The dates at which subjects entered the cohort, each as a case."""
    import ibis

    if population.cohort is None:
        return None
    table = cdm.fetch(population.cohort, "omop_cohort")
    return table.select(
        patient=population.patient(table.subject_id),
        time=table.cohort_start_date.cast("timestamp"),
        value=ibis.literal(1, "int64"),
    ).distinct()


def _cohort(cdm: CdmBackend, name: str, number: int) -> "Table":
    schema, _, table = name.rpartition(".")
    cohort = None
    for candidate in cdm.schemas():
        if candidate.lower() == (schema or cdm.schema or "").lower():
            cohort = cdm.read_table(candidate, table, COHORT)
            if cohort is not None:
                break
    if cohort is None:
        raise InputError(
            f"{cdm.label} has no readable cohort table of that name; "
            "give it as schema.table, such as results.cohort."
        )
    rows = cohort.filter(cohort.cohort_definition_id == number)
    size = cdm.fetch(rows.aggregate(rows=rows.count()), "omop_cohort_size").to_pyarrow().column(0)[0].as_py()
    if not size:
        raise InputError(f"the cohort table has no subjects with definition id {number}; check the id.")
    return rows.select("subject_id", "cohort_start_date")
