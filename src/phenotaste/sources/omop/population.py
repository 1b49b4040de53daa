"""Whose records are read: everybody's, or those of an ATLAS cohort, and how a patient's id is written."""

from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources.omop.cdm import Place
from phenotaste.sources.omop.cdm_schema import COHORT, PERSON

if TYPE_CHECKING:
    from ibis import Table, Value

WHOLE_NUMBER = r"^(0|-?[1-9][0-9]{0,17})$"


class Population(NamedTuple):
    """`whole`: every person_id is a whole number, also where a file or a column of text holds it."""

    whole: bool
    cohort: "Table | None" = None

    def only(self, table: "Table", key: str = "person_id") -> "Table":
        """The rows of these persons, still where the table lives."""
        if self.cohort is None:
            return table
        mine, theirs = table[key], self.cohort.subject_id
        if mine.type().is_string() != theirs.type().is_string():
            mine, theirs = mine.cast("string"), theirs.cast("string")
        return table.filter(mine.isin(theirs))

    def patient(self, column: "Value") -> "Value":
        """A person_id in the one type that all tables of Records share; for tables of the workspace."""
        if not self.whole:
            return column.cast("string")
        return column.try_cast("int64") if column.type().is_string() else column.cast("int64")


def population(cdm: Place, cohort_table: str | None, cohort_id: int | None) -> Population:
    """Everybody, or the subjects of one cohort definition."""
    person = cdm.table(PERSON)
    assert person is not None
    whole = True
    if person.person_id.type().is_string():
        ids = cdm.fetch(person.select("person_id"), "omop_person_ids")
        whole = ids.filter(~ids.person_id.re_search(WHOLE_NUMBER)).count().to_pyarrow().as_py() == 0
    if cohort_table is None and cohort_id is None:
        return Population(whole)
    if cohort_table is None or cohort_id is None:
        raise InputError("a cohort needs both its table and the number of its definition; give both.")
    return Population(whole, _cohort(cdm, cohort_table, cohort_id))


def labels(cdm: Place, who: Population) -> "Table | None":
    """The dates at which subjects entered the cohort, each a case."""
    import ibis

    if who.cohort is None:
        return None
    table = cdm.fetch(who.cohort, "omop_cohort")
    return table.select(
        patient=who.patient(table.subject_id),
        time=table.cohort_start_date.cast("timestamp"),
        value=ibis.literal(1, "int64"),
    ).distinct()


def _cohort(cdm: Place, name: str, number: int) -> "Table":
    schema, _, table = name.rpartition(".")
    found = None
    for place in cdm.schemas():
        if place.lower() == (schema or cdm.schema or "").lower():
            found = cdm.named(place, table, COHORT)
            if found is not None:
                break
    if found is None:
        raise InputError(
            f"{cdm.where} has no cohort table of that name that can be read; "
            "give it as schema.table, such as results.cohort."
        )
    rows = found.filter(found.cohort_definition_id == number)
    held = cdm.fetch(rows.aggregate(rows=rows.count()), "omop_cohort_size").to_pyarrow().column(0)[0].as_py()
    if not held:
        raise InputError(f"the cohort table has no subjects under definition {number}; check the number.")
    return rows.select("subject_id", "cohort_start_date")
