"""Every source: the events of each window in hours are those of pandas, and none is at or after its end."""

import numpy as np
import pandas as pd
import pytest

from helpers import simulated_cdm
from helpers.fhir_files import write_fhir
from helpers.hospital_files import write_eicu, write_mimic4
from helpers.source_files import source_tables, write_meds, write_omop, write_synpuf, write_synthea
from phenotaste import build
from phenotaste.build.settings import Groups, Index, Measurements, Settings
from phenotaste.sources import eicu, fhir, meds, mimic4, omop, synpuf, synthea, tables
from phenotaste.sources.records import KINDS, ORIGIN
from phenotaste.sources.workspace import Workspace

HOUR = pd.Timedelta(hours=1)


def read_tables(workspace, folder, kinds):
    events, _ = source_tables()
    events.to_csv(folder, index=False)
    return tables.read(workspace, folder, vocabulary="ICD9CM")


WRITERS = {
    "synpuf": write_synpuf,
    "omop": lambda folder: write_omop(folder, simulated_cdm.cdm(n_persons=60, n_events=1500)),
    "meds": write_meds,
    "synthea": write_synthea,
    "mimic4": write_mimic4,
    "eicu": write_eicu,
    "fhir": write_fhir,
    "tables.csv": lambda file: None,
}
READERS = {
    "synpuf": lambda workspace, folder, kinds: synpuf.read(workspace, folder),
    "omop": lambda workspace, folder, kinds: omop.read(workspace, str(folder), kinds=kinds),
    "meds": lambda workspace, folder, kinds: meds.read(workspace, folder, kinds=kinds),
    "synthea": lambda workspace, folder, kinds: synthea.read(workspace, folder, kinds=kinds),
    "mimic4": lambda workspace, folder, kinds: mimic4.read(workspace, folder, kinds=kinds),
    "eicu": lambda workspace, folder, kinds: eicu.read(workspace, folder, kinds=kinds),
    "fhir": lambda workspace, folder, kinds: fhir.read(workspace, folder, kinds=kinds),
    "tables.csv": read_tables,
}
KEYS = ["patient", "time", "visit", "kind", "vocabulary", "code"]


def distinct_events(records):
    """All events and measurements of listed patients with a time and a code, each once."""
    frames = [records.events.select(*KEYS).to_pandas()]
    if records.measurements is not None:
        frames.append(records.measurements.to_pandas().assign(kind="measurement")[KEYS])
    events = pd.concat(frames, ignore_index=True)
    events = events[events.patient.isin(records.persons.patient.to_pandas())]
    events = events.dropna(subset=["time", "code"]).fillna({"visit": "", "vocabulary": ""})
    return events[events.code != "0"].drop_duplicates(KEYS)  # OMOP's code of no concept is no feature


def label_rows(events):
    """Two index times of each patient, at which there are events: these are not in the windows."""
    times = events.groupby("patient")["time"].agg(lambda column: sorted(set(column))[-1])
    halfway = events.groupby("patient")["time"].agg(lambda column: sorted(set(column))[len(set(column)) // 2])
    both = pd.concat([times, halfway]).reset_index().drop_duplicates()
    return both.assign(value=np.arange(len(both)) % 2)


@pytest.mark.parametrize("source", list(WRITERS))
def test_windows_in_hours_have_the_events_of_pandas(tmp_path, source):
    WRITERS[source](tmp_path / source)
    with Workspace() as workspace:
        records = READERS[source](workspace, tmp_path / source, KINDS)
        events = distinct_events(records)
        labels = label_rows(events)
        stated = labels if records.time_unit is None else labels.assign(
            time=(labels.time - pd.Timestamp(ORIGIN)) / pd.Timedelta(minutes=1)
        )  # fmt: skip
        stated.to_csv(tmp_path / "labels.csv", index=False)
        settings = Settings(
            visit="6h",
            kinds=KINDS,
            groups=Groups(unmapped="keep"),
            measurements=Measurements(level="counts"),
            index=Index(labels=str(tmp_path / "labels.csv"), window="20000h", gap="0h", covered=False),
        )
        built = build.cohort(workspace, records, settings)
    cohort, rows = built.cohort, built.patients.to_pandas()
    found = np.add.reduceat(np.append(cohort.visits.sum(axis=1), 0), cohort.offsets[:-1])
    expected = {}
    for row in labels.itertuples():
        own = events[(events.patient == row.patient) & (events.time < row.time)]
        own = own[own.time >= row.time - 20_000 * HOUR]
        if len(own):
            expected[str(row.patient), row.time] = (len(own), own.time.max())
    moments = rows["index_date"]
    if records.time_unit is not None:
        moments = pd.Timestamp(ORIGIN) + pd.to_timedelta(moments, "min")
    keys = list(zip(rows["patient"].astype(str), moments, strict=True))
    assert dict(zip(keys, found, strict=True)) == {key: count for key, (count, _) in expected.items()}
    assert len(keys) >= 4
    # Facts may be later than the last event, but not at or after the end of the window.
    last = np.array([expected[key][1] for key in keys], "datetime64[us]")
    used = cohort.last_times
    if records.time_unit is not None:
        used = np.datetime64(ORIGIN, "us") + (used * 60_000_000).astype("timedelta64[us]")
    assert (used >= last).all()
    assert (used < np.array(moments, "datetime64[us]")).all()
