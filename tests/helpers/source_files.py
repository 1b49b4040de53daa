"""The same simulated events in the file formats of every source."""

import numpy as np
import pandas as pd

from helpers import simulated_cdm

CODES = ("401.9", "250.00", "428.0", "V58.61", "nonsense")


def source_tables(n_patients=12, seed=0):
    """Events on eight days a patient, and a row of static facts for each."""
    rng = np.random.default_rng(seed)
    rows = []
    for k in range(n_patients):
        days = pd.Timestamp("2008-01-01") + pd.to_timedelta(np.sort(rng.choice(1000, 8, replace=False)), "D")
        for day in days:
            for code in rng.choice(CODES, rng.integers(1, 4), replace=False):
                rows.append((f"secret-patient-{k}", str(day.date()), code))
    events = pd.DataFrame(rows, columns=["patient", "time", "code"])
    static = pd.DataFrame(
        {
            "patient": [f"secret-patient-{k}" for k in range(n_patients)],
            "birth": [f"{1930 + 2 * k}-05-01" for k in range(n_patients)],
            "sex": ["F", "M"] * (n_patients // 2),
        }
    )
    return events, static


def write_synpuf(folder):
    events, static = source_tables()
    folder.mkdir()
    claims = pd.DataFrame(
        {
            "DESYNPUF_ID": events.patient,
            "CLM_ID": range(len(events)),
            "CLM_FROM_DT": events.time.str.replace("-", ""),
            "ICD9_DGNS_CD_1": events.code.str.replace(".", ""),
        }
    )
    claims.to_csv(folder / "DE1_0_2008_to_2010_Outpatient_Claims_Sample_1.csv", index=False)
    people = pd.DataFrame(
        {
            "DESYNPUF_ID": static.patient,
            "BENE_BIRTH_DT": static.birth.str.replace("-", ""),
            "BENE_SEX_IDENT_CD": [2, 1] * (len(static) // 2),
            "BENE_RACE_CD": 1,
            "SP_CHF": [1, 2] * (len(static) // 2),
        }
    )
    people.to_csv(folder / "DE1_0_2008_Beneficiary_Summary_File_Sample_1.csv", index=False)


def write_meds(folder):
    events, static = source_tables()
    numbers = {name: number for number, name in enumerate(static.patient)}
    data = pd.DataFrame(
        {
            "subject_id": events.patient.map(numbers),
            "time": pd.to_datetime(events.time).astype("datetime64[us]"),
            "code": "ICD9CM//" + events.code,
            "numeric_value": np.full(len(events), np.nan, np.float32),
        }
    )
    (folder / "data" / "train").mkdir(parents=True)
    data.to_parquet(folder / "data" / "train" / "0.parquet", index=False)
    labels = pd.DataFrame(
        {
            "subject_id": range(len(static)),
            "prediction_time": pd.Timestamp("2010-06-01"),
            "boolean_value": [True, False] * (len(static) // 2),
        }
    )
    labels["prediction_time"] = labels.prediction_time.astype("datetime64[us]")
    labels.to_parquet(folder / "labels.parquet", index=False)


def write_synthea(folder):
    events, static = source_tables()
    folder.mkdir()
    people = pd.DataFrame({"Id": static.patient, "BIRTHDATE": static.birth, "GENDER": static.sex})
    people.to_csv(folder / "patients.csv", index=False)
    visits = events[["patient", "time"]].drop_duplicates().reset_index(drop=True)
    visits["Id"] = "e" + visits.index.astype(str)
    visits.rename(columns={"patient": "PATIENT", "time": "START"}).to_csv(
        folder / "encounters.csv", index=False
    )
    rows = events.merge(visits, on=["patient", "time"])
    rows = rows.rename(columns={"patient": "PATIENT", "time": "START", "code": "CODE", "Id": "ENCOUNTER"})
    rows.assign(DESCRIPTION="Finding " + rows.CODE).to_csv(folder / "conditions.csv", index=False)


def write_omop(folder, cdm=None):
    simulated_cdm.write_parquet(cdm or simulated_cdm.cdm(n_persons=60, n_events=800), folder)
