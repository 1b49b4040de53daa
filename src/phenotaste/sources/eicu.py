"""The native tables of the eICU Collaborative Research Database.

eICU has no dates, but minutes from the admission to the unit. Here they are minutes from the admission to the hospital;
a day of the cohort is 24 hours. The order of the hospital stays of a person is not known, so that each stay is a
patient of the cohort.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources.coding import icd_by_form, split_codes
from phenotaste.sources.records import (
    BMI,
    DIAGNOSIS,
    EVENTS,
    FACTS,
    ICD9CM,
    ICD10CM,
    MEASUREMENT,
    MEASUREMENTS,
    MEDICATION,
    MINUTES,
    ORIGIN,
    PERSONS,
    PROCEDURE,
    Records,
    conform,
    normalise_sex,
    union,
)
from phenotaste.sources.table_folder import TableFolder
from phenotaste.sources.workspace import Workspace, translate_errors

if TYPE_CHECKING:
    from ibis import Table, Value

STAYS = ("hospital", "unit")
"""Values of `stays`."""

CODES = ("icd9", "icd10", "text")
"""Values of `codes`."""

UNIT, HOSPITAL, PERSON = "patientunitstayid", "patienthealthsystemstayid", "uniquepid"
TOP_AGE = "> 89"
STAY_TYPES = {
    UNIT: "integer",
    HOSPITAL: "integer",
    PERSON: "id",
    "gender": "text",
    "age": "text",
    "ethnicity": "text",
    "hospitalid": "id",
    "admissionheight": "number",
    "admissionweight": "number",
    "hospitaladmitoffset": "integer",
    "hospitaldischargeoffset": "integer",
    "hospitaldischargestatus": "text",
    "unitdischargeoffset": "integer",
    "unittype": "text",
    "unitadmitsource": "text",
}
UNIT_FACTS = {"unit_type": "unittype", "admission_source": "unitadmitsource"}
HOSPITAL_FACTS = {"hospital_beds": "numbedscategory", "teaching": "teachingstatus", "region": "region"}
WITHOUT = {  # what is absent without each table
    "diagnosis": "no diagnoses",
    "medication": "no ordered medications",
    "infusiondrug": "no infusions",
    "treatment": "no procedures",
    "lab": "no laboratory values",
    "customlab": "no laboratory values of local names",
    "vitalaperiodic": "no non-invasive blood pressures",
    "hospital": "no region, size and teaching status",
}


def read(
    workspace: Workspace,
    folder: Path,
    *,
    kinds: Iterable[str] = (DIAGNOSIS, MEDICATION),
    stays: str = "hospital",
    codes: str = "icd9",
) -> Records:
    """Read the tables in `folder`, as CSV, gzipped or not; missing ones, except patient, are named in a note.

    Parameters
    ----------
    kinds : any of "diagnosis", "medication", "procedure" (treatments), "measurement"; only these tables are read.
    stays : one of `eicu.STAYS`: whether a patient of the cohort is a hospital stay or a unit stay.
    codes : one of `eicu.CODES`. A diagnosis has codes of ICD-9-CM and ICD-10-CM in one field; those of one version are
        used, and of the other where there are none, or the text of the diagnosis.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste.sources import eicu
    >>> from phenotaste.sources.workspace import Workspace
    >>> Path("eicu").mkdir()
    >>> stays = "patientunitstayid,patienthealthsystemstayid,uniquepid,age,hospitaladmitoffset\\n7,70,002-1,> 89,-60\\n"
    >>> diagnoses = 'patientunitstayid,diagnosisoffset,diagnosisstring,icd9code\\n7,30,cardiac,"428.0, I50.9"\\n'
    >>> sizes = Path("eicu/patient.csv").write_text(stays), Path("eicu/diagnosis.csv").write_text(diagnoses)
    >>> with Workspace() as workspace:
    ...     records = eicu.read(workspace, Path("eicu"), kinds=["diagnosis"])
    ...     records.events.select("patient", "time", "vocabulary", "code").to_pandas().to_numpy().tolist()
    [[70, Timestamp('2001-01-01 01:30:00'), 'ICD9CM', '428.0']]
    """
    chosen = tuple(kinds)
    for value, known, what in ((stays, STAYS, "stays"), (codes, CODES, "codes")):
        if value not in known:
            raise InputError(f"{what} must be one of {', '.join(known)}.")
    tables = TableFolder(workspace, folder, expected="of eICU's CSV files")
    units = read_stays(tables, stays)
    events, measurements = read_events(tables, units, chosen, codes)
    return Records(
        events,
        read_persons(units),
        read_facts(tables, units),
        visits=units.select("patient", "time", "end_time", visit=units[UNIT].cast("string")),
        notes=(*tables.missing_note(WITHOUT), *stay_notes(units, stays)),
        measurements=measurements,
        time_unit=MINUTES,
        shifted_dates=True,
    )


def read_stays(tables: TableFolder, stays: str) -> "Table":
    """The unit stays with the patient of the cohort, the minute of their admission, and their start and end."""
    import ibis

    needed = (UNIT, HOSPITAL, "hospitaladmitoffset") if stays == "hospital" else (UNIT,)
    table = tables.load("patient", STAY_TYPES, needed)
    if table is None:
        raise InputError(f"{tables.folder} contains no patient.csv; give the folder of eICU's CSV files.")
    table = conform_types(table)
    # Offsets are counted from the admission to the unit; that to the hospital is before it.
    since = -table.hospitaladmitoffset.coalesce(0) if stays == "hospital" else ibis.literal(0, "int64")
    patient = table[HOSPITAL] if stays == "hospital" else table[UNIT]
    table = table.mutate(patient=patient, since=since)
    table = table.filter(table[UNIT].notnull() & table.patient.notnull())
    return table.mutate(time=moment(table.since), end_time=moment(table.since + table.unitdischargeoffset))


def conform_types(table: "Table") -> "Table":
    """All columns of STAY_TYPES, null where the file lacks them."""
    import ibis

    types = {"integer": "int64", "number": "float64"}
    return table.select(
        **{
            name: table[name] if name in table.columns else ibis.null(types.get(kind, "string"))
            for name, kind in STAY_TYPES.items()
        }
    )


def moment(minutes: "Value") -> "Value":
    """The origin plus a number of minutes."""
    import ibis

    return ibis.literal(ORIGIN, type="timestamp") + minutes.cast("int64").as_interval("m")


def with_stay(table: "Table", units: "Table", offset: str) -> "Table":
    """The rows of a table with patient, time and visit."""
    known = units.select("patient", "since", stay=units[UNIT])
    rows = table.inner_join(known, table[UNIT] == known.stay)
    return rows.mutate(time=moment(rows.since + rows[offset]), visit=rows[UNIT].cast("string"))


def read_events(
    tables: TableFolder, units: "Table", kinds: Sequence[str], codes: str
) -> "tuple[Table, Table | None]":
    events: list[Table] = []
    measurements: list[Table] = []
    if DIAGNOSIS in kinds:
        events += read_diagnoses(tables, units, codes)
    if MEDICATION in kinds:
        events += read_drugs(tables, units)
    if PROCEDURE in kinds:
        events += read_treatments(tables, units)
    if MEASUREMENT in kinds:
        measurements = [*read_labs(tables, units), *read_pressures(tables, units)]
    if not events and not measurements:
        listed = ", ".join(f"{name}.csv" for name in tables.missing)
        raise InputError(
            f"{tables.folder} has none of the requested events ({listed} missing); choose other kinds."
        )
    measured = union(measurements) if measurements else None
    if events:
        return union(events), measured
    assert measured is not None
    return conform(measured.limit(0), EVENTS, kind=MEASUREMENT), measured


def read_diagnoses(tables: TableFolder, units: "Table", codes: str) -> "list[Table]":
    types = {UNIT: "integer", "diagnosisoffset": "integer", "diagnosisstring": "text", "icd9code": "text"}
    column = "diagnosisstring" if codes == "text" else "icd9code"
    table = tables.load("diagnosis", types, (UNIT, "diagnosisoffset", column))
    if table is None:
        return []
    rows = with_stay(table, units, "diagnosisoffset")
    if codes == "text":
        return [conform(rows, EVENTS, code=last_parts(rows.diagnosisstring), kind=DIAGNOSIS)]
    return [conform(one_version(rows, codes), EVENTS, kind=DIAGNOSIS)]


def one_version(rows: "Table", codes: str) -> "Table":
    """One row for each code of the preferred version, or of the other where a field has none of it."""
    import ibis

    rows = rows.mutate(row=ibis.row_number(), code=rows.icd9code)
    parts = split_codes(rows, ",;")
    parts = parts.mutate(vocabulary=icd_by_form(parts.code, ibis.literal(DIAGNOSIS)))
    preferred = parts.vocabulary == (ICD9CM if codes == "icd9" else ICD10CM)
    found = preferred.any().over(group_by="row")
    parts = parts.mutate(preferred=preferred.coalesce(False), found=found.coalesce(False))
    return parts.filter(parts.preferred | ~parts.found)


def read_drugs(tables: TableFolder, units: "Table") -> "list[Table]":
    """Orders that were not cancelled, at their start, and infusions; by the name of the drug, without its strength."""
    drugs = []
    types = {UNIT: "integer", "drugstartoffset": "integer", "drugordercancelled": "text", "drugname": "text"}
    table = tables.load("medication", types, (UNIT, "drugstartoffset", "drugname"))
    if table is not None:
        if "drugordercancelled" in table.columns:
            table = table.filter(table.drugordercancelled.lower().coalesce("no") != "yes")
        rows = with_stay(table, units, "drugstartoffset")
        drugs.append(conform(rows, EVENTS, code=drug_name(rows.drugname), kind=MEDICATION))
    types = {UNIT: "integer", "infusionoffset": "integer", "drugname": "text"}
    table = tables.load("infusiondrug", types, tuple(types))
    if table is not None:
        rows = with_stay(table, units, "infusionoffset")
        drugs.append(conform(rows, EVENTS, code=drug_name(rows.drugname), kind=MEDICATION))
    return drugs


def drug_name(name: "Value") -> "Value":
    """The name in lower case up to the strength or unit: "HEPARIN 5000 UNIT/ML" and "Heparin (units/hr)" are one."""
    lower = name.lower().re_replace(r"\s+", " ")
    short = lower.re_replace(r"\s*(\(|\b\d).*$", "").strip()
    return (short == "").ifelse(lower, short)


def last_parts(path: "Value") -> "Value":
    """The last two parts of a path such as "cardiovascular|shock / hypotension|sepsis"."""
    return path.lower().re_extract(r"([^|]+(\|[^|]+)?)$", 1).nullif("")


def read_treatments(tables: TableFolder, units: "Table") -> "list[Table]":
    types = {UNIT: "integer", "treatmentoffset": "integer", "treatmentstring": "text"}
    table = tables.load("treatment", types, tuple(types))
    if table is None:
        return []
    rows = with_stay(table, units, "treatmentoffset")
    return [conform(rows, EVENTS, code=last_parts(rows.treatmentstring), kind=PROCEDURE)]


def read_labs(tables: TableFolder, units: "Table") -> "list[Table]":
    """Laboratory values, which have units but no reference ranges."""
    labs = []
    types = {UNIT: "integer", "labresultoffset": "integer", "labname": "text", "labresult": "text"}
    types["labmeasurenamesystem"] = "text"
    table = tables.load("lab", types, (UNIT, "labresultoffset", "labname", "labresult"))
    if table is not None:
        rows = with_stay(table, units, "labresultoffset")
        unit = {"unit": rows.labmeasurenamesystem} if "labmeasurenamesystem" in rows.columns else {}
        labs.append(measured(rows, rows.labname, rows.labresult.try_cast("float64"), **unit))
    types = {UNIT: "integer", "labotheroffset": "integer", "labothername": "text", "labotherresult": "text"}
    table = tables.load("customlab", types, tuple(types))
    if table is not None:
        rows = with_stay(table, units, "labotheroffset")
        labs.append(measured(rows, rows.labothername, rows.labotherresult.try_cast("float64")))
    return labs


def read_pressures(tables: TableFolder, units: "Table") -> "list[Table]":
    names = ("noninvasivesystolic", "noninvasivediastolic", "noninvasivemean")
    types = {UNIT: "integer", "observationoffset": "integer"} | dict.fromkeys(names, "number")
    table = tables.load("vitalaperiodic", types, (UNIT, "observationoffset"))
    if table is None:
        return []
    import ibis

    rows = with_stay(table, units, "observationoffset")
    return [
        measured(rows.filter(rows[name].notnull()), ibis.literal(name), rows[name], unit=ibis.literal("mmHg"))
        for name in names
        if name in rows.columns
    ]


def measured(rows: "Table", code: "Value", value: "Value", **more: "Value") -> "Table":
    return conform(rows, MEASUREMENTS, code=code, value=value, **more)


def read_persons(units: "Table") -> "Table":
    """A row for each patient of the cohort; ages above 89 are not stated, and are 90."""
    import ibis

    years = (units.age == TOP_AGE).ifelse("90", units.age).try_cast("int64")
    born = ibis.date((ORIGIN.year - years).cast("int32"), 1, 1)
    end = moment(units.since + units.hospitaldischargeoffset)
    died = units.hospitaldischargestatus.lower() == "expired"
    rows = units.mutate(
        birth=born, death=died.ifelse(end, None).cast("date"), sex=normalise_sex(units.gender)
    )
    ethnicity = rows.ethnicity.lower()
    rows = rows.mutate(race=ethnicity.notin(["other/unknown", "unknown"]).ifelse(ethnicity, None))
    rows = rows.mutate(sex=rows.sex.isin(["female", "male"]).ifelse(rows.sex, None))
    each = rows.group_by("patient").aggregate(
        birth=rows.birth.min(), death=rows.death.max(), sex=rows.sex.min(), race=rows.race.min()
    )
    return conform(each, PERSONS)


def read_facts(tables: TableFolder, units: "Table") -> "Table":
    """Type of unit, source of admission and body mass index at the admission to a unit, and what kind of hospital."""
    import ibis

    height = units.admissionheight.between(100, 250).ifelse(units.admissionheight / 100, None)
    facts = [
        conform(
            units,
            FACTS,
            name=BMI,
            value=ibis.null("string"),
            number=units.admissionweight / (height * height),
        )
    ]
    for name, column in UNIT_FACTS.items():
        facts.append(conform(units, FACTS, name=name, value=units[column].lower()))
    types = {"hospitalid": "id"} | dict.fromkeys(HOSPITAL_FACTS.values(), "text")
    table = tables.load("hospital", types, ("hospitalid",))
    if table is not None:
        kinds = table.select(
            hospital=table.hospitalid, **{c: table[c] for c in HOSPITAL_FACTS.values() if c in table.columns}
        )
        rows = units.inner_join(kinds, units.hospitalid == kinds.hospital)
        for name, column in HOSPITAL_FACTS.items():
            if column in kinds.columns:
                facts.append(conform(rows, FACTS, name=name, value=rows[column].lower()))
    known = union(facts)
    return known.filter(known.value.notnull() | known.number.notnull())


def stay_notes(units: "Table", stays: str) -> list[str]:
    with translate_errors("patient"):
        counts = units.aggregate(stays=units.patient.nunique(), people=units[PERSON].nunique())
        row = counts.to_pyarrow().to_pylist()[0]
    people = f" of {row['people']:,} persons" if row["people"] else ""
    place = "hospital" if stays == "hospital" else "unit"
    return [
        f"Patients of the cohort are {row['stays']:,} {place} stays{people}, whose order eICU does not state.",
        f"Times are minutes from the admission to the {place}; a day is 24 hours.",
    ]
