"""OMOP CDM 5.3 and 5.4: a DuckDB file, a folder of Parquet or CSV, or a PostgreSQL database."""

from pathlib import Path

from phenotaste.errors import InputError
from phenotaste.sources.omop.cdm_schema import ATC_CLASSES
from phenotaste.sources.omop.events import SOURCE, Wish, events, visits
from phenotaste.sources.omop.facts import facts
from phenotaste.sources.omop.location import opened, redacted
from phenotaste.sources.omop.persons import periods, persons
from phenotaste.sources.omop.population import labels, population
from phenotaste.sources.omop.vocabulary import index_codes
from phenotaste.sources.records import DIAGNOSIS, KINDS, MEDICATION, Records
from phenotaste.sources.workspace import Workspace, refusing

CODES = ("standard", SOURCE)
"""What `codes` may be."""

DRUGS = ("auto", "ingredient", *ATC_CLASSES, "era", "exposure")
"""What `drugs` may be."""

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
    """The records of a CDM.

    Parameters
    ----------
    location : a DuckDB file, a folder of Parquet or CSV files, or a postgresql:// address.
    schema : of the database, where the tables of the CDM are.
    codes : "standard" concepts, written OMOP:ID, or "source" codes under their own vocabulary; where the CDM does
        not know it, diagnoses are of `source_vocabulary`. Concept 0 stays as OMOP:0, to be counted as unmapped.
    drugs : of `omop.DRUGS`. "auto" is source codes with source codes; else exposures rolled up to ingredients where
        the vocabulary allows it, else eras, else exposures.
    condition_level : conditions become their ancestors that lie so many levels below "Clinical finding".
    kinds : of "diagnosis", "medication", "procedure".
    cohort_table, cohort_id : a cohort table with a number limits the records to its subjects and labels them.
    index_concepts : a file with a concept set, as ATLAS exports it, whose first event is the index.

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
    wish = Wish(codes, drugs, condition_level, tuple(kinds), source_vocabulary)
    with refusing(redacted(location)), opened(workspace, location, schema) as cdm:
        index = () if index_concepts is None else index_codes(cdm, index_concepts, codes)
        who = population(cdm, cohort_table, cohort_id)
        known, guesses = persons(cdm, who)
        held, names, choices = events(cdm, who, wish)
        held, encounters, said = visits(cdm, who, held)
        return Records(
            events=held,
            persons=known,
            facts=facts(cdm, who),
            visits=encounters,
            periods=periods(cdm, who),
            labels=labels(cdm, who),
            names=names,
            index_codes=index,
            notes=(*guesses, *choices, *said),
        )


def _check(
    codes: str, drugs: str, level: int | None, kinds: tuple[str, ...], index_concepts: Path | None
) -> None:
    for value, known, what in ((codes, CODES, "codes"), (drugs, DRUGS, "drugs")):
        if value not in known:
            raise InputError(f"{what} is none of {', '.join(known)}; choose one.")
    if not kinds or any(kind not in KINDS for kind in kinds):
        raise InputError(f"kinds must be among {', '.join(KINDS)}; choose at least one.")
    if level is None:
        return
    if level < 1:
        raise InputError(
            "the level of conditions is counted from 1, below Clinical finding; give a larger one."
        )
    if codes == SOURCE:
        raise InputError(
            "a level of conditions needs standard concepts; leave the level or the source codes out."
        )
    if index_concepts is not None:
        raise InputError(
            "conditions that are rolled up to a level cannot be told apart by a concept set; leave one of them out."
        )
