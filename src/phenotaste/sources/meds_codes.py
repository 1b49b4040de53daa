"""What a MEDS code says about itself: its kind, its vocabulary and the plain code, or which static fact it is.

MEDS leaves the spelling of codes to whoever made the data. These are the ways in use:

    ICD9CM/428.0   ICD10CM//I50.9   RxNorm/617312   ATC//C09AA      vocabulary, code (as OMOP names them)
    DIAGNOSIS//ICD//9//4280         PROCEDURE//ICD//10//5A1D70Z     kind, ICD, version, code (MIMIC-IV)
    CONDITION//SNOMED//84114007                                     kind, vocabulary, code
    MEDICATION//START//Heparin      MEDICATION//Heparin//Administered//63323026201
    INFUSION_START//221906          PROCEDURE//START//225792        kind, local code
    GENDER//F   Race/5   ETHNICITY//HISPANIC                        static facts
"""

import re
from typing import NamedTuple

from phenotaste.sources.records import (
    ATC,
    DIAGNOSIS,
    ICD9CM,
    ICD10CM,
    MEDICATION,
    NDC,
    PROCEDURE,
    RXNORM,
    SNOMED,
)

LOCAL = "MEDS"  # the vocabulary of codes that are nobody's but the data's
KINDS = {
    "DIAGNOSIS": DIAGNOSIS,
    "CONDITION": DIAGNOSIS,
    "DX": DIAGNOSIS,
    "MEDICATION": MEDICATION,
    "DRUG": MEDICATION,
    "RX": MEDICATION,
    "INFUSION": MEDICATION,
    "INFUSION_START": MEDICATION,
    "PROCEDURE": PROCEDURE,
    "PX": PROCEDURE,
}
VOCABULARIES = {  # and the kind of what they code; SNOMED has more than diagnoses, but mostly these are recorded
    "ICD9": (ICD9CM, DIAGNOSIS),
    "ICD9CM": (ICD9CM, DIAGNOSIS),
    "ICD10": (ICD10CM, DIAGNOSIS),
    "ICD10CM": (ICD10CM, DIAGNOSIS),
    "SNOMED": (SNOMED, DIAGNOSIS),
    "SNOMEDCT": (SNOMED, DIAGNOSIS),
    "RXNORM": (RXNORM, MEDICATION),
    "RXNORM EXTENSION": ("RxNorm Extension", MEDICATION),
    "NDC": (NDC, MEDICATION),
    "ATC": (ATC, MEDICATION),
    "ICD9PROC": ("ICD9Proc", PROCEDURE),
    "ICD10PCS": ("ICD10PCS", PROCEDURE),
    "CPT": ("CPT4", PROCEDURE),
    "CPT4": ("CPT4", PROCEDURE),
    "HCPCS": ("HCPCS", PROCEDURE),
}
ICD_VERSIONS = {
    (DIAGNOSIS, "9"): ICD9CM,
    (DIAGNOSIS, "10"): ICD10CM,
    (PROCEDURE, "9"): "ICD9Proc",
    (PROCEDURE, "10"): "ICD10PCS",
}
STARTS, STOPS = (
    ("START", "STARTED"),
    ("STOP", "STOPPED", "END"),
)  # a stop tells nothing that the start did not
GIVEN = ("ADMINISTERED", "APPLIED", "CONFIRMED", "STARTED")
UNKNOWN = ("", "UNK", "UNKNOWN")
DEMOGRAPHICS = {"GENDER": "sex", "SEX": "sex", "RACE": "race", "ETHNICITY": "ethnicity"}


class Meaning(NamedTuple):
    """A code of an event."""

    kind: str
    vocabulary: str
    code: str


def parts_of(code: str) -> list[str]:
    """The parts between double slashes, or, where there are none, before and after the first slash."""
    parts = code.split("//") if "//" in code else code.split("/", 1)
    return [part.strip() for part in parts]


def meaning(code: str) -> Meaning | None:
    """What an event's code stands for; None for laboratory values, admissions and other codes of no kind of ours."""
    head, *rest = parts_of(code)
    if head.upper() in VOCABULARIES:
        vocabulary, kind = VOCABULARIES[head.upper()]
        return Meaning(kind, vocabulary, rest[0]) if rest and rest[0].upper() not in UNKNOWN else None
    kind = KINDS.get(head.upper(), "")
    if not kind or not rest or rest[0].upper() in STOPS:
        return None
    if rest[0].upper() in STARTS:
        rest = rest[1:]
    return meaning_within(kind, rest)


def meaning_within(kind: str, parts: list[str]) -> Meaning | None:
    """What follows the kind: ICD and its version, a vocabulary, or local words."""
    upper = [part.upper() for part in parts]
    if len(parts) >= 3 and upper[0] == "ICD" and (kind, upper[1]) in ICD_VERSIONS:
        return Meaning(kind, ICD_VERSIONS[kind, upper[1]], parts[2])
    if len(parts) >= 2 and upper[0] in VOCABULARIES:
        return Meaning(kind, VOCABULARIES[upper[0]][0], parts[1])
    if kind == MEDICATION and any(re.match("NOT |STOPPED|HOLD|HELD|REMOVED", part) for part in upper[1:]):
        return None  # an order that was not carried out
    if kind == MEDICATION and len(parts) >= 2 and re.fullmatch(r"\d{11}", parts[-1]):
        return Meaning(kind, NDC, parts[-1])
    left = [part for part in parts if part.upper() not in (*GIVEN, *UNKNOWN)]
    return Meaning(kind, LOCAL, "//".join(left)) if left else None


def static_fact(code: str, timeless: bool) -> tuple[str, str] | None:
    """The column and the value that a static code stands for; demographics count whether or not they have a time."""
    head, *rest = parts_of(code)
    column = DEMOGRAPHICS.get(head.upper())
    if column is None and timeless and meaning(code) is None:
        column = head.lower()
    if column is None:
        return None
    value = "//".join(rest)
    if value.upper() in UNKNOWN:
        return (column, "yes") if not rest else None
    return column, value if column not in DEMOGRAPHICS.values() else value.lower()
