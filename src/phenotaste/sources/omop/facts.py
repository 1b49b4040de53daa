"""Facts that change over time: smoking and alcohol from observation, body-mass index from measurement."""

from typing import TYPE_CHECKING, NamedTuple

from phenotaste.sources.omop.cdm import CdmBackend, event_time
from phenotaste.sources.omop.cdm_schema import CONCEPT, MEASUREMENT, OBSERVATION
from phenotaste.sources.omop.persons import Population
from phenotaste.sources.omop.vocabulary import concepts
from phenotaste.sources.records import ALCOHOL, BMI, FACTS, SMOKING

if TYPE_CHECKING:
    from ibis import Table, Value


class FactConcept(NamedTuple):
    """A concept that records a fact, by id where it is certain, else by its code in the concept table."""

    fact: str
    vocabulary: str
    code: str
    concept: int | None = None
    implied: str | None = None  # the value that the concept implies; None: the value is recorded with it


FACT_CONCEPTS = (
    FactConcept(SMOKING, "LOINC", "72166-2", 43054909),  # tobacco smoking status
    FactConcept(SMOKING, "LOINC", "11367-0"),  # history of tobacco use
    FactConcept(SMOKING, "SNOMED", "365981007", 4275495),  # tobacco smoking behaviour
    FactConcept(SMOKING, "SNOMED", "266919005", 4144272, "no"),  # never smoked tobacco
    FactConcept(SMOKING, "SNOMED", "8392000", 4222303, "no"),  # non-smoker
    FactConcept(SMOKING, "SNOMED", "8517006", 4310250, "quit"),  # ex-smoker
    FactConcept(SMOKING, "SNOMED", "77176002", 4298794, "yes"),  # smoker
    FactConcept(SMOKING, "SNOMED", "449868002", None, "yes"),  # smokes tobacco daily
    FactConcept(ALCOHOL, "LOINC", "11331-6"),  # history of alcohol use
    FactConcept(ALCOHOL, "SNOMED", "228273003"),  # finding relating to drinking
    FactConcept(ALCOHOL, "SNOMED", "228274009", None, "no"),  # lifetime non-drinker
    FactConcept(ALCOHOL, "SNOMED", "783261004", None, "no"),  # lifetime non-drinker of alcohol
    FactConcept(ALCOHOL, "SNOMED", "105542008", None, "no"),  # current non-drinker
    FactConcept(ALCOHOL, "SNOMED", "82581004", None, "quit"),  # ex-drinker
    FactConcept(ALCOHOL, "SNOMED", "219006", None, "yes"),  # current drinker
    FactConcept(BMI, "LOINC", "39156-5", 3038553),
    FactConcept(BMI, "SNOMED", "60621009", 4245997),
)

# Patterns of answers such as "Former smoker", "Never smoker", "Current every day smoker"; the first match counts.
UNKNOWN = r"unknown|not asked|declined|no information|no matching concept"
QUIT = r"\b(former|ex|quit|past|stopped|previous)\b"
NO = r"\b(no|never|non|none|not|denies|abstinent)\b"
YES = (
    r"\b(yes|current|smoker|smokes|drinker|drinks|daily|every|some|light|moderate|heavy|occasional|social)\b"
)


def facts(cdm: CdmBackend, population: Population) -> "Table | None":
    """The facts table of Records; None where neither table exists."""
    import ibis

    parts = [
        table for table in (_smoking_alcohol(cdm, population), _bmi(cdm, population)) if table is not None
    ]
    return ibis.union(*parts).select(*FACTS) if parts else None


def _smoking_alcohol(cdm: CdmBackend, population: Population) -> "Table | None":
    import ibis

    raw = cdm.table(OBSERVATION)
    if raw is None:
        return None
    concepts_by_id = _fact_concepts(cdm, (SMOKING, ALCOHOL))
    selected = population.restrict(raw.filter(raw.observation_concept_id.isin(list(concepts_by_id))))
    rows = cdm.workspace.materialise(cdm.fetch(selected, "omop_observation"), "omop_smoking_alcohol")
    names = {number: concept.fact for number, concept in concepts_by_id.items()}
    implied = {number: concept.implied for number, concept in concepts_by_id.items() if concept.implied}
    answer = _with_text(cdm, rows)
    rows = answer.mutate(
        patient=population.patient(answer.person_id),
        time=event_time(answer, OBSERVATION, "observation_date", "observation_datetime").cast("timestamp"),
        name=answer.observation_concept_id.cases(*names.items(), else_=ibis.null("string")),
        value=ibis.coalesce(
            answer.observation_concept_id.cases(*implied.items(), else_=ibis.null("string")),
            _classify(answer.text),
        ),
        number=ibis.null("float64"),
    )
    return rows.filter(rows.value.notnull()).select(*FACTS)


def _bmi(cdm: CdmBackend, population: Population) -> "Table | None":
    import ibis

    raw = cdm.table(MEASUREMENT)
    if raw is None:
        return None
    concepts_by_id = _fact_concepts(cdm, (BMI,))
    selected = population.restrict(
        raw.filter(raw.measurement_concept_id.isin(list(concepts_by_id)) & (raw.value_as_number > 0))
    )
    rows = cdm.fetch(selected, "omop_measurement")
    return rows.select(
        patient=population.patient(rows.person_id),
        time=event_time(rows, MEASUREMENT, "measurement_date", "measurement_datetime").cast("timestamp"),
        name=ibis.literal(BMI),
        value=ibis.null("string"),
        number=rows.value_as_number,
    )


def _fact_concepts(cdm: CdmBackend, facts: tuple[str, ...]) -> dict[int, FactConcept]:
    """The concepts that record these facts, by concept id."""
    chosen = [concept for concept in FACT_CONCEPTS if concept.fact in facts]
    concepts_by_id = {concept.concept: concept for concept in chosen if concept.concept is not None}
    table = cdm.vocabulary.table(CONCEPT)
    if table is not None:
        coded = table.filter(table.concept_code.isin([concept.code for concept in chosen]))
        rows = cdm.vocabulary.fetch(
            coded.select("concept_id", "vocabulary_id", "concept_code"), "omop_fact_concepts"
        ).to_pyarrow()
        by_code = {(concept.vocabulary, concept.code): concept for concept in chosen}
        for row in rows.to_pylist():
            concept = by_code.get((row["vocabulary_id"], row["concept_code"]))
            if concept is not None:
                concepts_by_id[row["concept_id"]] = concept
    return concepts_by_id


def _with_text(cdm: CdmBackend, rows: "Table") -> "Table":
    """Add `text`: the name of the value's concept, or the value as text, in lower case."""
    import ibis

    texts = [rows[c] for c in ("value_as_string", "value_source_value") if c in rows.columns]
    rows = rows.mutate(value_text=ibis.coalesce(*texts, ibis.null("string")))
    names = None
    if "value_as_concept_id" in rows.columns:
        names = concepts(cdm, rows.select(id="value_as_concept_id").distinct(), "omop_answers")
    if names is None:
        return rows.mutate(text=rows.value_text.lower())
    named = names.filter(names.concept_id != 0).select(answer="concept_id", value_name="concept_name")
    joined = rows.left_join(named, rows.value_as_concept_id == named.answer)
    return joined.mutate(text=ibis.coalesce(joined.value_name, joined.value_text).lower())


def _classify(text: "Value") -> "Value":
    """no, quit or yes where a pattern matches; null for unknown answers; other answers unchanged."""
    import ibis

    return ibis.cases(
        (text.re_search(UNKNOWN), ibis.null("string")),
        (text.re_search(QUIT), "quit"),
        (text.re_search(NO), "no"),
        (text.re_search(YES), "yes"),
        else_=text,
    )
