"""CMS claims as DE-SynPUF has them: every sample that lies in a folder, under the native names or similar ones."""

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.records import (
    DIAGNOSIS,
    EVENTS,
    FACTS,
    ICD9CM,
    MEDICATION,
    NDC,
    PERIODS,
    PERSONS,
    PROCEDURE,
    VISITS,
    Records,
)
from phenotaste.sources.shaping import patients_of, shaped, sound_rows, union, with_strangers
from phenotaste.sources.workspace import Workspace, refusing

if TYPE_CHECKING:
    from ibis import Table

CLAIMS = ("inpatient", "outpatient", "carrier")
BENEFICIARY, PRESCRIPTION = "beneficiary", "prescription"
# Words in a file's name, in lower case; the first that is found decides.
WORDS = (
    ("beneficiary", BENEFICIARY),
    ("inpatient", "inpatient"),
    ("outpatient", "outpatient"),
    ("carrier", "carrier"),
    ("prescription", PRESCRIPTION),
    ("pde", PRESCRIPTION),
)
TITLES = {
    "inpatient": "inpatient claims",
    "outpatient": "outpatient claims",
    "carrier": "carrier claims",
    PRESCRIPTION: "prescription drug events",
}

PATIENT, CLAIM, FROM = "DESYNPUF_ID", "CLM_ID", "CLM_FROM_DT"
DIAGNOSES = (
    "ADMTNG_ICD9_DGNS_CD",
    *(f"ICD9_DGNS_CD_{n}" for n in range(1, 11)),
    *(f"LINE_ICD9_DGNS_CD_{n}" for n in range(1, 14)),
)
PROCEDURES = tuple(f"ICD9_PRCDR_CD_{n}" for n in range(1, 7))
ICD9PROC = "ICD9Proc"
NO_CODE = "OTHER"  # stands in the second segment of a claim
DISPENSED, DRUG = "SRVC_DT", "PROD_SRVC_ID"

YEAR, BIRTH, DEATH = "YEAR", "BENE_BIRTH_DT", "BENE_DEATH_DT"
SEX, RACE, ESRD = "BENE_SEX_IDENT_CD", "BENE_RACE_CD", "BENE_ESRD_IND"
FLAGS = (
    "SP_ALZHDMTA",
    "SP_CHF",
    "SP_CHRNKIDN",
    "SP_CNCR",
    "SP_COPD",
    "SP_DEPRESSN",
    "SP_DIABETES",
    "SP_ISCHMCHT",
    "SP_OSTEOPRS",
    "SP_RA_OA",
    "SP_STRKETIA",
)
SEXES = {"1": "male", "2": "female"}
RACES = {"1": "white", "2": "black", "3": "other", "5": "hispanic"}
ANSWERS = {"1": "yes", "2": "no", "Y": "yes", "0": "no"}  # ESRD has Y and 0, the other flags 1 and 2


def read(workspace: Workspace, folder: Path, *, claims: Sequence[str] = CLAIMS) -> Records:
    """Events of the claims asked for and of drugs dispensed, and what the yearly summaries say of each beneficiary.

    A claim's events happen on its first day. A diagnosis that a claim names twice, as the reason for admission
    and again among the others, is one event. Flags are known from the end of the year that they summarise.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste.sources import synpuf
    >>> from phenotaste.sources.workspace import Workspace
    >>> Path("synpuf").mkdir()
    >>> claims = "DESYNPUF_ID,CLM_ID,CLM_FROM_DT,ICD9_DGNS_CD_1\\nA,21,20080816,25000\\n"
    >>> size = Path("synpuf/DE1_0_2008_to_2010_Outpatient_Claims_Sample_1.csv").write_text(claims)
    >>> with Workspace() as workspace:
    ...     records = synpuf.read(workspace, Path("synpuf"))
    ...     records.events.select("patient", "vocabulary", "code").to_pandas().to_numpy().tolist()
    [['A', 'ICD9CM', '25000']]
    """
    files = files_by_kind(folder, claims)
    notes: list[str] = []
    tables, events = [], []
    for kind in CLAIMS:
        if kind in files:
            tables.append(read_claims(workspace, files[kind], TITLES[kind]))
            events += claim_events(tables[-1])
    if PRESCRIPTION in files:
        events.append(drug_events(workspace, files[PRESCRIPTION]))
    happened = union(events)
    visits = union(
        table.select(*VISITS).filter(table.visit.notnull(), table.time.notnull()) for table in tables
    )
    visits = visits.group_by("patient", "visit").aggregate(time=visits.time.min())
    if BENEFICIARY not in files:
        notes.append("There is no beneficiary summary: age, sex, race and chronic conditions are not known.")
        return Records(happened, shaped(patients_of(happened), PERSONS), visits=visits, notes=tuple(notes))
    summaries = read_summaries(workspace, files[BENEFICIARY], notes)
    latest = latest_year(summaries)
    persons = with_strangers(workspace, persons_of(summaries), happened, "the beneficiary summary", notes)
    return Records(
        happened,
        persons,
        facts_of(summaries),
        visits=visits,
        periods=periods_of(summaries, visits),
        as_of=None if latest is None else date(latest, 12, 31),
        notes=tuple(notes),
    )


def files_by_kind(folder: Path, claims: Sequence[str]) -> dict[str, list[Path]]:
    """What each file holds, by its name. Of x.csv and x.csv.gz one is taken: they are the same file."""
    for kind in claims:
        if kind not in CLAIMS:
            raise InputError(f"{kind} is no kind of claims; choose among: {', '.join(CLAIMS)}.")
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the one that holds the SynPUF files.")
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.iterdir()):
        name = file.name.lower()
        if file.is_file() and name.endswith(typed_tables.CSV + typed_tables.PARQUET):
            held = next((held for word, held in WORDS if word in name), "")
            if held in (BENEFICIARY, PRESCRIPTION, *claims):
                found.setdefault(held, {}).setdefault(name.removesuffix(".gz"), file)
    if not any(kind in found for kind in claims):
        raise InputError(
            f"{folder} holds no claims: no CSV file has {' or '.join(claims)} in its name; check the folder."
        )
    return {kind: list(files.values()) for kind, files in found.items()}


def read_claims(workspace: Workspace, files: Sequence[Path], title: str) -> "Table":
    """patient, visit, time, diagnoses and procedures of each claim; the last two are arrays."""
    import ibis

    kinds = {PATIENT: "id", CLAIM: "id", FROM: "date"} | dict.fromkeys([*DIAGNOSES, *PROCEDURES], "code")
    table = typed_tables.load(
        workspace, files, title, kinds, required=(PATIENT, CLAIM, FROM, "ICD9_DGNS_CD_1")
    )
    diagnoses = [table[name].nullif(NO_CODE) for name in DIAGNOSES if name in table.columns]
    procedures = [table[name].nullif(NO_CODE) for name in PROCEDURES if name in table.columns]
    return table.select(
        patient=table[PATIENT],
        visit=table[CLAIM],
        time=table[FROM].cast("timestamp"),
        diagnoses=ibis.array(diagnoses).unique(),
        procedures=ibis.array(procedures or [ibis.null("string")]),
    )


def claim_events(claims: "Table") -> list["Table"]:
    """Unnested rather than a union over the columns, which would read the claims once for each of them."""
    lists = (("diagnoses", DIAGNOSIS, ICD9CM), ("procedures", PROCEDURE, ICD9PROC))
    events = []
    for column, kind, vocabulary in lists:
        rows = claims.select("patient", "time", "visit", code=claims[column].unnest())
        events.append(shaped(rows.filter(rows.code.notnull()), EVENTS, kind=kind, vocabulary=vocabulary))
    return events


def drug_events(workspace: Workspace, files: Sequence[Path]) -> "Table":
    title = TITLES[PRESCRIPTION]
    kinds = {PATIENT: "id", DISPENSED: "time", DRUG: "code"}
    table = typed_tables.load(workspace, files, title, kinds, required=(PATIENT, DISPENSED, DRUG))
    return shaped(
        table,
        EVENTS,
        patient=table[PATIENT],
        time=table[DISPENSED],
        code=table[DRUG],
        vocabulary=NDC,
        kind=MEDICATION,
    )


def read_summaries(workspace: Workspace, files: Sequence[Path], notes: list[str]) -> "Table":
    """A row for each beneficiary and year. The year is a column, or else stands in the file's name."""
    import ibis

    title = "the beneficiary summary"
    kinds = {PATIENT: "id", YEAR: "integer", BIRTH: "date", DEATH: "date"}
    kinds |= dict.fromkeys([SEX, RACE, ESRD, *FLAGS], "id")  # 1, or 1.0 where some value is missing
    parts = []
    for file in files:
        table = typed_tables.load(workspace, file, title, kinds, required=(PATIENT, BIRTH, SEX))
        if YEAR not in table.columns:
            table = table.mutate(**{YEAR: ibis.literal(year_in(file), "int64")})
        absent = {name: ibis.null("date" if kinds[name] == "date" else "string") for name in kinds}
        parts.append(table.mutate(**{name: absent[name] for name in kinds if name not in table.columns}))
    summaries = union(part.select(*kinds) for part in parts)
    summaries = sound_rows(summaries, title, (PATIENT, YEAR), notes)
    return summaries.rename(patient=PATIENT, year=YEAR)


def latest_year(summaries: "Table") -> int | None:
    with refusing("the beneficiary summary"):
        years = summaries.aggregate(first=summaries.year.min(), last=summaries.year.max())
        first, last = years.to_pyarrow().to_pylist()[0].values()
    if last is not None and not 1900 <= first <= last <= 2100:
        raise InputError(
            f"column {YEAR} of the beneficiary summary holds numbers that are no years; correct them."
        )
    return last


def year_in(file: Path) -> int:
    years = set(re.findall(r"(?<!\d)(?:19|20)\d\d(?!\d)", file.name))
    if len(years) != 1:
        raise InputError(
            f"{file.name} has neither a column {YEAR} nor one year in its name; name it as CMS does, "
            "DE1_0_2008_Beneficiary_Summary_File_Sample_1.csv."
        )
    return int(years.pop())


def persons_of(summaries: "Table") -> "Table":
    """One row for each beneficiary, by the latest year in which a fact is known."""
    rows = summaries.group_by("patient").aggregate(
        birth=summaries[BIRTH].argmax(summaries.year),
        death=summaries[DEATH].min(),
        sex=summaries[SEX].argmax(summaries.year),
        race=summaries[RACE].argmax(summaries.year),
    )
    return shaped(
        rows,
        PERSONS,
        sex=rows.sex.cases(*SEXES.items(), else_=None),
        race=rows.race.cases(*RACES.items(), else_=None),
    )


def periods_of(summaries: "Table", visits: "Table") -> "Table":
    """From the first year with a summary to the end of the last one, or to a later claim: a folder may lack years."""
    import ibis

    years = summaries.group_by("patient").aggregate(first=summaries.year.min(), last=summaries.year.max())
    claims = visits.group_by("patient").aggregate(last_claim=visits.time.max().date())
    rows = years.left_join(claims, "patient")
    closing = ibis.date(rows["last"].cast("int32"), 12, 31)
    return shaped(
        rows,
        PERIODS,
        start=ibis.date(rows["first"].cast("int32"), 1, 1),
        end=ibis.greatest(closing, rows.last_claim.coalesce(closing)),
    )


def facts_of(summaries: "Table") -> "Table":
    """Chronic conditions, from the last day of the year that they are stated for: esrd, sp_chf, ..."""
    import ibis

    ends = ibis.date(summaries.year.cast("int32"), 12, 31).cast("timestamp")
    named = {ESRD: "esrd"} | {flag: flag.lower() for flag in FLAGS}
    answers = [
        shaped(
            summaries,
            FACTS,
            time=ends,
            name=name,
            value=summaries[column].cases(*ANSWERS.items(), else_=None),
        )
        for column, name in named.items()
    ]
    facts = union(answers)
    return facts.filter(facts.value.notnull())
