"""Synthea exports of old and of new layout."""

from datetime import date, datetime

import pytest

from phenotaste.errors import InputError
from phenotaste.sources import synthea
from phenotaste.sources.workspace import Workspace

NEW = {
    "patients": """Id,BIRTHDATE,DEATHDATE,SSN,FIRST,MIDDLE,LAST,RACE,ETHNICITY,GENDER
p1,1950-03-01,,999,A,M,B,white,nonhispanic,F
p2,1960-03-01,2020-07-01,998,C,,D,black,hispanic,M
""",
    "encounters": """Id,START,STOP,PATIENT,ENCOUNTERCLASS,CODE,DESCRIPTION
e1,2020-01-05T23:30:00Z,2020-01-06T00:30:00Z,p1,ambulatory,1,Visit
e2,2020-02-05T10:00:00Z,,p2,ambulatory,1,Visit
e3,2020-03-05T10:00:00Z,,p2,wellness,1,Visit
""",
    "conditions": """START,STOP,PATIENT,ENCOUNTER,SYSTEM,CODE,DESCRIPTION
2020-01-05,,p1,e1,http://snomed.info/sct,84114007,"Heart failure, unspecified (disorder)"
2020-02-05,2020-02-09,p2,e2,http://hl7.org/fhir/sid/icd-10-cm,I10,Essential hypertension
""",
    "medications": """START,STOP,PATIENT,PAYER,ENCOUNTER,CODE,DESCRIPTION,BASE_COST
2020-01-05T23:45:00Z,,p1,x,e1,314076,lisinopril 10 MG Oral Tablet,1.5
""",
    "procedures": """START,STOP,PATIENT,ENCOUNTER,SYSTEM,CODE,DESCRIPTION
2020-02-05T10:10:00Z,2020-02-05T10:20:00Z,p2,e2,http://snomed.info/sct,430193006,Medication reconciliation
""",
    "observations": """DATE,PATIENT,ENCOUNTER,CATEGORY,CODE,DESCRIPTION,VALUE,UNITS,TYPE
2020-01-05T23:35:00Z,p1,e1,vital-signs,39156-5,Body mass index,31.5,kg/m2,numeric
2020-01-05T23:35:00Z,p1,e1,social-history,72166-2,Tobacco,Never smoked tobacco (finding),,text
2020-02-05T10:00:00Z,p2,e2,social-history,72166-2,Tobacco,Ex-smoker (finding),,text
2020-03-05T10:00:00Z,p2,e3,social-history,72166-2,Tobacco,Smokes tobacco daily (finding),,text
2020-03-05T10:00:00Z,p2,e3,vital-signs,8302-2,Body height,180,cm,numeric
2020-03-05T10:00:00Z,p2,e3,survey,99999-9,What neighbours do,They smoke,,text
""",
}
OLD = {  # without SYSTEM, MIDDLE and times; ID and DATE
    "patients": """ID,BIRTHDATE,DEATHDATE,SSN,FIRST,LAST,RACE,ETHNICITY,GENDER
p1,1950-03-01,,999,A,B,white,irish,F
""",
    "encounters": "ID,DATE,PATIENT,CODE,DESCRIPTION\ne1,2010-01-05,p1,1,Visit\n",
    "conditions": "START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n2010-01-05,,p1,e1,84114007,Heart failure\n",
    "procedures": "DATE,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n2010-01-05,p1,e1,430193006,Reconciliation\n",
}


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


def export(folder, files):
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def rows(table, *names):
    found = table.select(*names).to_pyarrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def test_a_new_export(workspace, tmp_path):
    records = synthea.read(workspace, export(tmp_path, NEW))
    assert rows(records.events, "patient", "time", "visit", "kind", "vocabulary", "code") == [
        ("p1", datetime(2020, 1, 5), "e1", "diagnosis", "SNOMED", "84114007"),
        ("p1", datetime(2020, 1, 5, 23, 45), "e1", "medication", "RxNorm", "314076"),
        ("p2", datetime(2020, 2, 5), "e2", "diagnosis", "ICD10CM", "I10"),
        ("p2", datetime(2020, 2, 5, 10, 10), "e2", "procedure", "SNOMED", "430193006"),
    ]
    assert rows(records.persons, "patient", "birth", "death", "sex", "race", "ethnicity") == [
        ("p1", date(1950, 3, 1), None, "female", "white", "nonhispanic"),
        ("p2", date(1960, 3, 1), date(2020, 7, 1), "male", "black", "hispanic"),
    ]
    assert rows(records.visits, "patient", "visit", "time", "end_time") == [
        ("p1", "e1", datetime(2020, 1, 5, 23, 30), datetime(2020, 1, 6, 0, 30)),
        ("p2", "e2", datetime(2020, 2, 5, 10), None),
        ("p2", "e3", datetime(2020, 3, 5, 10), None),
    ]
    assert ("SNOMED", "84114007", "Heart failure, unspecified (disorder)") in rows(
        records.names, "vocabulary", "code", "name"
    )
    assert records.notes == ()


def test_columns_of_other_names(workspace, tmp_path):
    files = dict(OLD)
    files["encounters"] = files["encounters"].replace("DATE", "BEGIN").replace("PATIENT", "WHO")
    files["conditions"] = files["conditions"].replace("CODE", "SNOMED_CODE").replace("PATIENT", "WHO")
    export(tmp_path, files)
    with pytest.raises(InputError, match="conditions lacks the column PATIENT"):
        synthea.read(workspace, tmp_path)
    columns = {"PATIENT": "who", "encounters.START": "BEGIN", "conditions.CODE": "SNOMED_CODE"}
    records = synthea.read(workspace, tmp_path, columns=columns)
    assert rows(records.events, "patient", "code") == [("p1", "430193006"), ("p1", "84114007")]
    assert rows(records.visits, "patient", "time") == [("p1", datetime(2010, 1, 5))]
    for wrong, message in (
        ({"COLOUR": "x"}, "no column COLOUR to map"),
        ({"shoes.CODE": "x"}, r"no column shoes\.CODE"),
        ({"SYSTEM": "nothing"}, "no file has the column nothing for SYSTEM"),
    ):
        with pytest.raises(InputError, match=message):
            synthea.read(workspace, tmp_path, columns=columns | wrong)


def test_body_mass_and_smoking_are_facts(workspace, tmp_path):
    facts = synthea.read(workspace, export(tmp_path, NEW)).facts
    assert rows(facts, "patient", "time", "name", "value", "number") == [
        ("p1", datetime(2020, 1, 5, 23, 35), "bmi", None, 31.5),
        ("p1", datetime(2020, 1, 5, 23, 35), "smoking", "no", None),
        ("p2", datetime(2020, 2, 5, 10), "smoking", "quit", None),
        ("p2", datetime(2020, 3, 5, 10), "smoking", "yes", None),
    ]


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        ("Never smoker", "no"),
        ("Former smoker", "quit"),
        ("Current every day smoker", "yes"),
        ("Current some day smoker", "yes"),
        ("Unknown if ever smoked", None),
        ("449868002", None),  # a code without its words
    ],
)
def test_answers_about_smoking(workspace, tmp_path, answer, level):
    text = f"DATE,PATIENT,CODE,VALUE\n2020-01-05,p1,72166-2,{answer}\n"
    facts = synthea.read(workspace, export(tmp_path, NEW | {"observations": text})).facts
    assert rows(facts, "value") == ([] if level is None else [(level,)])


def test_an_old_export(workspace, tmp_path):
    records = synthea.read(workspace, export(tmp_path, OLD))
    assert rows(records.events, "patient", "time", "visit", "kind", "vocabulary", "code") == [
        ("p1", datetime(2010, 1, 5), "e1", "diagnosis", "SNOMED", "84114007"),
        ("p1", datetime(2010, 1, 5), "e1", "procedure", "SNOMED", "430193006"),
    ]
    assert rows(records.visits, "visit", "time") == [("e1", datetime(2010, 1, 5))]
    assert records.facts is None


def test_patients_whom_the_list_lacks_are_kept_and_counted(workspace, tmp_path):
    stranger = NEW["conditions"] + "2020-02-05,,p9,,http://snomed.info/sct,1,x\n"
    records = synthea.read(workspace, export(tmp_path, NEW | {"conditions": stranger}))
    assert ("p9", None) in rows(records.persons, "patient", "birth")
    assert records.notes == (
        "Patients with events but without a row in patients, whose static facts are missing: 1.",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patients": None}, "contains no patients.csv"),
        (
            {"conditions": None, "medications": None, "procedures": None},
            "contains neither conditions.csv nor",
        ),
        ({"conditions": "START,PATIENT\n"}, "conditions lacks the column CODE"),
        ({"conditions": "PATIENT,CODE\np1,2\n"}, "conditions lacks the column START"),
        (
            {"conditions": "START,PATIENT,CODE\n05/01/2020,p1,2\n"},
            "column START of conditions has 1 value that is not a time;",
        ),
        (
            {"patients": NEW["patients"] + "p1,1951-03-01,,9,A,M,B,w,n,F\n"},
            "patients has several rows for some patients (1 too many)",
        ),
    ],
)
def test_bad_exports_are_refused(workspace, tmp_path, changes, message):
    files = {name: text for name, text in (NEW | changes).items() if text is not None}
    with pytest.raises(InputError) as caught:
        synthea.read(workspace, export(tmp_path, files))
    assert message in str(caught.value)


def test_an_empty_folder_and_none_at_all(workspace, tmp_path):
    with pytest.raises(InputError, match=r"contains no patients\.csv"):
        synthea.read(workspace, tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        synthea.read(workspace, tmp_path / "none")


def test_numeric_observations_are_measurements_on_request(workspace, tmp_path):
    folder = export(tmp_path, NEW)
    assert synthea.read(workspace, folder).measurements is None
    records = synthea.read(workspace, folder, kinds=("diagnosis", "measurement"))
    found = records.measurements.to_pyarrow().sort_by("code").to_pylist()
    assert [
        (row["patient"], row["visit"], row["vocabulary"], row["code"], row["value"], row["unit"])
        for row in found
    ] == [
        ("p1", "e1", "LOINC", "39156-5", 31.5, "kg/m2"),
        ("p2", "e3", "LOINC", "8302-2", 180.0, "cm"),
    ]
    assert [row["low"] for row in found] == [None, None]
    names = {row["code"]: row["name"] for row in records.names.to_pyarrow().to_pylist()}
    assert names["8302-2"] == "Body height"
