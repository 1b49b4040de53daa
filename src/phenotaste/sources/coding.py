"""Vocabularies by ICD version or form, fields with several codes, and drug codes that lost their leading zeros."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from phenotaste.sources.records import DIAGNOSIS, ICD9CM, ICD10CM, PROCEDURE

if TYPE_CHECKING:
    from ibis import Table, Value

ICD9PROC, ICD10PCS = "ICD9Proc", "ICD10PCS"
EITHER_ICD = "ICD"  # the vocabulary of codes that are ICD-9-CM or ICD-10-CM, by their form
ICD_VERSIONS = {
    (DIAGNOSIS, "9"): ICD9CM,
    (DIAGNOSIS, "10"): ICD10CM,
    (PROCEDURE, "9"): ICD9PROC,
    (PROCEDURE, "10"): ICD10PCS,
}
NDC_DIGITS = 11
# Shorter numbers are not NDC codes: a labeler has at most four leading zeros, and its products follow.
NDC_PATTERN = r"^\d{6,11}$"
HYPHENATED_NDC = r"^(\d{4,5})-(\d{3,4})-(\d{1,2})$"


def icd_vocabulary_of(version: "Value", kind: str) -> "Value":
    """The vocabulary of a column of ICD versions, "9" or "10"; null for other values."""
    versions: Mapping[str, str] = {v: name for (of_kind, v), name in ICD_VERSIONS.items() if of_kind == kind}
    return version.strip().cases(*versions.items(), else_=None)


def normalise_ndc(code: "Value") -> "Value":
    """NDC codes with 11 digits: leading zeros restored, hyphens removed; null for what is not an NDC code."""
    import ibis

    plain = code.strip().re_replace(r"\.0$", "")
    parts = [
        plain.re_extract(HYPHENATED_NDC, part).lpad(width, "0") for part, width in ((1, 5), (2, 4), (3, 2))
    ]
    zeros = plain.re_search(r"^0+$")
    return ibis.cases(
        (plain.re_search(NDC_PATTERN) & ~zeros, plain.lpad(NDC_DIGITS, "0")),
        (plain.re_search(HYPHENATED_NDC), parts[0] + parts[1] + parts[2]),
        else_=None,
    )


def ndc_of_text(code: str) -> str | None:
    """As normalise_ndc, for a single code.

    >>> ndc_of_text("409610204"), ndc_of_text("0409-6102-04"), ndc_of_text("409610204.0"), ndc_of_text("0")
    ('00409610204', '00409610204', '00409610204', None)
    """
    plain = code.strip().removesuffix(".0")
    if parts := re.fullmatch(HYPHENATED_NDC, plain):
        return parts[1].zfill(5) + parts[2].zfill(4) + parts[3].zfill(2)
    return plain.zfill(NDC_DIGITS) if re.fullmatch(NDC_PATTERN, plain) and plain.strip("0") else None


def icd_by_form(code: "Value", kind: "Value") -> "Value":
    """The ICD vocabulary of a code by its form, for sources that mix the versions without saying which.

    ICD-9-CM diagnoses begin with a digit, with V and two to four digits, or with E and three digits before the dot.
    Without a dot, E codes from E800 on could be of either version and are read as ICD-10-CM, except from E900 on,
    where ICD-10-CM has none. ICD-9-CM procedures have two digits before the dot, and three or four in all.
    """
    import ibis

    upper = code.strip().upper()
    ninth = upper.re_search(r"^(\d{3}(\.?\d{1,2})?|V\d{2}(\.?\d{1,2})?|E\d{3}(\.\d)?|E9\d{2}\d?)$")
    ambiguous = upper.re_search(r"^E[0-8]\d{2}\d?$")  # E119 is E11.9, E8809 may be E88.09
    procedure = upper.re_search(r"^\d{2}(\.?\d{1,2})$")
    return ibis.cases(
        (kind.notin([DIAGNOSIS, PROCEDURE]), ibis.null("string")),
        (kind == PROCEDURE, procedure.ifelse(ICD9PROC, ICD10PCS)),
        (ninth & ~ambiguous, ICD9CM),
        (upper.re_search(r"^[A-Z]\d[0-9A-Z]"), ICD10CM),
        else_=None,
    )


def split_codes(table: "Table", separators: str) -> "Table":
    """One row for each code of a field such as "401.9, I10"; a field without a code keeps one row."""
    pattern = "[" + "".join(rf"\{letter}" for letter in separators) + "]"
    whole = table.code.fill_null("")
    parts = table.mutate(whole=whole, code=whole.re_split(pattern).unnest())
    parts = parts.mutate(code=parts.code.strip().nullif(""))
    return parts.filter(parts.code.notnull() | (parts.whole == "")).drop("whole")
