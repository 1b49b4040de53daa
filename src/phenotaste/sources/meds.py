"""A MEDS 0.4 dataset: data in Parquet, metadata on codes and splits, and labels in separate files.

MEDS does not specify the format of codes. These formats are recognised:

    ICD9CM/428.0   ICD10CM//I50.9   RxNorm/617312   ATC//C09AA      vocabulary, code (as OMOP names them)
    DIAGNOSIS//ICD//9//4280         PROCEDURE//ICD//10//5A1D70Z     kind, ICD, version, code (MIMIC-IV)
    CONDITION//SNOMED//84114007                                     kind, vocabulary, code
    MEDICATION//START//Heparin      MEDICATION//Heparin//Administered//63323026201
    INFUSION_START//221906          PROCEDURE//START//225792        kind, local code
    LAB//50912//mg/dL               LOINC//2160-0                   measurements, the last part is their unit
    HOSPITAL_ADMISSION//EMERGENCY   HOSPITAL_DISCHARGE//HOME        start and end of an encounter
    GENDER//F   Race/5   ETHNICITY//HISPANIC                        static facts

NDC codes are completed to 11 digits: those that passed through numbers have lost leading zeros.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.coding import ICD_VERSIONS, ndc_of_text
from phenotaste.sources.records import (
    ATC,
    CODED_KINDS,
    DIAGNOSIS,
    EVENTS,
    ICD9CM,
    ICD10CM,
    MEASUREMENT,
    MEASUREMENTS,
    MEDICATION,
    NAMES,
    NDC,
    PERSONS,
    PROCEDURE,
    RXNORM,
    SNOMED,
    Records,
    conform,
    normalise_sex,
)
from phenotaste.sources.workspace import Workspace, translate_errors, unique_name

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table

DATA, CODES, SPLITS = "data", "metadata/codes.parquet", "metadata/subject_splits.parquet"
BIRTH, DEATH = "MEDS_BIRTH", "MEDS_DEATH"
SUBJECT, TIME, CODE, NUMBER = "subject_id", "time", "code", "numeric_value"
VISIT_NAMES = ("visit_id", "visit_occurrence_id", "hadm_id")  # encounter columns of extensions
END = "end"  # of a visit, in data converted from OMOP
DATA_KINDS = {SUBJECT: "integer", TIME: "time", CODE: "code", NUMBER: "number", END: "time"}
DRUGS = ("name", "ndc")
"""Values of `drugs`."""

DESCRIPTION, SPLIT = "description", "split"
LABEL_TIME, LABEL = "prediction_time", "boolean_value"
MAX_STATIC_FACTS = 200  # more indicates values that are part of the code

LOCAL = "MEDS"  # vocabulary of local codes
KINDS = {
    "DIAGNOSIS": DIAGNOSIS,
    "CONDITION": DIAGNOSIS,
    "DX": DIAGNOSIS,
    "MEDICATION": MEDICATION,
    "DRUG": MEDICATION,
    "RX": MEDICATION,
    "INFUSION": MEDICATION,
    "INFUSION_START": MEDICATION,
    "PROCEDURE": PROCEDURE,
    "PX": PROCEDURE,
}
VOCABULARIES = {  # and the kind of their codes; SNOMED codes are assumed to be diagnoses
    "ICD9": (ICD9CM, DIAGNOSIS),
    "ICD9CM": (ICD9CM, DIAGNOSIS),
    "ICD10": (ICD10CM, DIAGNOSIS),
    "ICD10CM": (ICD10CM, DIAGNOSIS),
    "SNOMED": (SNOMED, DIAGNOSIS),
    "SNOMEDCT": (SNOMED, DIAGNOSIS),
    "RXNORM": (RXNORM, MEDICATION),
    "RXNORM EXTENSION": ("RxNorm Extension", MEDICATION),
    "NDC": (NDC, MEDICATION),
    "ATC": (ATC, MEDICATION),
    "ICD9PROC": ("ICD9Proc", PROCEDURE),
    "ICD10PCS": ("ICD10PCS", PROCEDURE),
    "CPT": ("CPT4", PROCEDURE),
    "CPT4": ("CPT4", PROCEDURE),
    "HCPCS": ("HCPCS", PROCEDURE),
}
LOINC = "LOINC"
MEASURED = ("LAB", "LABS", "LABORATORY", "MEASUREMENT", "OBSERVATION", "VITAL", "VITALS")
ADMISSIONS = ("HOSPITAL_ADMISSION", "ADMISSION", "VISIT", "ENCOUNTER")
DISCHARGES = ("HOSPITAL_DISCHARGE", "DISCHARGE")
TRAILING_NDC = r"\d{7,11}(\.0)?"  # at the end of the code of a named drug
STARTS = ("START", "STARTED")
STOPS = ("STOP", "STOPPED", "END")  # redundant with the start
GIVEN = ("ADMINISTERED", "APPLIED", "CONFIRMED", "STARTED")
UNKNOWN = ("", "UNK", "UNKNOWN")
DEMOGRAPHICS = {"GENDER": "sex", "SEX": "sex", "RACE": "race", "ETHNICITY": "ethnicity"}


def read(
    workspace: Workspace,
    folder: Path,
    *,
    labels: Path | None = None,
    split: str | None = None,
    kinds: Sequence[str] = CODED_KINDS,
    drugs: str = "name",
) -> Records:
    """Read events whose codes are diagnoses, medications or procedures; codes without a time are static facts.

    Parameters
    ----------
    labels : a file or folder of MEDS labels.
    split : a split of subject_splits.parquet.
    kinds : with "measurement", other codes that have numeric values are measurements.
    drugs : one of `meds.DRUGS`: what identifies a drug whose code has both a name and an NDC code. There are many NDC
        codes, of packages, for one drug.

    Examples
    --------
    >>> from pathlib import Path
    >>> import pandas as pd
    >>> from phenotaste.sources import meds
    >>> from phenotaste.sources.workspace import Workspace
    >>> Path("meds/data").mkdir(parents=True)
    >>> data = {"subject_id": [1], "time": pd.to_datetime(["2020-01-01"]), "code": ["ICD10CM//I10"]}
    >>> pd.DataFrame(data).to_parquet("meds/data/0.parquet")
    >>> with Workspace() as workspace:
    ...     records = meds.read(workspace, Path("meds"))
    ...     records.events.select("patient", "vocabulary", "code").to_pandas().to_numpy().tolist()
    [[1, 'ICD10CM', 'I10']]
    """
    if drugs not in DRUGS:
        raise InputError(f"drugs must be one of {', '.join(DRUGS)}.")
    data = read_data(workspace, folder)
    if split is not None:
        data = data.semi_join(split_subjects(workspace, folder, split), "patient")
    notes: list[str] = []
    with translate_errors("data"):
        codes = (
            data.group_by(CODE)
            .aggregate(rows=data.count(), timeless=data.time.isnull().sum(), numbers=data[NUMBER].count())
            .to_pyarrow()
        )
    parse = partial(parse_event, drugs=drugs, measured=MEASUREMENT in kinds)
    meanings = workspace.ingest(event_codes(codes, parse, notes).to_reader(), unique_name())
    timed = data.filter(data.time.notnull()).inner_join(meanings, CODE)
    rows = timed.select(*EVENTS[:3], "kind", "vocabulary", "unit", code=timed.plain, value=timed[NUMBER])
    measured = rows.filter((rows.kind == MEASUREMENT) & rows.value.notnull())
    return Records(
        rows.filter(rows.kind != MEASUREMENT).select(*EVENTS),
        read_persons(workspace, data, codes),
        visits=read_visits(workspace, data),
        labels=None if labels is None else read_labels(workspace, labels),
        names=read_names(workspace, folder / CODES, meanings),
        notes=tuple(notes),
        measurements=conform(measured, MEASUREMENTS) if MEASUREMENT in kinds else None,
    )


def read_data(workspace: Workspace, folder: Path) -> "Table":
    """patient, time, code, number, visit, end."""
    import ibis

    if not (folder / DATA).is_dir():
        raise InputError(f"{folder} has no folder {DATA}; give the root of a MEDS dataset.")
    files = sorted((folder / DATA).rglob("*.parquet"))
    if not files:
        raise InputError(f"{folder / DATA} contains no Parquet file; give the root of a MEDS dataset.")
    table = typed_tables.read_file(workspace, files, "data")
    visit_names = [name for name in VISIT_NAMES if name in table.columns][:1]
    ends = [END] if END in table.columns and table[END].type().is_timestamp() else []
    table = typed_tables.select_columns(table, "data", (SUBJECT, TIME, CODE), (NUMBER, *ends, *visit_names))
    table = typed_tables.cast_columns(table, "data", DATA_KINDS | dict.fromkeys(visit_names, "id"))
    return table.select(
        TIME,
        CODE,
        patient=table[SUBJECT],
        visit=table[visit_names[0]] if visit_names else ibis.null("string"),
        **{NUMBER: table[NUMBER] if NUMBER in table.columns else ibis.null("float64")},
        **{END: table[END] if ends else ibis.null("timestamp")},
    ).filter(table[SUBJECT].notnull() & table[CODE].notnull())


def split_subjects(workspace: Workspace, folder: Path, split: str) -> "Table":
    title = "subject_splits"
    table = typed_tables.load(
        workspace, folder / SPLITS, title, {SUBJECT: "integer", SPLIT: "text"}, required=(SUBJECT, SPLIT)
    )
    with translate_errors(title):
        splits = sorted(filter(None, table.select(SPLIT).distinct().to_pyarrow().column(SPLIT).to_pylist()))
    if split not in splits:
        raise InputError(f"there is no split {split}; the dataset has: {', '.join(splits)}.")
    return table.filter(table[SPLIT] == split).select(patient=SUBJECT).distinct()


def read_visits(workspace: Workspace, data: "Table") -> "Table | None":
    """Encounters from the rows of admissions and discharges; None where they are not identified."""
    known = data.filter(data.visit.notnull() & data.time.notnull())
    head = known[CODE].upper().re_extract(r"^([^/]+)", 1)
    known = known.mutate(starts=head.isin(ADMISSIONS), ends=head.isin(DISCHARGES))
    stated = known.starts.ifelse(known[END], None).coalesce(known.ends.ifelse(known.time, None))
    known = known.mutate(stated=stated)
    stays = known.group_by("patient", "visit").aggregate(
        time=known.time.min(where=known.starts), end_time=known.stated.max()
    )
    with translate_errors("data"):
        stays = workspace.con.create_table(unique_name(), stays.filter(stays.time.notnull()))
        return stays if stays.count().to_pyarrow().as_py() else None


def event_codes(
    codes: "pa.Table", parse: "Callable[[str, bool], ParsedCode | None]", notes: list[str]
) -> "pa.Table":
    """code, kind, vocabulary, plain code and unit of the codes of events; notes count the rows of the others."""
    import pyarrow as pa

    known: dict[str, list[str | None]] = {
        name: [] for name in ("code", "kind", "vocabulary", "plain", "unit")
    }
    other_codes = other_rows = untimed = 0
    for row in codes.to_pylist():
        parsed = parse(row[CODE], row["numbers"] > 0)
        timed = row["rows"] - row["timeless"]
        if parsed is not None:
            for name, text in zip(known, (row[CODE], *parsed), strict=True):
                known[name].append(text)
            untimed += row["timeless"]
        elif timed and row[CODE] not in (BIRTH, DEATH) and static_fact(row[CODE], timeless=False) is None:
            other_codes, other_rows = other_codes + 1, other_rows + timed
    if other_rows:
        notes.append(
            "Measurements whose codes are not diagnoses, medications or procedures (laboratory values, "
            f"admissions and others), ignored: {other_rows:,}, with {other_codes:,} codes."
        )
    if untimed:
        notes.append(f"Diagnoses, medications or procedures without a time, ignored: {untimed:,}.")
    return pa.table(known, schema=pa.schema([(name, pa.string()) for name in known]))


def read_persons(workspace: Workspace, data: "Table", codes: "pa.Table") -> "Table":
    """A row for each subject; of several values of a fact, the alphabetically first is used."""
    import pyarrow as pa

    facts = [(row[CODE], static_fact(row[CODE], row["timeless"] > 0)) for row in codes.to_pylist()]
    known = [(code, *fact) for code, fact in facts if fact is not None and code not in (BIRTH, DEATH)]
    names = sorted({column for _, column, _ in known} - {"patient", "birth", "death"})
    if len(names) > MAX_STATIC_FACTS:
        raise InputError(
            f"data has {len(names):,} different static facts; separate values from names with //, as in GENDER//F."
        )
    fields = [(CODE, pa.string()), ("fact", pa.string()), ("answer", pa.string())]
    table = pa.table(
        [list(column) for column in zip(*known, strict=True)] or [[], [], []], schema=pa.schema(fields)
    )
    joined = data.left_join(workspace.ingest(table.to_reader(), unique_name()), CODE)
    rows = joined.group_by("patient").aggregate(
        birth=joined.time.min(where=joined[CODE] == BIRTH).cast("date"),
        death=joined.time.min(where=joined[CODE] == DEATH).cast("date"),
        **{name: joined.answer.min(where=joined.fact == name) for name in names},
    )
    persons = conform(rows, [*PERSONS, *(name for name in names if name not in PERSONS)])
    with translate_errors("data"):
        return workspace.con.create_table(unique_name(), persons.mutate(sex=normalise_sex(persons.sex)))


def read_names(workspace: Workspace, file: Path, meanings: "Table") -> "Table | None":
    """The descriptions in codes.parquet, which may be absent."""
    if not file.exists():
        return None
    table = typed_tables.load(workspace, file, "codes", {CODE: "code", DESCRIPTION: "text"}, required=(CODE,))
    if DESCRIPTION not in table.columns:
        return None
    named = meanings.inner_join(table.filter(table[DESCRIPTION].notnull()), CODE)
    names = named.select("vocabulary", code=named.plain, name=named[DESCRIPTION])
    return names.group_by("vocabulary", "code").aggregate(name=names.name.min()).select(*NAMES)


def read_labels(workspace: Workspace, path: Path) -> "Table":
    kinds = {SUBJECT: "integer", LABEL_TIME: "time", LABEL: "number"}
    files = typed_tables.list_files(path, "labels")
    table = typed_tables.load(workspace, files, "labels", kinds, required=(SUBJECT, LABEL_TIME, LABEL))
    return table.select(patient=table[SUBJECT], time=table[LABEL_TIME], value=table[LABEL])


class ParsedCode(NamedTuple):
    """The code of an event."""

    kind: str
    vocabulary: str
    code: str
    unit: str | None = None  # of measurements


def split_code(code: str) -> list[str]:
    """The parts between double slashes, or, where there are none, before and after the first slash."""
    parts = code.split("//") if "//" in code else code.split("/", 1)
    return [part.strip() for part in parts]


def parse_event(code: str, has_numbers: bool, *, drugs: str, measured: bool) -> ParsedCode | None:
    """Parse the code of an event or, if requested, of a measurement."""
    parsed = parse_code(code, drugs)
    return parse_measurement(code, has_numbers) if parsed is None and measured else parsed


def parse_measurement(code: str, has_numbers: bool) -> ParsedCode | None:
    """Parse a code that has numeric values; None for those that are not measurements."""
    head, *rest = split_code(code)
    upper = head.upper()
    if not has_numbers or upper in (BIRTH, DEATH, *ADMISSIONS, *DISCHARGES, *KINDS, *DEMOGRAPHICS):
        return None
    if upper == LOINC and rest:
        return ParsedCode(MEASUREMENT, LOINC, rest[0], known_unit(rest[1:]))
    if upper not in MEASURED or not rest:
        return ParsedCode(MEASUREMENT, LOCAL, code)
    if rest[0].upper() == LOINC and len(rest) > 1:
        return ParsedCode(MEASUREMENT, LOINC, rest[1], known_unit(rest[2:]))
    return ParsedCode(MEASUREMENT, LOCAL, rest[0], known_unit(rest[1:]))


def known_unit(parts: list[str]) -> str | None:
    return "//".join(parts) if parts and parts[-1].upper() not in UNKNOWN else None


def parse_code(code: str, drugs: str = "name") -> ParsedCode | None:
    """Parse the code of an event; None for laboratory values, admissions and other kinds."""
    head, *rest = split_code(code)
    if head.upper() in VOCABULARIES:
        vocabulary, kind = VOCABULARIES[head.upper()]
        if not rest or rest[0].upper() in UNKNOWN:
            return None
        return ParsedCode(kind, vocabulary, complete_code(vocabulary, rest[0]))
    kind = KINDS.get(head.upper(), "")
    if not kind or not rest or rest[0].upper() in STOPS:
        return None
    if rest[0].upper() in STARTS:
        rest = rest[1:]
    return parse_after_kind(kind, rest, drugs)


def complete_code(vocabulary: str, code: str) -> str:
    return (ndc_of_text(code) or code) if vocabulary == NDC else code


def parse_after_kind(kind: str, parts: list[str], drugs: str) -> ParsedCode | None:
    """Parse what follows the kind: ICD and its version, a vocabulary, or a local code."""
    upper = [part.upper() for part in parts]
    if len(parts) >= 3 and upper[0] == "ICD" and (kind, upper[1]) in ICD_VERSIONS:
        return ParsedCode(kind, ICD_VERSIONS[kind, upper[1]], parts[2])
    if len(parts) >= 2 and upper[0] in VOCABULARIES:
        vocabulary = VOCABULARIES[upper[0]][0]
        return ParsedCode(kind, vocabulary, complete_code(vocabulary, parts[1]))
    if kind == MEDICATION and any(re.match("NOT |STOPPED|HOLD|HELD|REMOVED", part) for part in upper[1:]):
        return None  # an order that was not given
    left = [part for part in parts if part.upper() not in (*GIVEN, *UNKNOWN)]
    if kind == MEDICATION and len(parts) >= 2 and re.fullmatch(TRAILING_NDC, parts[-1]):
        ndc = ndc_of_text(parts[-1])
        if ndc is not None and (drugs == "ndc" or len(left) == 1):
            return ParsedCode(kind, NDC, ndc)
        left = left[:-1]
    left = [part for part in left if kind != MEDICATION or part.strip("0.")]  # a zero is an unknown NDC code
    return ParsedCode(kind, LOCAL, "//".join(left)) if left else None


def static_fact(code: str, timeless: bool) -> tuple[str, str] | None:
    """The column and value of a static code; demographics count with or without a time."""
    head, *rest = split_code(code)
    column = DEMOGRAPHICS.get(head.upper())
    if column is None and timeless and parse_code(code) is None:
        column = head.lower()
    if column is None:
        return None
    value = "//".join(rest)
    if value.upper() in UNKNOWN:
        return (column, "yes") if not rest else None
    return column, value if column not in DEMOGRAPHICS.values() else value.lower()
