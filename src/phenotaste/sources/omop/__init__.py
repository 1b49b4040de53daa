"""OMOP CDM 5.3 to 5.5: a DuckDB file, a folder of Parquet or CSV, or a PostgreSQL database."""

from collections.abc import Sequence
from pathlib import Path

from phenotaste.errors import InputError
from phenotaste.sources.omop.backends import open_cdm, redacted
from phenotaste.sources.omop.cdm_schema import ATC_CLASSES
from phenotaste.sources.omop.events import SOURCE, EventOptions, events, visits
from phenotaste.sources.omop.facts import facts
from phenotaste.sources.omop.measurements import measurements
from phenotaste.sources.omop.persons import labels, periods, persons, population
from phenotaste.sources.omop.vocabulary import index_codes, known_vocabulary, missing_vocabulary
from phenotaste.sources.records import (
    DIAGNOSIS,
    EVENTS,
    KIND_WORDS,
    KINDS,
    MEASUREMENT,
    MEDICATION,
    Records,
    conform,
    union,
)
from phenotaste.sources.workspace import Workspace, translate_errors

CODES = ("standard", SOURCE)
"""Values of `codes`."""

DRUGS = ("auto", "ingredient", *ATC_CLASSES, "era", "exposure")
"""Values of `drugs`."""

__all__ = ["CODES", "DRUGS", "read", "redacted"]


def read(
    workspace: Workspace,
    location: str,
    *,
    schema: str | None = None,
    vocabulary_schema: str | None = None,
    vocabulary_folder: Path | None = None,
    codes: str = "standard",
    source_vocabulary: str | None = None,
    drugs: str = "auto",
    condition_level: int | None = None,
    kinds: tuple[str, ...] = (DIAGNOSIS, MEDICATION),
    type_concepts: Sequence[str] = (),
    cohort_table: str | None = None,
    cohort_id: int | None = None,
    index_concepts: Path | None = None,
) -> Records:
    """Read the records of a CDM.

    Parameters
    ----------
    location : a DuckDB file, a folder of Parquet or CSV files, or a postgresql:// address.
    schema : schema with the tables of the CDM.
    vocabulary_schema, vocabulary_folder : where the vocabulary tables are, if not in the schema of the CDM: another
        schema, or a folder such as a download from OHDSI's Athena.
    codes : "standard" concepts, as OMOP:ID, or "source" codes in their own vocabulary; where the CDM does not state
        it, diagnoses are of `source_vocabulary`, where "ICD" stands for ICD-9-CM or ICD-10-CM by the form of each
        code. Concept 0 is kept as OMOP:0, and counted as unmapped.
    drugs : one of `omop.DRUGS`. "auto" uses source codes with codes="source"; otherwise exposures rolled up to
        ingredients where the vocabulary allows it, else eras, else exposures.
    condition_level : roll conditions up to their ancestors this number of levels below "Clinical finding".
    kinds : any of "diagnosis", "medication", "procedure", "measurement".
    type_concepts : the type concepts of rows to use, such as "32821", or for one kind "diagnosis=32821".
    cohort_table, cohort_id : a cohort table and definition id; restricts the records to its subjects and labels them.
    index_concepts : a file with a concept set exported from ATLAS, whose first event is the index.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste.sources import omop
    >>> from phenotaste.sources.workspace import Workspace
    >>> Path("cdm").mkdir()
    >>> persons = "person_id,gender_concept_id,year_of_birth,race_concept_id,ethnicity_concept_id\\n1,8532,1950,0,0\\n"
    >>> conditions = "person_id,condition_concept_id,condition_start_date\\n1,316139,2020-01-05\\n"
    >>> sizes = Path("cdm/person.csv").write_text(persons), Path("cdm/condition_occurrence.csv").write_text(conditions)
    >>> with Workspace() as workspace:
    ...     records = omop.read(workspace, "cdm")
    ...     records.events.select("patient", "vocabulary", "code").to_pandas().to_numpy().tolist()
    [[1, 'OMOP', '316139']]
    """
    _check(codes, drugs, condition_level, kinds, index_concepts)
    coded_kinds = tuple(kind for kind in kinds if kind != MEASUREMENT)
    types = types_by_kind(type_concepts)
    with (
        translate_errors(redacted(location)),
        open_cdm(workspace, location, schema, vocabulary_schema, vocabulary_folder) as cdm,
    ):
        if source_vocabulary is not None:
            source_vocabulary = known_vocabulary(cdm, source_vocabulary)
        options = EventOptions(codes, drugs, condition_level, coded_kinds, source_vocabulary, types)
        index = () if index_concepts is None else index_codes(cdm, index_concepts, codes)
        selected = population(cdm, cohort_table, cohort_id)
        listed, birth_notes = persons(cdm, selected)
        coded, names, event_notes = conform(listed.filter(False), EVENTS), None, list[str]()
        if coded_kinds:
            coded, names, event_notes = events(cdm, selected, options)
        coded, encounters, visit_notes = visits(cdm, selected, coded)
        results, result_names, result_notes = None, None, list[str]()
        if MEASUREMENT in kinds:
            results, result_names, result_notes = measurements(
                cdm, selected, codes, types.get(MEASUREMENT, ())
            )
            if results is not None and visit_notes:  # the visits of events are not those of the visit table
                results = conform(results.drop("visit"), results.columns)
            known = [part for part in (names, result_names) if part is not None]
            names = union(known) if known else None
        return Records(
            events=coded,
            persons=listed,
            facts=facts(cdm, selected),
            visits=encounters,
            periods=periods(cdm, selected),
            labels=labels(cdm, selected),
            names=names,
            index_codes=index,
            notes=(*cdm.notes, *birth_notes, *event_notes, *visit_notes, *result_notes),
            measurements=results,
            warnings=tuple(missing_vocabulary(cdm)),
        )


def types_by_kind(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The type concepts of each kind; those without a kind are for all.

    >>> types_by_kind(["diagnosis=32821", "dx=32817"])
    {'diagnosis': (32821, 32817)}
    """
    types: dict[str, tuple[int, ...]] = {}
    for text in given:
        word, _, number = text.rpartition("=")
        kinds = [kind for kind, words in KIND_WORDS.items() if not word or word.strip().lower() in words]
        if not kinds or not number.strip().isdecimal():
            raise InputError(
                f"{text} is not a type concept; write its number, such as 32821, or diagnosis=32821 for one kind."
            )
        types |= {kind: (*types.get(kind, ()), int(number)) for kind in kinds}
    return types


def _check(
    codes: str, drugs: str, level: int | None, kinds: tuple[str, ...], index_concepts: Path | None
) -> None:
    for value, known, what in ((codes, CODES, "codes"), (drugs, DRUGS, "drugs")):
        if value not in known:
            raise InputError(f"{what} must be one of {', '.join(known)}.")
    if not kinds or any(kind not in KINDS for kind in kinds):
        raise InputError(f"kinds must be among {', '.join(KINDS)}; choose at least one.")
    if level is None:
        return
    if level < 1:
        raise InputError("the level of conditions is counted from 1, below Clinical finding; use at least 1.")
    if codes == SOURCE:
        raise InputError("a level of conditions needs standard concepts; omit the level or the source codes.")
    if index_concepts is not None:
        raise InputError(
            "conditions rolled up to a level cannot be matched against a concept set; omit one of them."
        )
