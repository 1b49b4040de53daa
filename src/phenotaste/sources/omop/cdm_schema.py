"""The tables and columns of the OMOP CDM (5.3 to 5.5) that are read, and concepts used by id."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from phenotaste.sources.records import DIAGNOSIS, MEDICATION, PROCEDURE

PERSON, DEATH, VISIT, PERIOD = "person", "death", "visit_occurrence", "observation_period"
CONDITION, DRUG, PROCEDURES = "condition_occurrence", "drug_exposure", "procedure_occurrence"
CONDITION_ERA, DRUG_ERA = "condition_era", "drug_era"
OBSERVATION, MEASUREMENT = "observation", "measurement"
CONCEPT, ANCESTOR, RELATIONSHIP = "concept", "concept_ancestor", "concept_relationship"
VOCABULARY = "vocabulary"
VOCABULARY_TABLES = (CONCEPT, ANCESTOR, RELATIONSHIP, VOCABULARY)
LOCAL = "2b_"  # begins the names of MIMIC's tables of local concepts, whose ids begin at two billion
COHORT = "cohort"


class Columns(NamedTuple):
    """Columns of a table with their types; an id is an integer or text, as in the source."""

    required: Mapping[str, str]
    optional: Mapping[str, str] = MappingProxyType({})


class EventTable(NamedTuple):
    """The columns of an event table; eras have neither a visit, nor a type, nor a source code."""

    name: str
    kind: str
    concept: str
    date: str
    datetime: str | None = None
    source_concept: str | None = None
    source_value: str | None = None
    type: str | None = None


EVENT_TABLES = {
    event.name: event
    for event in (
        EventTable(
            CONDITION,
            DIAGNOSIS,
            "condition_concept_id",
            "condition_start_date",
            "condition_start_datetime",
            "condition_source_concept_id",
            "condition_source_value",
            "condition_type_concept_id",
        ),
        EventTable(
            DRUG,
            MEDICATION,
            "drug_concept_id",
            "drug_exposure_start_date",
            "drug_exposure_start_datetime",
            "drug_source_concept_id",
            "drug_source_value",
            "drug_type_concept_id",
        ),
        EventTable(
            PROCEDURES,
            PROCEDURE,
            "procedure_concept_id",
            "procedure_date",
            "procedure_datetime",
            "procedure_source_concept_id",
            "procedure_source_value",
            "procedure_type_concept_id",
        ),
        EventTable(CONDITION_ERA, DIAGNOSIS, "condition_concept_id", "condition_era_start_date"),
        EventTable(DRUG_ERA, MEDICATION, "drug_concept_id", "drug_era_start_date"),
    )
}


def _event_columns(event: EventTable) -> Columns:
    optional = {event.date: "date", "visit_occurrence_id": "id"}
    optional |= {name: "time" for name in [event.datetime] if name}
    optional |= {name: "integer" for name in [event.source_concept, event.type] if name}
    optional |= {name: "text" for name in [event.source_value] if name}
    return Columns({"person_id": "id", event.concept: "integer"}, optional)


TABLES = {name: _event_columns(event) for name, event in EVENT_TABLES.items()} | {
    PERSON: Columns(
        {"person_id": "id"},
        {
            "birth_datetime": "date",
            "year_of_birth": "integer",
            "month_of_birth": "integer",
            "day_of_birth": "integer",
            "gender_concept_id": "integer",
            "gender_source_value": "text",
            "race_concept_id": "integer",
            "race_source_value": "text",
            "ethnicity_concept_id": "integer",
            "ethnicity_source_value": "text",
        },
    ),
    DEATH: Columns({"person_id": "id"}, {"death_date": "date", "death_datetime": "time"}),
    VISIT: Columns(
        {"visit_occurrence_id": "id", "person_id": "id"},
        {
            "visit_start_date": "date",
            "visit_start_datetime": "time",
            "visit_end_date": "date",
            "visit_end_datetime": "time",
        },
    ),
    PERIOD: Columns(
        {"person_id": "id", "observation_period_start_date": "date", "observation_period_end_date": "date"}
    ),
    OBSERVATION: Columns(
        {"person_id": "id", "observation_concept_id": "integer"},
        {
            "observation_date": "date",
            "observation_datetime": "time",
            "value_as_concept_id": "integer",
            "value_as_string": "text",
            "value_source_value": "text",
        },
    ),
    MEASUREMENT: Columns(
        {"person_id": "id", "measurement_concept_id": "integer", "value_as_number": "number"},
        {
            "measurement_date": "date",
            "measurement_datetime": "time",
            "visit_occurrence_id": "id",
            "range_low": "number",
            "range_high": "number",
            "value_as_concept_id": "integer",
            "unit_concept_id": "integer",
            "unit_source_value": "text",
            "measurement_source_concept_id": "integer",
            "measurement_source_value": "text",
            "measurement_type_concept_id": "integer",
        },
    ),
    CONCEPT: Columns(
        {
            "concept_id": "integer",
            "concept_name": "text",
            "vocabulary_id": "text",
            "concept_class_id": "text",
            "concept_code": "text",
        }
    ),
    ANCESTOR: Columns(
        {
            "ancestor_concept_id": "integer",
            "descendant_concept_id": "integer",
            "min_levels_of_separation": "integer",
        }
    ),
    RELATIONSHIP: Columns(
        {"concept_id_1": "integer", "concept_id_2": "integer", "relationship_id": "text"},
        {"invalid_reason": "text"},
    ),
    VOCABULARY: Columns({"vocabulary_id": "text"}),
    COHORT: Columns({"cohort_definition_id": "integer", "subject_id": "id", "cohort_start_date": "date"}),
}

# A few unusable dates of these columns are missing, and do not refuse the table.
TOLERATED = {PERSON: ("birth_datetime",), DEATH: ("death_date", "death_datetime")}

OMOP = "OMOP"  # vocabulary of codes that are concept ids
UNMAPPED = "0"  # the concept id of unmapped codes
CLINICAL_FINDING = 441840  # the root from which levels of conditions are counted
INGREDIENT_VOCABULARIES = ("RxNorm", "RxNorm Extension")
ATC_CLASSES = {
    "atc1": "ATC 1st",
    "atc2": "ATC 2nd",
    "atc3": "ATC 3rd",
    "atc4": "ATC 4th",
    "atc5": "ATC 5th",
}

# Names used where the concept table is incomplete or missing.
WELL_KNOWN = {
    8507: "male",
    8532: "female",
    8527: "white",
    8516: "black or african american",
    8515: "asian",
    8657: "american indian or alaska native",
    8557: "native hawaiian or other pacific islander",
    38003563: "hispanic or latino",
    38003564: "not hispanic or latino",
}
