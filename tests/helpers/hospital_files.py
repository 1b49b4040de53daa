"""Small simulated hospitals in the native tables of MIMIC-IV and eICU."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

MIMIC4 = {
    "patients": """subject_id,gender,anchor_age,anchor_year,anchor_year_group,dod
1,F,60,2150,2011 - 2013,
2,M,91,2160,2011 - 2013,2161-03-01
3,F,40,2170,2014 - 2016,
""",
    "admissions": """subject_id,hadm_id,admittime,dischtime,deathtime,insurance,language,marital_status,race
1,11,2150-01-05 10:00:00,2150-01-09 12:00:00,,Medicare,ENGLISH,MARRIED,WHITE
1,12,2151-02-05 10:00:00,2151-02-06 12:00:00,,Other,?,WIDOWED,UNKNOWN
2,21,2160-05-01 00:30:00,2160-05-04 18:00:00,2160-05-04 17:00:00,Medicaid,ENGLISH,,BLACK/CAPE VERDEAN
""",
    "diagnoses_icd": """subject_id,hadm_id,seq_num,icd_code,icd_version
1,11,1,4280,9
1,12,1,I5032,10
1,12,2,I10,10
2,21,1,0389,9
""",
    "prescriptions": """subject_id,hadm_id,starttime,stoptime,drug_type,drug,ndc
1,11,2150-01-05 20:00:00,,MAIN,Furosemide,00409610204
1,11,2150-01-05 20:00:00,,BASE,5% Dextrose,0
1,12,2151-02-05 20:00:00,,MAIN,*NF* FUROSEMIDE,409610204
2,21,2160-05-01 08:00:00,,MAIN,Heparin  Sodium,0
""",
    "procedures_icd": """subject_id,hadm_id,seq_num,chartdate,icd_code,icd_version
2,21,1,2160-05-02,3893,9
""",
    "labevents": """subject_id,hadm_id,itemid,charttime,value,valuenum,valueuom,ref_range_lower,ref_range_upper,flag
1,11,50931,2150-01-06 06:00:00,250,250,mg/dL,70,105,abnormal
1,,50931,2150-06-06 06:00:00,90,90,mg/dL,70,105,
2,21,51466,2160-05-02 06:00:00,LG,,,,,abnormal
""",
    "d_icd_diagnoses": """icd_code,icd_version,long_title
4280,9,"Congestive heart failure, unspecified"
I10,10,Essential (primary) hypertension
""",
    "d_labitems": "itemid,label,fluid,category\n50931,Glucose,Blood,Chemistry\n51466,Blood,Urine,Hematology\n",
    "omr": """subject_id,chartdate,seq_num,result_name,result_value
1,2150-01-05,1,BMI (kg/m2),31.5
1,2150-01-05,1,Blood Pressure,120/80
""",
}


def write_tables(folder: Path, tables: dict[str, str], *, zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        if zipped:
            (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


def write_mimic4(folder: Path) -> None:
    write_tables(folder / "hosp", MIMIC4, zipped=True)


EICU_COLUMNS = {
    "patient": (
        "patientunitstayid,patienthealthsystemstayid,gender,age,ethnicity,hospitalid,wardid,apacheadmissiondx,"
        "admissionheight,hospitaladmittime24,hospitaladmitoffset,hospitaladmitsource,hospitaldischargeyear,"
        "hospitaldischargetime24,hospitaldischargeoffset,hospitaldischargelocation,hospitaldischargestatus,unittype,"
        "unitadmittime24,unitadmitsource,unitvisitnumber,unitstaytype,admissionweight,dischargeweight,"
        "unitdischargetime24,unitdischargeoffset,unitdischargelocation,unitdischargestatus,uniquepid"
    ),
    "diagnosis": (
        "diagnosisid,patientunitstayid,activeupondischarge,diagnosisoffset,diagnosisstring,icd9code,diagnosispriority"
    ),
    "medication": (
        "medicationid,patientunitstayid,drugorderoffset,drugstartoffset,drugivadmixture,drugordercancelled,drugname,"
        "drughiclseqno,dosage,routeadmin,frequency,loadingdose,prn,drugstopoffset,gtc"
    ),
    "infusiondrug": (
        "infusiondrugid,patientunitstayid,infusionoffset,drugname,drugrate,infusionrate,drugamount,volumeoffluid,"
        "patientweight"
    ),
    "treatment": "treatmentid,patientunitstayid,treatmentoffset,treatmentstring,activeupondischarge",
    "lab": "labid,patientunitstayid,labresultoffset,labtypeid,labname,labresult,labresulttext,labmeasurenamesystem",
    "customlab": (
        "customlabid,patientunitstayid,labotheroffset,labothertypeid,labothername,labotherresult,labothervaluetext"
    ),
    "vitalaperiodic": (
        "vitalaperiodicid,patientunitstayid,observationoffset,noninvasivesystolic,noninvasivediastolic,"
        "noninvasivemean,paop,cardiacoutput,cardiacinput,svr,svri,pvr,pvri"
    ),
    "hospital": "hospitalid,numbedscategory,teachingstatus,region",
}
DIAGNOSES = {  # the text and the field of codes, which mixes the versions
    "cardiovascular|ventricular disorders|congestive heart failure": "428.0, I50.9",
    "pulmonary|respiratory failure|acute respiratory failure": "518.81, J96.00",
    "endocrine|glucose metabolism|diabetes mellitus": "250.00",
    "renal|disorder of kidney|acute renal failure": "N17.9",
    "general|consultation": "",
}


def eicu_tables(n_stays: int = 12, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Hospital stays with one or two unit stays each, and events of every table that is read."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in EICU_COLUMNS}
    rows["hospital"] = [
        {"hospitalid": 5, "numbedscategory": ">= 500", "teachingstatus": "t", "region": "South"}
    ]
    unit = 100
    for stay in range(n_stays):
        admitted = 0
        for number in range(1 + stay % 2):
            unit += 1
            length = int(rng.integers(2000, 9000))
            rows["patient"].append(eicu_stay(stay, unit, number, admitted, length))
            for table, event in eicu_events(rng, unit, length):
                rows[table].append(event)
            admitted += length + 600
    return {
        name: pd.DataFrame(rows[name], columns=columns.split(",")) for name, columns in EICU_COLUMNS.items()
    }


def eicu_stay(stay: int, unit: int, number: int, admitted: int, length: int) -> dict[str, Any]:
    return {
        "patientunitstayid": unit,
        "patienthealthsystemstayid": 1000 + stay,
        "uniquepid": f"002-{stay // 3}",
        "gender": ("Female", "Male", "Unknown")[stay % 3],
        "age": "> 89" if stay == 0 else str(40 + stay),
        "ethnicity": ("Caucasian", "Other/Unknown")[stay % 2],
        "hospitalid": 5,
        "admissionheight": 170.0,
        "admissionweight": 60.0 + stay,
        "hospitaladmitoffset": -120 - admitted,
        "hospitaldischargeoffset": length + 300,
        "hospitaldischargestatus": "Expired" if stay == 1 else "Alive",
        "unitdischargeoffset": length,
        "unittype": "MICU",
        "unitadmitsource": "Emergency Department",
        "unitvisitnumber": number + 1,
    }


def eicu_events(rng: np.random.Generator, unit: int, length: int) -> Iterator[tuple[str, dict[str, Any]]]:
    def at(**values: Any) -> dict[str, Any]:
        return {"patientunitstayid": unit} | values

    for text in rng.choice(list(DIAGNOSES), 3, replace=False):
        offset = int(rng.integers(0, length))
        yield (
            "diagnosis",
            at(diagnosisoffset=offset, diagnosisstring=str(text), icd9code=DIAGNOSES[str(text)]),
        )
    for name, cancelled in (("HEPARIN 5000 UNIT/ML INJ", "No"), ("ASPIRIN 81 MG TAB", "Yes")):
        offset = int(rng.integers(-60, length))
        yield "medication", at(drugstartoffset=offset, drugname=name, drugordercancelled=cancelled)
    yield "infusiondrug", at(infusionoffset=int(rng.integers(0, length)), drugname="Heparin (units/hr)")
    yield (
        "treatment",
        at(treatmentoffset=30, treatmentstring="pulmonary|ventilation and oxygenation|intubation"),
    )
    for _ in range(4):
        offset, value = int(rng.integers(0, length)), round(float(rng.normal(140, 5)), 1)
        lab = at(labresultoffset=offset, labname="sodium", labresult=value, labmeasurenamesystem="mmol/L")
        yield "lab", lab
    yield "customlab", at(labotheroffset=60, labothername="Local test", labotherresult="negative")
    yield "vitalaperiodic", at(observationoffset=15, noninvasivesystolic=110, noninvasivediastolic=60)


def write_eicu(folder: Path) -> None:
    folder.mkdir()
    for name, frame in eicu_tables().items():
        frame.to_csv(folder / f"{name}.csv.gz", index=False)
