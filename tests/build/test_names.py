"""Names of codes from a user's table: precedence, vocabularies, versions of ICD and groups of ATC."""

import pandas as pd
import pytest

from phenotaste import build
from phenotaste.build.names import NameTable
from phenotaste.build.settings import Groups, Settings
from phenotaste.errors import InputError
from phenotaste.sources import tables
from phenotaste.sources.workspace import Workspace

EVENTS = pd.DataFrame(
    {
        "patient": [1, 1, 2, 2],
        "time": "2020-01-05",
        "code": ["401.9", "I10", "C09AA02", "250.0"],
        "vocabulary": ["ICD9CM", "ICD10CM", "ATC", "ICD9CM"],
        "kind": ["dx", "dx", "rx", "dx"],
    }
)


def feature_names(tmp_path, names, **groups):
    EVENTS.to_csv(tmp_path / "e.csv", index=False)
    names.to_csv(tmp_path / "names.csv", index=False)
    settings = Settings(groups=Groups(names=str(tmp_path / "names.csv"), **groups))
    with Workspace() as workspace:
        records = tables.read(workspace, tmp_path / "e.csv")
        theirs = records.events.select("vocabulary", "code").mutate(
            name=records.events.code + " of the source"
        )
        built = build.cohort(workspace, records._replace(names=theirs), settings)
    return set(built.cohort.feature_names)


def test_names_of_the_table_take_precedence(tmp_path):
    names = pd.DataFrame(
        {
            "icd_code": ["4019", "i10", "4019", "2500"],
            "icd_version": [9, 10, 10, 10],
            "long_title": ["Hypertension", "Hypertension (ICD-10)", "wrong", "wrong"],
        }
    )
    assert feature_names(tmp_path, names) == {
        "Dx_Hypertension [401.9]",
        "Dx_Hypertension (ICD-10) [I10]",
        "Rx_C09AA02 of the source [C09AA02]",
        "Dx_250.0 of the source [250.0]",
    }


def test_groups_of_atc_codes_are_named(tmp_path):
    names = pd.DataFrame({"code": ["C09AA", "C09AA02"], "name": ["ACE inhibitors", "enalapril"]})
    found = feature_names(tmp_path, names.assign(vocabulary="ATC"), atc=4)
    assert "Rx_ACE inhibitors [C09AA]" in found


def test_a_file_of_procedures_names_procedures(tmp_path):
    file = tmp_path / "d_icd_procedures.csv"
    file.write_text("icd_code,icd_version,long_title\n3893,9,Venous catheterization\n")
    table = NameTable.read(str(file))
    assert table.get("ICD9Proc", "3893") == "Venous catheterization"
    assert table.get("ICD9CM", "3893") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("code,colour\nI10,red\n", "lacks the columns code and name"),
        ("code,name\n,x\n", "no row with a code"),
    ],
)
def test_other_tables_are_refused(tmp_path, text, message):
    (tmp_path / "names.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        NameTable.read(str(tmp_path / "names.csv"))
    with pytest.raises(InputError, match="does not exist"):
        NameTable.read(str(tmp_path / "none.csv"))
