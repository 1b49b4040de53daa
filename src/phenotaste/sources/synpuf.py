"""CMS claims in the format of DE-SynPUF: all samples of a folder, under the original file names or similar ones."""

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
    add_unlisted_patients,
    complete_rows,
    conform,
    distinct_patients,
    union,
)
from phenotaste.sources.workspace import Workspace, translate_errors

if TYPE_CHECKING:
    from ibis import Table

CLAIMS = ("inpatient", "outpatient", "carrier")
BENEFICIARY, PRESCRIPTION = "beneficiary", "prescription"
# Words in a file name, in lower case; the first match counts.
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
NO_CODE = "OTHER"  # in the second segment of a claim
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
    """Read events of the requested claims and of dispensed drugs, and the yearly beneficiary summaries.

    Events are dated to the first day of their claim. A diagnosis repeated within a claim, as the reason for admission
    and among the others, is one event. Flags are known from the end of the year that they summarise.

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
    event_table = union(events)
    visits = union(
        table.select(*VISITS).filter(table.visit.notnull(), table.time.notnull()) for table in tables
    )
    visits = visits.group_by("patient", "visit").aggregate(time=visits.time.min())
    if BENEFICIARY not in files:
        notes.append("There is no beneficiary summary: age, sex, race and chronic conditions are unknown.")
        return Records(
            event_table, conform(distinct_patients(event_table), PERSONS), visits=visits, notes=tuple(notes)
        )
    summaries = read_summaries(workspace, files[BENEFICIARY], notes)
    latest = latest_year(summaries)
    persons = add_unlisted_patients(
        workspace, persons_of(summaries), event_table, "the beneficiary summary", notes
    )
    return Records(
        event_table,
        persons,
        facts_of(summaries),
        visits=visits,
        periods=periods_of(summaries, visits),
        as_of=None if latest is None else date(latest, 12, 31),
        notes=tuple(notes),
    )


def files_by_kind(folder: Path, claims: Sequence[str]) -> dict[str, list[Path]]:
    """The files of each kind, by name; of x.csv and x.csv.gz, copies of the same file, one is read."""
    for kind in claims:
        if kind not in CLAIMS:
            raise InputError(f"{kind} is not a kind of claims; choose from: {', '.join(CLAIMS)}.")
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of the SynPUF files.")
    files: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.iterdir()):
        name = file.name.lower()
        if file.is_file() and name.endswith(typed_tables.CSV + typed_tables.PARQUET):
            kind = next((kind for word, kind in WORDS if word in name), "")
            if kind in (BENEFICIARY, PRESCRIPTION, *claims):
                files.setdefault(kind, {}).setdefault(name.removesuffix(".gz"), file)
    if not any(kind in files for kind in claims):
        raise InputError(
            f"{folder} contains no claims: no CSV file has {' or '.join(claims)} in its name; check the folder."
        )
    return {kind: list(by_name.values()) for kind, by_name in files.items()}


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
    """Events of claims, unnested: a union over the columns would read the claims once for each column."""
    lists = (("diagnoses", DIAGNOSIS, ICD9CM), ("procedures", PROCEDURE, ICD9PROC))
    events = []
    for column, kind, vocabulary in lists:
        rows = claims.select("patient", "time", "visit", code=claims[column].unnest())
        events.append(conform(rows.filter(rows.code.notnull()), EVENTS, kind=kind, vocabulary=vocabulary))
    return events


def drug_events(workspace: Workspace, files: Sequence[Path]) -> "Table":
    title = TITLES[PRESCRIPTION]
    kinds = {PATIENT: "id", DISPENSED: "time", DRUG: "code"}
    table = typed_tables.load(workspace, files, title, kinds, required=(PATIENT, DISPENSED, DRUG))
    return conform(
        table,
        EVENTS,
        patient=table[PATIENT],
        time=table[DISPENSED],
        code=table[DRUG],
        vocabulary=NDC,
        kind=MEDICATION,
    )


def read_summaries(workspace: Workspace, files: Sequence[Path], notes: list[str]) -> "Table":
    """A row for each beneficiary and year; the year is a column, or else part of the file name."""
    import ibis

    title = "the beneficiary summary"
    kinds = {PATIENT: "id", YEAR: "integer", BIRTH: "date", DEATH: "date"}
    kinds |= dict.fromkeys([SEX, RACE, ESRD, *FLAGS], "id")  # 1, or 1.0 where some value is missing
    parts = []
    for file in files:
        table = typed_tables.load(workspace, file, title, kinds, (PATIENT, BIRTH, SEX), (BIRTH, DEATH), notes)
        if YEAR not in table.columns:
            table = table.mutate(**{YEAR: ibis.literal(year_from_name(file), "int64")})
        absent = {name: ibis.null("date" if kinds[name] == "date" else "string") for name in kinds}
        parts.append(table.mutate(**{name: absent[name] for name in kinds if name not in table.columns}))
    summaries = union(part.select(*kinds) for part in parts)
    summaries = complete_rows(summaries, title, (PATIENT, YEAR), notes)
    return summaries.rename(patient=PATIENT, year=YEAR)


def latest_year(summaries: "Table") -> int | None:
    with translate_errors("the beneficiary summary"):
        years = summaries.aggregate(first=summaries.year.min(), last=summaries.year.max())
        first, last = years.to_pyarrow().to_pylist()[0].values()
    if last is not None and not 1900 <= first <= last <= 2100:
        raise InputError(
            f"column {YEAR} of the beneficiary summary has values that are not years; correct them."
        )
    return last


def year_from_name(file: Path) -> int:
    years = set(re.findall(r"(?<!\d)(?:19|20)\d\d(?!\d)", file.name))
    if len(years) != 1:
        raise InputError(
            f"{file.name} has neither a column {YEAR} nor a single year in its name; name it as CMS does, "
            "DE1_0_2008_Beneficiary_Summary_File_Sample_1.csv."
        )
    return int(years.pop())


def persons_of(summaries: "Table") -> "Table":
    """A row for each beneficiary, from the latest year with a value."""
    rows = summaries.group_by("patient").aggregate(
        birth=summaries[BIRTH].argmax(summaries.year),
        death=summaries[DEATH].min(),
        sex=summaries[SEX].argmax(summaries.year),
        race=summaries[RACE].argmax(summaries.year),
    )
    return conform(
        rows,
        PERSONS,
        sex=rows.sex.cases(*SEXES.items(), else_=None),
        race=rows.race.cases(*RACES.items(), else_=None),
    )


def periods_of(summaries: "Table", visits: "Table") -> "Table":
    """From the first year with a summary to the end of the last one or to a later claim, since years may be missing."""
    import ibis

    years = summaries.group_by("patient").aggregate(first=summaries.year.min(), last=summaries.year.max())
    claims = visits.group_by("patient").aggregate(last_claim=visits.time.max().date())
    rows = years.left_join(claims, "patient")
    closing = ibis.date(rows["last"].cast("int32"), 12, 31)
    return conform(
        rows,
        PERIODS,
        start=ibis.date(rows["first"].cast("int32"), 1, 1),
        end=ibis.greatest(closing, rows.last_claim.coalesce(closing)),
    )


def facts_of(summaries: "Table") -> "Table":
    """Chronic conditions (esrd, sp_chf, ...), known from the last day of the year of the summary."""
    import ibis

    ends = ibis.date(summaries.year.cast("int32"), 12, 31).cast("timestamp")
    named = {ESRD: "esrd"} | {flag: flag.lower() for flag in FLAGS}
    answers = [
        conform(
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
