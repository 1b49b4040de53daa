"""Facts that may change: smoking and alcohol from observation, body-mass index from measurement."""

from typing import TYPE_CHECKING, NamedTuple

from phenotaste.sources.omop.cdm import Place, day
from phenotaste.sources.omop.cdm_schema import CONCEPT, MEASUREMENT, OBSERVATION
from phenotaste.sources.omop.population import Population
from phenotaste.sources.omop.vocabulary import concepts
from phenotaste.sources.records import ALCOHOL, BMI, FACTS, SMOKING

if TYPE_CHECKING:
    from ibis import Table, Value


class Known(NamedTuple):
    """A concept that tells of a fact: by its number where it is sure, else by its code through `concept`."""

    fact: str
    vocabulary: str
    code: str
    concept: int | None = None
    says: str | None = None  # what the concept itself says; None: its value says it


KNOWN = (
    Known(SMOKING, "LOINC", "72166-2", 43054909),  # tobacco smoking status
    Known(SMOKING, "LOINC", "11367-0"),  # history of tobacco use
    Known(SMOKING, "SNOMED", "365981007", 4275495),  # tobacco smoking behaviour
    Known(SMOKING, "SNOMED", "266919005", 4144272, "no"),  # never smoked tobacco
    Known(SMOKING, "SNOMED", "8392000", 4222303, "no"),  # non-smoker
    Known(SMOKING, "SNOMED", "8517006", 4310250, "quit"),  # ex-smoker
    Known(SMOKING, "SNOMED", "77176002", 4298794, "yes"),  # smoker
    Known(SMOKING, "SNOMED", "449868002", None, "yes"),  # smokes tobacco daily
    Known(ALCOHOL, "LOINC", "11331-6"),  # history of alcohol use
    Known(ALCOHOL, "SNOMED", "228273003"),  # finding relating to drinking
    Known(ALCOHOL, "SNOMED", "228274009", None, "no"),  # lifetime non-drinker
    Known(ALCOHOL, "SNOMED", "783261004", None, "no"),  # lifetime non-drinker of alcohol
    Known(ALCOHOL, "SNOMED", "105542008", None, "no"),  # current non-drinker
    Known(ALCOHOL, "SNOMED", "82581004", None, "quit"),  # ex-drinker
    Known(ALCOHOL, "SNOMED", "219006", None, "yes"),  # current drinker
    Known(BMI, "LOINC", "39156-5", 3038553),
    Known(BMI, "SNOMED", "60621009", 4245997),
)

# A value in words, the first that fits: "Former smoker", "ex-drinker", "Never smoker", "Current every day smoker".
UNKNOWN = r"unknown|not asked|declined|no information|no matching concept"
QUIT = r"\b(former|ex|quit|past|stopped|previous)\b"
NO = r"\b(no|never|non|none|not|denies|abstinent)\b"
YES = (
    r"\b(yes|current|smoker|smokes|drinker|drinks|daily|every|some|light|moderate|heavy|occasional|social)\b"
)


def facts(cdm: Place, who: Population) -> "Table | None":
    """The facts table of Records; None where neither table is there."""
    import ibis

    found = [table for table in (_habits(cdm, who), _bmi(cdm, who)) if table is not None]
    return ibis.union(*found).select(*FACTS) if found else None


def _habits(cdm: Place, who: Population) -> "Table | None":
    import ibis

    raw = cdm.table(OBSERVATION)
    if raw is None:
        return None
    told = _told(cdm, (SMOKING, ALCOHOL))
    wanted = who.only(raw.filter(raw.observation_concept_id.isin(list(told))))
    rows = cdm.workspace.keep(cdm.fetch(wanted, "omop_observation"), "omop_habits")
    names = {number: known.fact for number, known in told.items()}
    says = {number: known.says for number, known in told.items() if known.says}
    answer = _answer(cdm, rows)
    rows = answer.mutate(
        patient=who.patient(answer.person_id),
        time=day(answer, OBSERVATION, "observation_date", "observation_datetime").cast("timestamp"),
        name=answer.observation_concept_id.cases(*names.items(), else_=ibis.null("string")),
        value=ibis.coalesce(
            answer.observation_concept_id.cases(*says.items(), else_=ibis.null("string")),
            _in_a_word(answer.said),
        ),
        number=ibis.null("float64"),
    )
    return rows.filter(rows.value.notnull()).select(*FACTS)


def _bmi(cdm: Place, who: Population) -> "Table | None":
    import ibis

    raw = cdm.table(MEASUREMENT)
    if raw is None:
        return None
    told = _told(cdm, (BMI,))
    wanted = who.only(raw.filter(raw.measurement_concept_id.isin(list(told)) & (raw.value_as_number > 0)))
    rows = cdm.fetch(wanted, "omop_measurement")
    return rows.select(
        patient=who.patient(rows.person_id),
        time=day(rows, MEASUREMENT, "measurement_date", "measurement_datetime").cast("timestamp"),
        name=ibis.literal(BMI),
        value=ibis.null("string"),
        number=rows.value_as_number,
    )


def _told(cdm: Place, wanted: tuple[str, ...]) -> dict[int, Known]:
    """The concepts that tell of these facts, by number."""
    chosen = [known for known in KNOWN if known.fact in wanted]
    told = {known.concept: known for known in chosen if known.concept is not None}
    table = cdm.table(CONCEPT)
    if table is not None:
        coded = table.filter(table.concept_code.isin([known.code for known in chosen]))
        rows = cdm.fetch(
            coded.select("concept_id", "vocabulary_id", "concept_code"), "omop_fact_concepts"
        ).to_pyarrow()
        by_code = {(known.vocabulary, known.code): known for known in chosen}
        for row in rows.to_pylist():
            known = by_code.get((row["vocabulary_id"], row["concept_code"]))
            if known is not None:
                told[row["concept_id"]] = known
    return told


def _answer(cdm: Place, rows: "Table") -> "Table":
    """Adds `said`: the name of the value's concept, or the value as text, in lower case."""
    import ibis

    texts = [rows[c] for c in ("value_as_string", "value_source_value") if c in rows.columns]
    rows = rows.mutate(written=ibis.coalesce(*texts, ibis.null("string")))
    names = None
    if "value_as_concept_id" in rows.columns:
        names = concepts(cdm, rows.select(id="value_as_concept_id").distinct(), "omop_answers")
    if names is None:
        return rows.mutate(said=rows.written.lower())
    named = names.filter(names.concept_id != 0).select(answer="concept_id", called="concept_name")
    joined = rows.left_join(named, rows.value_as_concept_id == named.answer)
    return joined.mutate(said=ibis.coalesce(joined.called, joined.written).lower())


def _in_a_word(said: "Value") -> "Value":
    """no, quit or yes where the words say so; other words as they are; nothing where they say nothing."""
    import ibis

    return ibis.cases(
        (said.re_search(UNKNOWN), ibis.null("string")),
        (said.re_search(QUIT), "quit"),
        (said.re_search(NO), "no"),
        (said.re_search(YES), "yes"),
        else_=said,
    )
