"""DE-SynPUF: simulated files under native and other names, and the public slices if they are available."""

import gzip
from datetime import date, datetime

import pandas as pd
import pyarrow as pa
import pytest

from helpers.cohorts import SHARED
from phenotaste.errors import InputError
from phenotaste.sources import synpuf
from phenotaste.sources.workspace import Workspace

PUBLIC = SHARED / "data" / "desynpuf"
needs_public = pytest.mark.skipif(not PUBLIC.is_dir(), reason="the DE-SynPUF slice is not available")

INPATIENT = """DESYNPUF_ID,CLM_ID,SEGMENT,CLM_FROM_DT,ADMTNG_ICD9_DGNS_CD,ICD9_DGNS_CD_1,ICD9_DGNS_CD_2,ICD9_PRCDR_CD_1
A,11,1,20090412,4280,4280,4019,3995
A,11,2,,,OTHER,,
A,13,2,,,,,
B,12,1,20090501,,V5866,,
"""
OUTPATIENT = (
    "DESYNPUF_ID,CLM_ID,CLM_FROM_DT,ICD9_DGNS_CD_1,ICD9_DGNS_CD_2\nA,21,20080816,25000,\nB,22,20080101,,\n"
)
CARRIER = """DESYNPUF_ID,CLM_ID,CLM_FROM_DT,ICD9_DGNS_CD_1,LINE_ICD9_DGNS_CD_1,LINE_ICD9_DGNS_CD_2
B,31,20100304,4011,4011,2720
"""
DRUGS = "DESYNPUF_ID,PDE_ID,SRVC_DT,PROD_SRVC_ID,QTY_DSPNSD_NUM\nA,41,20090107,00591025068,120.000\n"
SUMMARY = (
    "DESYNPUF_ID,BENE_BIRTH_DT,BENE_DEATH_DT,BENE_SEX_IDENT_CD,BENE_RACE_CD,BENE_ESRD_IND,SP_CHF,SP_RA_OA\n"
)
NATIVE = {
    "DE1_0_2008_to_2010_Inpatient_Claims_Sample_1.csv": INPATIENT,
    "DE1_0_2008_to_2010_Outpatient_Claims_Sample_1.csv": OUTPATIENT,
    "DE1_0_2008_to_2010_Carrier_Claims_Sample_1A.csv": CARRIER,
    "DE1_0_2008_to_2010_Carrier_Claims_Sample_1B.csv": CARRIER.replace("B,31", "A,32"),
    "DE1_0_2008_to_2010_Prescription_Drug_Events_Sample_1.csv": DRUGS,
    "DE1_0_2008_Beneficiary_Summary_File_Sample_1.csv": SUMMARY
    + "A,19430101,,1,1,0,2,1\nB,19580201,,2,5,Y,1,2\n",
    "DE1_0_2010_Beneficiary_Summary_File_Sample_1.csv": SUMMARY + "A,19430101,20101101,1,1,Y,1,1\n",
}


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


def written(folder, files, packed=False):
    for name, text in files.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text)
    return folder


def rows(table, *names):
    found = table.select(*names).to_pyarrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.mark.parametrize("packed", [False, True])
def test_events_of_native_files(workspace, tmp_path, packed):
    records = synpuf.read(workspace, written(tmp_path, NATIVE, packed))
    assert rows(records.events, "patient", "time", "visit", "kind", "vocabulary", "code") == sorted(
        [
            (
                "A",
                datetime(2009, 4, 12),
                "11",
                "diagnosis",
                "ICD9CM",
                "4280",
            ),  # once, though admitted for it too
            ("A", datetime(2009, 4, 12), "11", "diagnosis", "ICD9CM", "4019"),
            ("A", datetime(2009, 4, 12), "11", "procedure", "ICD9Proc", "3995"),
            ("B", datetime(2009, 5, 1), "12", "diagnosis", "ICD9CM", "V5866"),
            ("A", datetime(2008, 8, 16), "21", "diagnosis", "ICD9CM", "25000"),
            ("B", datetime(2010, 3, 4), "31", "diagnosis", "ICD9CM", "4011"),
            ("B", datetime(2010, 3, 4), "31", "diagnosis", "ICD9CM", "2720"),
            ("A", datetime(2010, 3, 4), "32", "diagnosis", "ICD9CM", "4011"),
            ("A", datetime(2010, 3, 4), "32", "diagnosis", "ICD9CM", "2720"),
            ("A", datetime(2009, 1, 7), None, "medication", "NDC", "00591025068"),
        ],
        key=repr,
    )
    assert ("B", "22", datetime(2008, 1, 1)) in rows(
        records.visits, "patient", "visit", "time"
    )  # without a code
    assert len(rows(records.visits, "visit")) == 6
    assert records.notes == ()


def test_beneficiaries_and_their_flags(workspace, tmp_path):
    records = synpuf.read(workspace, written(tmp_path, NATIVE))
    assert rows(records.persons, "patient", "birth", "death", "sex", "race") == [
        ("A", date(1943, 1, 1), date(2010, 11, 1), "male", "white"),
        ("B", date(1958, 2, 1), None, "female", "hispanic"),
    ]
    known = rows(records.facts, "patient", "time", "name", "value")
    early, late = datetime(2008, 12, 31), datetime(2010, 12, 31)
    assert known == sorted(
        [
            ("A", early, "esrd", "no"),
            ("A", early, "sp_chf", "no"),
            ("A", early, "sp_ra_oa", "yes"),
            ("B", early, "esrd", "yes"),
            ("B", early, "sp_chf", "yes"),
            ("B", early, "sp_ra_oa", "no"),
            ("A", late, "esrd", "yes"),
            ("A", late, "sp_chf", "yes"),
            ("A", late, "sp_ra_oa", "yes"),
        ],
        key=repr,
    )
    assert records.as_of == date(2010, 12, 31)
    later = rows(records.visits.filter(records.visits.patient == "B"), "time")[-1][0].date()
    assert later > date(2008, 12, 31)  # B has no summary after 2008, but claims
    assert rows(records.periods, "patient", "start", "end") == [
        ("A", date(2008, 1, 1), date(2010, 12, 31)),
        ("B", date(2008, 1, 1), later),
    ]


def test_renamed_files_and_a_column_for_the_year(workspace, tmp_path):
    header, *lines = (SUMMARY + "A,19430101,,1,1,0,2,1\nA,19430101,,1,1,Y,1,1\n").splitlines()
    text = "\n".join([f"year,{header.lower()}", f"2008.0,{lines[0]}", f"2009.0,{lines[1]}"])
    files = {
        "my_OUTPATIENT.txt": OUTPATIENT.lower().replace("a,21", "A,21"),
        "beneficiary_2008_2010.CSV": text,
    }
    records = synpuf.read(workspace, written(tmp_path, files))
    assert rows(records.events, "patient", "code") == [("A", "25000")]
    assert rows(records.facts.filter(records.facts.name == "esrd"), "time", "value") == [
        (datetime(2008, 12, 31), "no"),
        (datetime(2009, 12, 31), "yes"),
    ]
    assert records.as_of == date(2009, 12, 31)


def test_only_the_requested_claims_are_read(workspace, tmp_path):
    folder = written(tmp_path, NATIVE)
    records = synpuf.read(workspace, folder, claims=("outpatient",))
    assert rows(records.events.filter(records.events.kind == "diagnosis"), "code") == [("25000",)]
    with pytest.raises(
        InputError, match="dental is not a kind of claims; choose from: inpatient, outpatient, carrier"
    ):
        synpuf.read(workspace, folder, claims=("dental",))


def test_a_file_and_its_packed_copy_are_one(workspace, tmp_path):
    written(tmp_path, NATIVE)
    records = synpuf.read(workspace, written(tmp_path, NATIVE, packed=True))
    assert records.events.count().to_pyarrow().as_py() == 10


def test_claims_without_a_summary(workspace, tmp_path):
    files = {name: text for name, text in NATIVE.items() if "Beneficiary" not in name}
    records = synpuf.read(workspace, written(tmp_path, files))
    assert rows(records.persons, "patient", "birth", "sex") == [("A", None, None), ("B", None, None)]
    assert records.facts is None
    assert records.as_of is None
    assert "There is no beneficiary summary" in records.notes[-1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "contains no claims: no CSV file has inpatient or outpatient or carrier in its name"),
        ({"outpatient.csv": "DESYNPUF_ID,CLM_ID\n"}, "outpatient claims lacks the column CLM_FROM_DT"),
        (
            {"outpatient.csv": OUTPATIENT.replace("20080816", "16AUG2008")},
            "column CLM_FROM_DT of outpatient claims has 1 value that is not a date;",
        ),
        (
            {"outpatient.csv": OUTPATIENT, "beneficiary.csv": SUMMARY},
            "beneficiary.csv has neither a column YEAR nor",
        ),
        (
            {"outpatient.csv": OUTPATIENT, "beneficiary_2008.csv": "DESYNPUF_ID,BENE_BIRTH_DT\n"},
            "the beneficiary summary lacks the column BENE_SEX_IDENT_CD",
        ),
        (
            {"outpatient.csv": OUTPATIENT, "beneficiary.csv": f"YEAR,{SUMMARY}20081,A,19430101,,1,1,0,2,1\n"},
            "column YEAR of the beneficiary summary has values that are not years",
        ),
        (
            {"outpatient.csv": OUTPATIENT, "pde.csv": "DESYNPUF_ID,SRVC_DT\n"},
            "prescription drug events lacks the",
        ),
        ({"outpatient.csv.gz": "text"}, "outpatient claims could not be read"),
    ],
)
def test_bad_folders_are_refused_in_one_sentence(workspace, tmp_path, files, message):
    with pytest.raises(InputError) as caught:
        synpuf.read(workspace, written(tmp_path, files))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_folder(workspace, tmp_path):
    with pytest.raises(InputError, match="is not a folder; give the folder of the SynPUF files"):
        synpuf.read(workspace, tmp_path / "none")


def linked(folder, **names):
    for name, target in names.items():
        (folder / f"{target}.csv.gz").symlink_to((PUBLIC / f"{name}.csv.gz").resolve())
    return folder


def test_a_bad_date_of_birth_among_many_is_missing_and_counted(workspace, tmp_path):
    rows = "".join(f"P{n},{'19500132' if n == 7 else '19500131'},,1,1,0,2,2\n" for n in range(40))
    name = "DE1_0_2008_Beneficiary_Summary_File_Sample_1.csv"
    records = synpuf.read(workspace, written(tmp_path, NATIVE | {name: SUMMARY + rows}))
    births = records.persons.to_pandas().set_index("patient").birth
    assert births.isna()["P7"]
    assert not births.isna()["P8"]
    assert (
        "Column BENE_BIRTH_DT of the beneficiary summary has 1 value that is not a date, counted as missing."
        in (records.notes)
    )


@needs_public
def test_slice_at_the_level_of_codes_equals_a_plain_reading(workspace, tmp_path):
    folder = linked(
        tmp_path,
        slice1_inpatient="DE1_0_2008_to_2010_Inpatient_Claims_Sample_1",
        slice1_outpatient="DE1_0_2008_to_2010_Outpatient_Claims_Sample_1",
        slice1_beneficiary_2008="DE1_0_2008_Beneficiary_Summary_File_Sample_1",
    )
    events = synpuf.read(workspace, folder).events
    expected = []
    for name in ("slice1_inpatient", "slice1_outpatient"):
        claims = pd.read_csv(PUBLIC / f"{name}.csv.gz", dtype=str)
        for pattern, kind in ((r"ICD9_DGNS_CD", "diagnosis"), (r"ICD9_PRCDR_CD", "procedure")):
            slots = [column for column in claims.columns if pattern in column]
            codes = claims.melt(["DESYNPUF_ID", "CLM_ID", "CLM_FROM_DT"], slots, value_name="code").assign(
                kind=kind
            )
            codes = codes.dropna(subset=["CLM_FROM_DT", "code"]).drop(columns="variable")
            expected.append(codes.drop_duplicates() if kind == "diagnosis" else codes)
    plain = pd.concat(expected)
    ours = events.to_pandas()
    ours["CLM_FROM_DT"] = ours.time.dt.strftime("%Y%m%d")
    ours = ours.rename(columns={"patient": "DESYNPUF_ID", "visit": "CLM_ID"})[plain.columns]
    names = list(plain.columns)
    pd.testing.assert_frame_equal(
        ours.sort_values(names, ignore_index=True),
        plain.sort_values(names, ignore_index=True),
        check_dtype=False,
    )


AGES = ["age_lt65", "age_65_69", "age_70_74", "age_75_79", "age_80_84", "age_85p"]


def static_of(workspace, records, who, at):
    """Static facts as the independent builds write them, of a day: ages reached and the flags known by then."""
    persons = records.persons.to_pandas().set_index("patient").loc[who]
    ages = (
        at.year - pd.to_datetime(persons.birth).dt.year
    )  # everybody's birthday is past on the last of December
    table = pd.get_dummies(pd.cut(ages, [0, 65, 70, 75, 80, 85, 200], right=False, labels=AGES), dtype=int)
    for value in ("male", "female"):
        table[f"sex_{value}"] = (persons.sex == value).astype(int)
    for value in ("white", "black", "other", "hispanic"):
        table[f"race_{value}"] = (persons.race == value).astype(int)
    wanted = workspace.ingest(pa.table({"patient": list(who)}).to_reader(), "wanted")
    facts = records.facts.filter(records.facts.time.date() <= at).semi_join(wanted, "patient")
    facts = facts.to_pandas().sort_values("time")
    last = facts.drop_duplicates(["patient", "name"], keep="last").pivot(
        index="patient", columns="name", values="value"
    )
    return table.join((last == "yes").astype(int))


@needs_public
def test_static_facts_of_the_independent_slice(workspace, tmp_path):
    """Ages at the end of the summary's year, 2008, and the flags of that year: all 812 patients agree."""
    folder = linked(tmp_path, slice1_outpatient="outpatient", slice1_beneficiary_2008="beneficiary_2008")
    records = synpuf.read(workspace, folder)
    assert records.as_of == date(2008, 12, 31)
    theirs = pd.read_csv(PUBLIC / "independent_build" / "slice1_static.csv.gz", index_col="DESYNPUF_ID")
    ours = static_of(workspace, records, theirs.index, records.as_of)[theirs.columns]
    pd.testing.assert_frame_equal(ours, theirs, check_names=False)


@needs_public
def test_static_facts_of_the_independent_inpatient_build(workspace, tmp_path):
    """It takes age and flags from the first summary, of 2008, even though summaries go on to 2010.

    By 2008 all 10 616 patients agree. Ours are the latest, of 2010: sex and race are the same, ages are two years
    on, and each flag has changed for a fifth to a half of the patients.
    """
    folder = linked(
        tmp_path, inpatient_18x10k="inpatient", beneficiary_2008_2010_18x10k_hospitalised="beneficiary"
    )
    records = synpuf.read(workspace, folder)
    assert records.as_of == date(2010, 12, 31)
    theirs = pd.read_csv(
        PUBLIC / "independent_build" / "inpatient18_min3_static.csv.gz", index_col="DESYNPUF_ID"
    )
    first = static_of(workspace, records, theirs.index, date(2008, 12, 31))[theirs.columns]
    pd.testing.assert_frame_equal(first, theirs, check_names=False)
    latest = static_of(workspace, records, theirs.index, records.as_of)[theirs.columns]
    differ = (latest != theirs).sum()
    assert differ.filter(regex="sex|race").sum() == 0
    assert (latest[AGES] != theirs[AGES]).any(axis=1).sum() == 2777
    assert differ[["esrd", "sp_alzhdmta", "sp_chf", "sp_cncr"]].tolist() == [3652, 5274, 4270, 2354]
