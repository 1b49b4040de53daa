"""A MEDS 0.4 folder: data in Parquet, with its metadata on codes and splits, and labels that lie beside it."""

from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.meds_codes import meaning, static_fact
from phenotaste.sources.records import EVENTS, NAMES, PERSONS, Records
from phenotaste.sources.shaping import plain_sex, shaped
from phenotaste.sources.workspace import Workspace, new_name, refusing

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table

DATA, CODES, SPLITS = "data", "metadata/codes.parquet", "metadata/subject_splits.parquet"
BIRTH, DEATH = "MEDS_BIRTH", "MEDS_DEATH"
SUBJECT, TIME, CODE, NUMBER = "subject_id", "time", "code", "numeric_value"
VISIT_NAMES = ("visit_id", "visit_occurrence_id", "hadm_id")  # what extensions call the encounter
DATA_KINDS = {SUBJECT: "integer", TIME: "time", CODE: "code", NUMBER: "number"}
DESCRIPTION, SPLIT = "description", "split"
LABEL_TIME, LABEL = "prediction_time", "boolean_value"
MOST_COLUMNS = 200  # of static facts; more are no facts but values that somebody wrote into codes


def read(
    workspace: Workspace, folder: Path, *, labels: Path | None = None, split: str | None = None
) -> Records:
    """Events whose codes name a diagnosis, medication or procedure; codes without a time are static facts.

    `labels` is a file or folder of MEDS labels, `split` one of the names in subject_splits.parquet.

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
    data = read_data(workspace, folder)
    if split is not None:
        data = data.semi_join(subjects_of(workspace, folder, split), "patient")
    notes: list[str] = []
    with refusing("data"):
        codes = (
            data.group_by(CODE).aggregate(rows=data.count(), timeless=data.time.isnull().sum()).to_pyarrow()
        )
    meanings = workspace.take(event_codes(codes, notes).to_reader(), new_name())
    happened = data.filter(data.time.notnull()).inner_join(meanings, CODE)
    events = shaped(happened, EVENTS, code=happened.plain, value=happened[NUMBER])
    return Records(
        events,
        persons_of(workspace, data, codes),
        labels=None if labels is None else read_labels(workspace, labels),
        names=read_names(workspace, folder / CODES, meanings),
        notes=tuple(notes),
    )


def read_data(workspace: Workspace, folder: Path) -> "Table":
    """patient, time, code, number, visit."""
    import ibis

    if not (folder / DATA).is_dir():
        raise InputError(f"{folder} has no folder {DATA}; give the root of a MEDS data set.")
    files = sorted((folder / DATA).rglob("*.parquet"))
    if not files:
        raise InputError(f"{folder / DATA} holds no Parquet file; give the root of a MEDS data set.")
    table = typed_tables.read_file(workspace, files, "data")
    visit_names = [name for name in VISIT_NAMES if name in table.columns][:1]
    table = typed_tables.columns(table, "data", (SUBJECT, TIME, CODE), (NUMBER, *visit_names))
    table = typed_tables.typed(table, "data", DATA_KINDS | dict.fromkeys(visit_names, "id"))
    return table.select(
        TIME,
        CODE,
        patient=table[SUBJECT],
        visit=table[visit_names[0]] if visit_names else ibis.null("string"),
        **{NUMBER: table[NUMBER] if NUMBER in table.columns else ibis.null("float64")},
    ).filter(table[SUBJECT].notnull() & table[CODE].notnull())


def subjects_of(workspace: Workspace, folder: Path, split: str) -> "Table":
    title = "subject_splits"
    table = typed_tables.load(
        workspace, folder / SPLITS, title, {SUBJECT: "integer", SPLIT: "text"}, required=(SUBJECT, SPLIT)
    )
    with refusing(title):
        splits = sorted(filter(None, table.select(SPLIT).distinct().to_pyarrow().column(SPLIT).to_pylist()))
    if split not in splits:
        raise InputError(f"there is no split {split}; the data set has: {', '.join(splits)}.")
    return table.filter(table[SPLIT] == split).select(patient=SUBJECT).distinct()


def event_codes(codes: "pa.Table", notes: list[str]) -> "pa.Table":
    """code, kind, vocabulary and plain code of those that are events; a note counts what the others had."""
    import pyarrow as pa

    known: dict[str, list[str]] = {"code": [], "kind": [], "vocabulary": [], "plain": []}
    other_codes = other_rows = untimed = 0
    for row in codes.to_pylist():
        found = meaning(row[CODE])
        timed = row["rows"] - row["timeless"]
        if found is not None:
            for name, text in zip(known, (row[CODE], found.kind, found.vocabulary, found.code), strict=True):
                known[name].append(text)
            untimed += row["timeless"]
        elif timed and row[CODE] not in (BIRTH, DEATH) and static_fact(row[CODE], timeless=False) is None:
            other_codes, other_rows = other_codes + 1, other_rows + timed
    if other_rows:
        notes.append(
            "Measurements that are no diagnoses, medications or procedures, as far as their codes tell (laboratory "
            f"values, admissions and the like), and are left out: {other_rows:,}, under {other_codes:,} codes."
        )
    if untimed:
        notes.append(f"Diagnoses, medications or procedures that have no time and are left out: {untimed:,}.")
    return pa.table(known, schema=pa.schema([(name, pa.string()) for name in known]))


def persons_of(workspace: Workspace, data: "Table", codes: "pa.Table") -> "Table":
    """A row for each subject. Of several values of one fact the first in the alphabet is taken."""
    import pyarrow as pa

    facts = [(row[CODE], static_fact(row[CODE], row["timeless"] > 0)) for row in codes.to_pylist()]
    known = [(code, *fact) for code, fact in facts if fact is not None and code not in (BIRTH, DEATH)]
    names = sorted({column for _, column, _ in known} - {"patient", "birth", "death"})
    if len(names) > MOST_COLUMNS:
        raise InputError(
            f"data has {len(names):,} different static facts; write their values behind //, as in GENDER//F."
        )
    fields = [(CODE, pa.string()), ("fact", pa.string()), ("answer", pa.string())]
    table = pa.table(
        [list(column) for column in zip(*known, strict=True)] or [[], [], []], schema=pa.schema(fields)
    )
    joined = data.left_join(workspace.take(table.to_reader(), new_name()), CODE)
    rows = joined.group_by("patient").aggregate(
        birth=joined.time.min(where=joined[CODE] == BIRTH).cast("date"),
        death=joined.time.min(where=joined[CODE] == DEATH).cast("date"),
        **{name: joined.answer.min(where=joined.fact == name) for name in names},
    )
    persons = shaped(rows, [*PERSONS, *(name for name in names if name not in PERSONS)])
    with refusing("data"):
        return workspace.con.create_table(new_name(), persons.mutate(sex=plain_sex(persons.sex)))


def read_names(workspace: Workspace, file: Path, meanings: "Table") -> "Table | None":
    """The descriptions of codes.parquet, which a data set should have but may lack."""
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
    files = typed_tables.tables_in(path, "labels")
    table = typed_tables.load(workspace, files, "labels", kinds, required=(SUBJECT, LABEL_TIME, LABEL))
    return table.select(patient=table[SUBJECT], time=table[LABEL_TIME], value=table[LABEL])
