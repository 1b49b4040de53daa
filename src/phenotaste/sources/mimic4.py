"""The native hospital tables of MIMIC-IV: admissions, diagnoses, prescriptions, procedures and laboratory values.

Admissions are the encounters. Diagnoses are dated at discharge: MIMIC-IV has billing codes, which are assigned after
it, so that a window which ends during a stay must not contain them. MIMIC shifts the dates of each patient.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources.coding import icd_vocabulary_of, normalise_ndc
from phenotaste.sources.records import (
    BMI,
    DIAGNOSIS,
    EVENTS,
    FACTS,
    MEASUREMENT,
    MEASUREMENTS,
    MEDICATION,
    NAMES,
    NDC,
    PERSONS,
    PROCEDURE,
    VISITS,
    Records,
    add_unlisted_patients,
    complete_rows,
    conform,
    distinct_patients,
    normalise_sex,
    union,
)
from phenotaste.sources.table_folder import TableFolder
from phenotaste.sources.workspace import Workspace, translate_errors

if TYPE_CHECKING:
    from ibis import Table

DRUGS = ("name", "ndc")
"""Values of `drugs`."""

DRUG_TYPES = ("MAIN", "ADDITIVE", "BASE")
"""Values of `drug_types`; BASE are carrier fluids and containers, such as "5% Dextrose" and "Bag"."""

LAB_ITEMS = "MIMIC-IV item"  # vocabulary of itemid
SUBJECT, ADMISSION = "subject_id", "hadm_id"
KEYS = {SUBJECT: "integer", ADMISSION: "id"}
STATIC_COLUMNS = ("race", "insurance", "language", "marital_status")
UNKNOWN = ("?", "unknown", "unable to obtain", "patient declined to answer")
ADMISSION_TYPES = KEYS | {"admittime": "time", "dischtime": "time", "deathtime": "time"}
ADMISSION_TYPES |= dict.fromkeys(STATIC_COLUMNS, "text")
PATIENT_TYPES = {
    SUBJECT: "integer",
    "gender": "text",
    "anchor_age": "integer",
    "anchor_year": "integer",
    "dod": "date",
}
CODE_TYPES = KEYS | {"icd_code": "code", "icd_version": "text", "chartdate": "time"}
DRUG_COLUMNS = KEYS | {"starttime": "time", "drug_type": "text", "drug": "text", "ndc": "text"}
LAB_TYPES = KEYS | {
    "charttime": "time",
    "itemid": "id",
    "valuenum": "number",
    "valueuom": "text",
    "ref_range_lower": "number",
    "ref_range_upper": "number",
    "flag": "text",
}
OMR_TYPES = {SUBJECT: "integer", "chartdate": "time", "result_name": "text", "result_value": "text"}
WITHOUT = {  # what is absent without each table
    "patients": "no ages, sexes and dates of death",
    "admissions": "no encounters, and no diagnoses, which are dated by them",
    "diagnoses_icd": "no diagnoses",
    "prescriptions": "no medications",
    "procedures_icd": "no procedures",
    "labevents": "no measurements",
    "d_icd_diagnoses": "diagnoses without names",
    "d_icd_procedures": "procedures without names",
    "d_labitems": "measurements without names",
    "omr": "no body mass index",
}


def read(
    workspace: Workspace,
    folder: Path,
    *,
    kinds: Iterable[str] = (DIAGNOSIS, MEDICATION),
    drugs: str = "name",
    drug_types: Iterable[str] = ("MAIN", "ADDITIVE"),
) -> Records:
    """Read the tables in `folder` or its subfolder hosp, as CSV, gzipped or not; missing ones are named in a note.

    Parameters
    ----------
    kinds : any of "diagnosis", "medication", "procedure", "measurement"; only these tables are read.
    drugs : one of `mimic4.DRUGS`: prescriptions by drug name, in lower case, or by NDC code.
    drug_types : some of `mimic4.DRUG_TYPES`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste.sources import mimic4
    >>> from phenotaste.sources.workspace import Workspace
    >>> Path("hosp").mkdir()
    >>> admissions = "subject_id,hadm_id,admittime,dischtime\\n1,20,2180-05-06 22:23:00,2180-05-09 17:15:00\\n"
    >>> diagnoses = "subject_id,hadm_id,seq_num,icd_code,icd_version\\n1,20,1,I10,10\\n"
    >>> sizes = Path("hosp/admissions.csv").write_text(admissions), Path("hosp/diagnoses_icd.csv").write_text(diagnoses)
    >>> with Workspace() as workspace:
    ...     records = mimic4.read(workspace, Path("."), kinds=["diagnosis"])
    ...     records.events.select("patient", "vocabulary", "code").to_pandas().to_numpy().tolist()
    [[1, 'ICD10CM', 'I10']]
    """
    chosen, types = tuple(kinds), tuple(word.upper() for word in drug_types)
    check_options(drugs, types)
    tables = TableFolder(workspace, folder, subfolders=("hosp",), expected="of MIMIC-IV")
    notes: list[str] = []
    admissions = tables.load("admissions", ADMISSION_TYPES, (*KEYS, "admittime", "dischtime"))
    coded = {
        DIAGNOSIS: lambda: read_diagnoses(tables, admissions, notes),
        MEDICATION: lambda: read_prescriptions(tables, drugs, types, notes),
        PROCEDURE: lambda: read_procedures(tables),
    }
    events = [table for kind, reader in coded.items() if kind in chosen and (table := reader()) is not None]
    measurements = read_measurements(tables) if MEASUREMENT in chosen else None
    all_events = gathered_events(events, measurements, tables)
    seen = union(distinct_patients(table) for table in (all_events, measurements) if table is not None)
    seen = seen.distinct()
    persons = read_persons(tables, admissions, seen, notes)
    return Records(
        all_events,
        add_unlisted_patients(workspace, persons, seen, "patients", notes),
        read_facts(tables, admissions),
        visits=None if admissions is None else read_visits(admissions, notes),
        names=read_names(tables, chosen),
        notes=(*tables.missing_note(WITHOUT), *notes),
        measurements=measurements,
        shifted_dates=True,
    )


def check_options(drugs: str, drug_types: Sequence[str]) -> None:
    if drugs not in DRUGS:
        raise InputError(f"drugs must be one of {', '.join(DRUGS)}.")
    if not drug_types or any(word not in DRUG_TYPES for word in drug_types):
        raise InputError(f"drug types must be among {', '.join(DRUG_TYPES)}; choose at least one.")


def gathered_events(events: "Sequence[Table]", measurements: "Table | None", tables: TableFolder) -> "Table":
    """All events in one table, which has no rows if there are only measurements."""
    if events:
        return union(events)
    if measurements is None:
        listed = ", ".join(f"{name}.csv" for name in tables.missing)
        raise InputError(
            f"{tables.folder} has none of the requested events ({listed} missing); give the folder that contains "
            "hosp, or choose other kinds."
        )
    return conform(measurements.limit(0), EVENTS, kind=MEASUREMENT, value=measurements.value)


def read_visits(admissions: "Table", notes: list[str]) -> "Table":
    visits = admissions.select(
        patient=admissions[SUBJECT],
        visit=admissions[ADMISSION],
        time=admissions.admittime,
        end_time=admissions.dischtime,
    )
    return complete_rows(visits, "admissions", VISITS, notes)


def read_diagnoses(tables: TableFolder, admissions: "Table | None", notes: list[str]) -> "Table | None":
    """Diagnoses at the discharge of their admission."""
    table = tables.load("diagnoses_icd", CODE_TYPES, (*KEYS, "icd_code", "icd_version"))
    if table is None or admissions is None:
        return None
    notes.append(
        "Diagnoses are dated at the discharge (dischtime): they are billing codes, which are assigned after it."
    )
    ends = admissions.select("dischtime", stay=admissions[ADMISSION])
    rows = table.left_join(ends, table[ADMISSION] == ends.stay)
    return conform(
        rows,
        EVENTS,
        patient=rows[SUBJECT],
        time=rows.dischtime,
        visit=rows[ADMISSION],
        code=rows.icd_code,
        vocabulary=icd_vocabulary_of(rows.icd_version, DIAGNOSIS),
        kind=DIAGNOSIS,
    )


def read_prescriptions(
    tables: TableFolder, drugs: str, drug_types: Sequence[str], notes: list[str]
) -> "Table | None":
    """Prescriptions at their start; without one, or with a code of zeros, they count as events without date or code."""
    import ibis

    table = tables.load(
        "prescriptions", DRUG_COLUMNS, (*KEYS, "starttime", "ndc" if drugs == "ndc" else "drug")
    )
    if table is None:
        return None
    if "drug_type" in table.columns:
        table = chosen_types(table, drug_types, notes)
    if drugs == "ndc":
        code, vocabulary = normalise_ndc(table.ndc), ibis.literal(NDC)
    else:  # names have no vocabulary, so that features are called by them alone
        name = table.drug.lower().re_replace(r"^\*nf\*\s*", "")  # not on the formulary
        code, vocabulary = name.re_replace(r"\s+", " "), ibis.null("string")
    return conform(
        table,
        EVENTS,
        patient=table[SUBJECT],
        time=table.starttime,
        visit=table[ADMISSION],
        code=code,
        vocabulary=vocabulary,
        kind=MEDICATION,
    )


def chosen_types(table: "Table", drug_types: Sequence[str], notes: list[str]) -> "Table":
    chosen = table.drug_type.isnull() | table.drug_type.upper().isin(list(drug_types))
    with translate_errors("prescriptions"):
        others = int((~chosen).sum().to_pyarrow().as_py() or 0)
    if others:
        left_out = " or ".join(word for word in DRUG_TYPES if word not in drug_types)
        notes.append(
            f"Prescriptions of drug_type {left_out}, left out: {others:,} (--drug-types includes them)."
        )
    return table.filter(chosen)


def read_procedures(tables: TableFolder) -> "Table | None":
    table = tables.load("procedures_icd", CODE_TYPES, (*KEYS, "icd_code", "icd_version", "chartdate"))
    if table is None:
        return None
    return conform(
        table,
        EVENTS,
        patient=table[SUBJECT],
        time=table.chartdate,
        visit=table[ADMISSION],
        code=table.icd_code,
        vocabulary=icd_vocabulary_of(table.icd_version, PROCEDURE),
        kind=PROCEDURE,
    )


def read_measurements(tables: TableFolder) -> "Table | None":
    """Laboratory values with the reference range of each row; an encounter may be absent, and is then null."""
    table = tables.load("labevents", LAB_TYPES, (*KEYS, "charttime", "itemid", "valuenum"))
    if table is None:
        return None
    spelt = {"unit": "valueuom", "low": "ref_range_lower", "high": "ref_range_upper", "flag": "flag"}
    return conform(
        table,
        MEASUREMENTS,
        patient=table[SUBJECT],
        time=table.charttime,
        visit=table[ADMISSION],
        code=table.itemid,
        vocabulary=LAB_ITEMS,
        value=table.valuenum,
        **{name: table[column] for name, column in spelt.items() if column in table.columns},
    )


def read_persons(tables: TableFolder, admissions: "Table | None", seen: "Table", notes: list[str]) -> "Table":
    """The patients, born on the first of January, so that ages are those of MIMIC: anchor_age in anchor_year."""
    import ibis

    table = tables.load("patients", PATIENT_TYPES, (SUBJECT,))
    if table is None:
        return conform(seen, PERSONS)
    table = conform(table, tuple(PATIENT_TYPES)) if set(PATIENT_TYPES) - set(table.columns) else table
    born = (table.anchor_year.cast("int64") - table.anchor_age.cast("int64")).cast("int32")
    persons = conform(
        table,
        PERSONS,
        patient=table[SUBJECT],
        birth=ibis.date(born, 1, 1),
        death=table.dod.cast("date"),
        sex=normalise_sex(table.gender),
    )
    if admissions is not None and "deathtime" in admissions.columns:
        died = admissions.group_by(SUBJECT).aggregate(deathtime=admissions.deathtime.min().cast("date"))
        died = died.select("deathtime", dead=died[SUBJECT])
        rows = persons.left_join(died, persons.patient == died.dead)
        persons = conform(rows, PERSONS, death=rows.death.coalesce(rows.deathtime))
    return complete_rows(persons, "patients", ("patient",), notes).distinct()


def read_facts(tables: TableFolder, admissions: "Table | None") -> "Table | None":
    """Race and the like at each admission, and body mass index; of each, the last before the end of a window counts."""
    import ibis

    facts = []
    if admissions is not None:
        for name in STATIC_COLUMNS:
            if name in admissions.columns:
                value = admissions[name].lower()
                known = value.notin(UNKNOWN).ifelse(value, None)
                rows = conform(
                    admissions,
                    FACTS,
                    patient=admissions[SUBJECT],
                    time=admissions.admittime,
                    name=name,
                    value=known,
                )
                facts.append(rows.filter(rows.value.notnull()))
    table = tables.load("omr", OMR_TYPES, tuple(OMR_TYPES))
    if table is not None:
        table = table.filter(table.result_name.lower().startswith("bmi"))
        number = table.result_value.try_cast("float64")
        known = {"patient": table[SUBJECT], "time": table.chartdate, "name": BMI, "number": number}
        facts.append(conform(table, FACTS, **known, value=ibis.null("string")))
    return union(facts) if facts else None


def read_names(tables: TableFolder, kinds: Sequence[str]) -> "Table | None":
    names = []
    for kind, file in ((DIAGNOSIS, "d_icd_diagnoses"), (PROCEDURE, "d_icd_procedures")):
        types = {"icd_code": "code", "icd_version": "text", "long_title": "text"}
        table = tables.load(file, types, tuple(types)) if kind in kinds else None
        if table is not None:
            vocabulary = icd_vocabulary_of(table.icd_version, kind)
            names.append(
                conform(table, NAMES, vocabulary=vocabulary, code=table.icd_code, name=table.long_title)
            )
    types = {"itemid": "id", "label": "text", "fluid": "text"}
    table = tables.load("d_labitems", types, ("itemid", "label")) if MEASUREMENT in kinds else None
    if table is not None:
        label = table.label
        if "fluid" in table.columns:  # one label may be of several fluids
            label = label + (", " + table.fluid.lower()).coalesce("")
        names.append(conform(table, NAMES, vocabulary=LAB_ITEMS, code=table.itemid, name=label))
    return union(names) if names else None
