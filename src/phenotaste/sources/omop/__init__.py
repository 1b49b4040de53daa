"""OMOP CDM 5.3 and 5.4: a DuckDB file, a folder of Parquet or CSV, or a PostgreSQL database."""

from pathlib import Path

from phenotaste.errors import InputError
from phenotaste.sources.omop.backends import open_cdm, redacted
from phenotaste.sources.omop.cdm_schema import ATC_CLASSES
from phenotaste.sources.omop.events import SOURCE, EventOptions, events, visits
from phenotaste.sources.omop.facts import facts
from phenotaste.sources.omop.persons import labels, periods, persons, population
from phenotaste.sources.omop.vocabulary import index_codes
from phenotaste.sources.records import DIAGNOSIS, KINDS, MEDICATION, Records
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
    codes: str = "standard",
    source_vocabulary: str | None = None,
    drugs: str = "auto",
    condition_level: int | None = None,
    kinds: tuple[str, ...] = (DIAGNOSIS, MEDICATION),
    cohort_table: str | None = None,
    cohort_id: int | None = None,
    index_concepts: Path | None = None,
) -> Records:
    """Read the records of a CDM.

    Parameters
    ----------
    location : a DuckDB file, a folder of Parquet or CSV files, or a postgresql:// address.
    schema : schema with the tables of the CDM.
    codes : "standard" concepts, as OMOP:ID, or "source" codes in their own vocabulary; where the CDM does not state
        it, diagnoses are of `source_vocabulary`. Concept 0 is kept as OMOP:0, and counted as unmapped.
    drugs : one of `omop.DRUGS`. "auto" uses source codes with codes="source"; otherwise exposures rolled up to
        ingredients where the vocabulary allows it, else eras, else exposures.
    condition_level : roll conditions up to their ancestors this number of levels below "Clinical finding".
    kinds : any of "diagnosis", "medication", "procedure".
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
    options = EventOptions(codes, drugs, condition_level, tuple(kinds), source_vocabulary)
    with translate_errors(redacted(location)), open_cdm(workspace, location, schema) as cdm:
        index = () if index_concepts is None else index_codes(cdm, index_concepts, codes)
        selected = population(cdm, cohort_table, cohort_id)
        listed, birth_notes = persons(cdm, selected)
        coded, names, event_notes = events(cdm, selected, options)
        coded, encounters, visit_notes = visits(cdm, selected, coded)
        return Records(
            events=coded,
            persons=listed,
            facts=facts(cdm, selected),
            visits=encounters,
            periods=periods(cdm, selected),
            labels=labels(cdm, selected),
            names=names,
            index_codes=index,
            notes=(*birth_notes, *event_notes, *visit_notes),
        )


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
