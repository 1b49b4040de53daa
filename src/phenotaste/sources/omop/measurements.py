"""Results of measurements, with the range, unit and interpretation that the measurement table states."""

from typing import TYPE_CHECKING

from phenotaste.sources.omop.cdm import CdmBackend, column_or_null, event_time
from phenotaste.sources.omop.cdm_schema import MEASUREMENT, OMOP, UNMAPPED
from phenotaste.sources.omop.events import of_types
from phenotaste.sources.omop.persons import Population
from phenotaste.sources.omop.vocabulary import concepts
from phenotaste.sources.records import MEASUREMENTS, NAMES

if TYPE_CHECKING:
    from ibis import Table, Value

SOURCE = "source"
# Standard concepts of value_as_concept_id that interpret a result.
INTERPRETATIONS = {4328749: "high", 4267416: "low", 4069590: "normal", 4135493: "abnormal"}
NUMBERS = ("value_as_number", "range_low", "range_high")
CONCEPTS = ("value_as_concept_id", "unit_concept_id", "measurement_source_concept_id")
TEXTS = ("unit_source_value", "measurement_source_value")


def measurements(
    cdm: CdmBackend, population: Population, codes: str, types: tuple[int, ...] = ()
) -> tuple["Table | None", "Table | None", list[str]]:
    """The measurements and the names of their codes; both None, with a note, where the table does not exist."""
    raw = cdm.table(MEASUREMENT)
    if raw is None:
        return None, None, [f"{cdm.label} has no table {MEASUREMENT}; the kind is omitted."]
    raw, notes = population.restrict(raw), list[str]()
    if types:
        raw = of_types(cdm, raw, MEASUREMENT, "measurement_type_concept_id", types, notes)
    rows = _rows(cdm, population, raw)
    rows = _with_concept(cdm, rows, "unit_concept_id", "unit")
    column = "measurement_source_concept_id" if codes == SOURCE else "measurement_concept_id"
    rows = _with_concept(cdm, rows, column, "coded")
    code, vocabulary = _code(rows, codes)
    rows = rows.mutate(
        code=code,
        vocabulary=vocabulary,
        unit=_first(rows.unit_code, rows.unit_source_value, rows.unit_concept_id.nullif(0).cast("string")),
        flag=rows.value_as_concept_id.cases(*INTERPRETATIONS.items(), else_=None),
    ).rename(value="value_as_number", low="range_low", high="range_high")
    rows = cdm.workspace.materialise(rows, "omop measurements")
    named = rows.filter(rows.coded_name.notnull()).select(
        vocabulary=rows.vocabulary, code=rows.code, name=rows.coded_name
    )
    return rows.select(*MEASUREMENTS), named.distinct().select(*NAMES), notes


def _rows(cdm: CdmBackend, population: Population, raw: "Table") -> "Table":
    selected = raw.select(
        person_id="person_id",
        time=event_time(raw, MEASUREMENT, "measurement_date", "measurement_datetime"),
        visit_occurrence_id=column_or_null(raw, "visit_occurrence_id", "string"),
        measurement_concept_id="measurement_concept_id",
        **{name: column_or_null(raw, name, "float64") for name in NUMBERS},
        **{name: column_or_null(raw, name, "int64") for name in CONCEPTS},
        **{name: column_or_null(raw, name, "string") for name in TEXTS},
    )
    table = cdm.fetch(selected, "omop_results")
    return table.mutate(
        patient=population.patient(table.person_id),
        time=table.time.cast("timestamp"),
        visit=table.visit_occurrence_id.cast("string").nullif("0"),
    ).drop("person_id", "visit_occurrence_id")


def _with_concept(cdm: CdmBackend, rows: "Table", column: str, prefix: str) -> "Table":
    """Add code, vocabulary and name of the concepts in a column; null where the CDM does not have them."""
    import ibis

    parts = {"code": "concept_code", "vocabulary": "vocabulary_id", "name": "concept_name"}
    ids = cdm.workspace.materialise(
        rows.select(id=rows[column].nullif(0)).distinct(), f"omop ids of {prefix}"
    )
    found = concepts(cdm, ids, f"omop_concepts_{prefix}")
    if found is None:
        return rows.mutate(**{f"{prefix}_{name}": ibis.null("string") for name in parts})
    found = found.filter(found.concept_id != 0)
    table = found.select(concept_=found.concept_id, **{f"{prefix}_{n}": found[c] for n, c in parts.items()})
    return rows.left_join(table, rows[column] == table.concept_).drop("concept_")


def _code(rows: "Table", codes: str) -> tuple["Value", "Value"]:
    """Code and vocabulary: the concept, else the source value, else the unmapped concept."""
    import ibis

    if codes == SOURCE:
        known, code, vocabulary = rows.coded_code.notnull(), rows.coded_code, rows.coded_vocabulary
    else:
        known = rows.measurement_concept_id.nullif(0).notnull()
        code, vocabulary = rows.measurement_concept_id.cast("string"), ibis.literal(OMOP)
    stated = rows.measurement_source_value.notnull()
    return (
        ibis.cases((known, code), (stated, rows.measurement_source_value), else_=UNMAPPED),
        ibis.cases((known, vocabulary), (stated, SOURCE), else_=OMOP),
    )


def _first(*values: "Value") -> "Value":
    import ibis

    return ibis.coalesce(*values)
