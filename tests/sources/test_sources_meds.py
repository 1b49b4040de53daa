"""MEDS folders, written with the schemas of the meds package itself."""

from datetime import date, datetime, timedelta

import meds
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phenotaste.errors import InputError
from phenotaste.sources import meds as source
from phenotaste.sources.meds import ParsedCode, parse_code, parse_measurement, static_fact
from phenotaste.sources.records import MEASUREMENTS
from phenotaste.sources.workspace import Workspace

DAY = datetime(2020, 5, 17, 8, 30)
ROWS = {  # two subjects in two shards: (time, code, numeric_value)
    1: [
        (None, "GENDER//F", None),
        (None, "MARITAL_STATUS//single", None),
        (datetime(1950, 3, 1), meds.birth_code, None),
        (DAY, "RACE//WHITE", None),
        (DAY, "DIAGNOSIS//ICD//9//4280", None),
        (DAY, "ICD10CM/I50.9", None),
        (DAY, "LAB//50912//mg/dL", 1.25),
        (DAY, "MEDICATION//START//Heparin", 5000.0),
        (DAY, "MEDICATION//STOP//Heparin", None),
        (datetime(2021, 1, 2, 3, 4), meds.death_code, None),
    ],
    2: [
        (None, "Gender/M", None),
        (None, "ICD9CM/401.9", None),
        (datetime(1960, 3, 1), meds.birth_code, None),
        (DAY, "RxNorm/617312", None),
        (DAY, "PROCEDURE//ICD//10//5A1D70Z", None),
        (DAY, "HOSPITAL_ADMISSION//EMERGENCY", None),
    ],
}


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


@pytest.fixture
def folder(tmp_path):
    for subject, rows in ROWS.items():
        times, codes, numbers = zip(*rows, strict=True)
        raw = pa.table(
            {
                "subject_id": [subject] * len(rows),
                "time": pa.array(times, pa.timestamp("us")),
                "code": list(codes),
                "numeric_value": pa.array(numbers, pa.float32()),
            }
        )
        file = tmp_path / meds.data_subdirectory / ("train" if subject == 1 else "tuning") / "0.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(meds.DataSchema.align(raw), file)
    (tmp_path / "metadata").mkdir()
    splits = pa.table({"subject_id": [1, 2], "split": [meds.train_split, meds.tuning_split]})
    pq.write_table(meds.SubjectSplitSchema.align(splits), tmp_path / meds.subject_splits_filepath)
    codes = pa.table(
        {
            "code": ["DIAGNOSIS//ICD//9//4280", "RxNorm/617312", "LAB//50912//mg/dL"],
            "description": ["Congestive heart failure", None, "Creatinine"],
            "parent_codes": pa.array([["ICD9CM/428.0"], None, None], pa.list_(pa.string())),
        }
    )
    pq.write_table(meds.CodeMetadataSchema.align(codes), tmp_path / meds.code_metadata_filepath)
    return tmp_path


def rows(table, *names):
    found = table.select(*names).to_pyarrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def test_events_are_what_the_codes_name(workspace, folder):
    records = source.read(workspace, folder)
    assert rows(records.events, "patient", "time", "visit", "kind", "vocabulary", "code", "value") == sorted(
        [
            (1, DAY, None, "diagnosis", "ICD9CM", "4280", None),
            (1, DAY, None, "diagnosis", "ICD10CM", "I50.9", None),
            (1, DAY, None, "medication", "MEDS", "Heparin", 5000.0),
            (2, DAY, None, "medication", "RxNorm", "617312", None),
            (2, DAY, None, "procedure", "ICD10PCS", "5A1D70Z", None),
        ],
        key=repr,
    )
    lost, untimed = records.notes
    assert lost.endswith("ignored: 3, with 3 codes.")  # a laboratory value, an admission, the end of a drug
    assert untimed.endswith("without a time, ignored: 1.")


def test_static_codes_are_columns_of_persons(workspace, folder):
    persons = source.read(workspace, folder).persons
    assert rows(persons, "patient", "birth", "death", "sex", "race", "ethnicity", "marital_status") == [
        (1, date(1950, 3, 1), date(2021, 1, 2), "female", "white", None, "single"),
        (2, date(1960, 3, 1), None, "male", None, None, None),
    ]


def test_names_come_from_the_metadata_and_may_be_absent(workspace, folder):
    assert rows(source.read(workspace, folder).names, "vocabulary", "code", "name") == [
        ("ICD9CM", "4280", "Congestive heart failure")
    ]
    (folder / meds.code_metadata_filepath).unlink()
    assert source.read(workspace, folder).names is None


def test_a_split_limits_subjects(workspace, folder):
    records = source.read(workspace, folder, split="tuning")
    assert rows(records.persons, "patient") == [(2,)]
    assert rows(records.events.distinct(), "patient")[0] == (2,)
    with pytest.raises(InputError, match=r"^there is no split test; the dataset has: train, tuning\.$"):
        source.read(workspace, folder, split="test")
    (folder / meds.subject_splits_filepath).unlink()
    with pytest.raises(InputError, match="does not exist"):
        source.read(workspace, folder, split="train")


def test_labels(workspace, folder):
    labels = pa.table(
        {
            "subject_id": [1, 2],
            "prediction_time": pa.array([DAY, DAY], pa.timestamp("us")),
            "boolean_value": [True, False],
        }
    )
    file = folder / "labels" / "death" / "0.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(meds.LabelSchema.align(labels), file)
    for path in (file, folder / "labels"):
        found = source.read(workspace, folder, labels=path).labels
        assert rows(found, "patient", "time", "value") == [(1, DAY, 1.0), (2, DAY, 0.0)]
    pq.write_table(labels.drop_columns("boolean_value"), file)
    with pytest.raises(InputError, match="labels lacks the column boolean_value"):
        source.read(workspace, folder, labels=file)


def test_an_encounter_column_of_an_extension_is_the_visit(workspace, folder):
    file = folder / meds.data_subdirectory / "train" / "0.parquet"
    table = pq.read_table(file)
    pq.write_table(table.append_column("hadm_id", pa.array([77] * len(table))), file)
    visits = dict(rows(source.read(workspace, folder).events.distinct(), "patient", "visit"))
    assert visits == {1: "77", 2: None}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ICD9CM/428.0", ("diagnosis", "ICD9CM", "428.0")),
        ("ICD10CM//I50", ("diagnosis", "ICD10CM", "I50")),
        ("DIAGNOSIS//ICD//10//I509", ("diagnosis", "ICD10CM", "I509")),
        ("PROCEDURE//ICD//9//0066", ("procedure", "ICD9Proc", "0066")),
        ("CONDITION//SNOMED//84114007", ("diagnosis", "SNOMED", "84114007")),
        ("SNOMED/84114007", ("diagnosis", "SNOMED", "84114007")),
        ("RxNorm/123", ("medication", "RxNorm", "123")),
        ("ATC//C09AA", ("medication", "ATC", "C09AA")),
        ("CPT4/99213", ("procedure", "CPT4", "99213")),
        ("MEDICATION//Heparin//Administered", ("medication", "MEDS", "Heparin")),
        ("MEDICATION//START//Heparin//63323026201", ("medication", "MEDS", "Heparin")),
        ("MEDICATION//Heparin//Administered//4096102", ("medication", "MEDS", "Heparin")),
        ("MEDICATION//Heparin//0", ("medication", "MEDS", "Heparin")),
        ("MEDICATION//Heparin//5000 units", ("medication", "MEDS", "Heparin//5000 units")),
        ("MEDICATION//START//UNK//409610204.0", ("medication", "NDC", "00409610204")),
        ("NDC//409610204", ("medication", "NDC", "00409610204")),
        ("DRUG//NDC//0409-6102-04", ("medication", "NDC", "00409610204")),
        ("NDC//local", ("medication", "NDC", "local")),
        ("MEDICATION//Heparin//Not Given", None),
        ("MEDICATION//UNK//UNK", None),
        ("INFUSION_START//221906", ("medication", "MEDS", "221906")),
        ("INFUSION_END//221906", None),
        ("PROCEDURE//END//225792", None),
        ("Dx/local name", ("diagnosis", "MEDS", "local name")),
        ("LAB//50912//mg/dL", None),
        ("HOSPITAL_ADMISSION", None),
        ("ICD9CM/", None),
        ("DIAGNOSIS", None),
        ("", None),
    ],
)
def test_meanings_of_codes(code, expected):
    assert parse_code(code) == (None if expected is None else ParsedCode(*expected))


@pytest.mark.parametrize("code", ["MEDICATION//Heparin//409610204", "MEDICATION//Heparin//00409610204"])
def test_named_drugs_by_ndc_code(code):
    assert parse_code(code, "ndc") == ParsedCode("medication", "NDC", "00409610204")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("LAB//50912//mg/dL", ("MEDS", "50912", "mg/dL")),
        ("LAB//50912//UNK", ("MEDS", "50912", None)),
        ("LOINC/2160-0", ("LOINC", "2160-0", None)),
        ("LAB//LOINC//2160-0//mg/dL", ("LOINC", "2160-0", "mg/dL")),
        ("HR", ("MEDS", "HR", None)),
        ("MEDICATION//STOP//Heparin", None),
        ("HOSPITAL_DISCHARGE//HOME", None),
    ],
)
def test_codes_of_measurements(code, expected):
    assert parse_measurement(code, has_numbers=False) is None
    assert parse_measurement(code, has_numbers=True) == (
        None if expected is None else ParsedCode("measurement", *expected)
    )


def test_measurements_on_request(workspace, folder):
    records = source.read(workspace, folder, kinds=("diagnosis", "measurement"))
    assert records.measurements.columns == MEASUREMENTS
    assert rows(records.measurements, "patient", "time", "vocabulary", "code", "value", "unit") == [
        (1, DAY, "MEDS", "50912", 1.25, "mg/dL")
    ]
    assert ("MEDS", "50912", "Creatinine") in rows(records.names, "vocabulary", "code", "name")
    assert source.read(workspace, folder).measurements is None
    assert rows(records.events, "code") == rows(source.read(workspace, folder).events, "code")


def stays(tmp_path, **more):
    """One stay with an admission, a diagnosis and a discharge, and one of which only the diagnosis is known."""
    hours = [0, 1, 30, 40]
    codes = ["HOSPITAL_ADMISSION//EMERGENCY", "ICD10CM//I10", "HOSPITAL_DISCHARGE//HOME", "ICD10CM//I10"]
    if more:
        codes[0] = "Visit/IP"
    data = {
        "subject_id": [1] * 4,
        "time": [DAY + timedelta(hours=hour) for hour in hours],
        "code": codes,
        "hadm_id": [7, 7, 7, 8],
    }
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(data | more), tmp_path / "data" / "0.parquet")
    return tmp_path


def test_encounters_have_a_start_and_an_end(workspace, tmp_path):
    records = source.read(workspace, stays(tmp_path))
    expected = [(1, "7", DAY, DAY + timedelta(hours=30))]
    assert rows(records.visits, "patient", "visit", "time", "end_time") == expected
    assert rows(records.events, "visit", "code") == [("7", "I10"), ("8", "I10")]


def test_the_end_of_a_visit_may_be_a_column(workspace, tmp_path):
    end = [DAY + timedelta(hours=50), None, None, None]
    records = source.read(workspace, stays(tmp_path, end=end))
    assert rows(records.visits, "end_time") == [(DAY + timedelta(hours=50),)]


def test_static_facts_of_codes():
    assert static_fact("Gender/F", timeless=False) == ("sex", "f")
    assert static_fact("EYE_COLOR//Brown", timeless=True) == ("eye_color", "Brown")
    assert static_fact("EYE_COLOR//Brown", timeless=False) is None
    assert static_fact("SMOKER", timeless=True) == ("smoker", "yes")
    assert static_fact("RACE//UNKNOWN", timeless=True) is None
    assert static_fact("ICD9CM/428.0", timeless=True) is None


def test_a_folder_that_is_not_meds_is_refused(workspace, tmp_path):
    with pytest.raises(InputError, match="has no folder data; give the root of a MEDS dataset"):
        source.read(workspace, tmp_path)
    (tmp_path / "data").mkdir()
    with pytest.raises(InputError, match="contains no Parquet file"):
        source.read(workspace, tmp_path)
    file = tmp_path / "data" / "0.parquet"
    pq.write_table(pa.table({"subject_id": [1], "time": [DAY]}), file)
    with pytest.raises(
        InputError, match=r"^data lacks the column code; its columns are: subject_id, time\.$"
    ):
        source.read(workspace, tmp_path)
    pq.write_table(pa.table({"subject_id": [1], "time": [DAY], "code": [428.0]}), file)
    with pytest.raises(InputError, match="column code of data is of the type float64 and cannot hold codes"):
        source.read(workspace, tmp_path)
    file.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="data is not a valid Parquet file"):
        source.read(workspace, tmp_path)


def test_a_source_without_events_is_valid(workspace, tmp_path):
    (tmp_path / "data").mkdir()
    empty = pa.table(
        {"subject_id": [], "time": [], "code": []}, schema=pa.schema(list(meds.DataSchema.schema())[:3])
    )
    pq.write_table(empty, tmp_path / "data" / "0.parquet")
    records = source.read(workspace, tmp_path)
    assert records.events.count().to_pyarrow().as_py() == records.persons.count().to_pyarrow().as_py() == 0
