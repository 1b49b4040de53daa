"""Grouping of codes to features by CCS, CCSR, ATC or a user's table; works on the distinct codes, not on events."""

import csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phenotaste.build import ccs
from phenotaste.build.ccs import icd_vocabulary
from phenotaste.build.settings import Groups
from phenotaste.errors import InputError
from phenotaste.sources.records import ATC, DIAGNOSIS, ICD9CM, ICD10CM, MEASUREMENT, MEDICATION, PROCEDURE
from phenotaste.storage.input_files import limited_lines

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = {DIAGNOSIS: "Dx_", MEDICATION: "Rx_", PROCEDURE: "Px_", MEASUREMENT: "Lab_"}
ATC_LETTERS = {1: 1, 2: 3, 3: 4, 4: 5, 5: 7}
NO_CONCEPT = {("OMOP", "0"), ("NONE", "0")}  # OMOP's concept for unmapped codes
CODE, GROUP, VOCABULARY = "code", "group", "vocabulary"
AHRQ_LEVELS = tuple(f"ccs lvl {level} label" for level in (3, 2, 1))  # of AHRQ's ccs_multi_dx_tool_2015.csv
CCSR_CODE = "icd-10-cm code"  # of AHRQ's DXCCSR_v2024-1.csv, with up to six categories of each code
CCSR_CATEGORY = re.compile(r"ccsr category [0-9]+")
# Of the PheWAS Catalog's maps: code, vocabulary unless the column of codes states it, phecode, and its name.
PHECODE, PHECODE_NAMES = "phecode", ("phenotype", "phecode_string", "phecodestring")
PHECODE_CODES = {
    "icd9": ICD9CM,
    "icd9cm": ICD9CM,
    "icd10": ICD10CM,
    "icd10cm": ICD10CM,
    "icd": None,
    "code": None,
}
PHECODE_VOCABULARIES = ("vocabulary_id", "vocabulary", "flag")
FLAGS = {"9": ICD9CM, "10": ICD10CM}
CCSR_LABEL = re.compile(r".* \[([A-Z]{3}[0-9]{3})\]")
PARQUET = (".parquet", ".pq")


def assign(codes: "pa.Table", groups: Groups, names: "pa.Table | None" = None) -> list[tuple[str, ...]]:
    """The features of each row of `codes` (vocabulary, code, kind, name, events); none for an unmapped code.

    `names` (vocabulary, code, name) do not depend on the codes that occur; a group of ATC codes takes the name of its
    own code there or in `codes`.
    """
    grouper = Grouper(groups, atc_names(codes) | ({} if names is None else atc_names(names)))
    return [grouper.features(row) for row in codes.to_pylist()]


class Grouper:
    """The groupers of the settings, with their tables loaded."""

    def __init__(self, groups: Groups, names: dict[str, str]) -> None:
        self.groups = groups
        self.names = names
        self.table = None if groups.table is None else GroupTable.read(groups.table)
        self.categories = None
        if groups.ccs in ("multi3", "ccsr") and groups.multi3 is not None:
            self.categories = GroupTable.read(groups.multi3)

    def features(self, row: dict[str, Any]) -> tuple[str, ...]:
        vocabulary, code, kind = row["vocabulary"] or "", (row["code"] or "").strip(), row["kind"]
        level = None
        if kind == MEASUREMENT:
            code, level = split_level(code)
        if not code or (vocabulary.upper(), code) in NO_CONCEPT:
            return ()
        names = self.grouped(vocabulary, code, kind)
        if names and level is not None:
            names = tuple(f"{name} {level}" for name in names)
        elif not names:
            if self.applies_to(vocabulary, kind) and self.groups.unmapped == "drop":
                return ()
            names = (ungrouped_name(vocabulary, code, row["name"], level),)
        prefix = PREFIX[kind]
        return tuple(name if name.startswith(prefix) else prefix + name for name in names)

    def grouped(self, vocabulary: str, code: str, kind: str) -> tuple[str, ...]:
        """The groups from the first grouper that maps the code, the user's table last."""
        if kind == DIAGNOSIS and self.groups.ccs and (found := self.diagnosis_groups(vocabulary, code)):
            return found
        if kind == MEDICATION and self.groups.atc and vocabulary.upper() == ATC:
            letters = ATC_LETTERS[self.groups.atc]
            if len(code) >= letters:
                short = code[:letters].upper()
                return (ungrouped_name(ATC, short, self.names.get(short)),)
        return () if self.table is None else self.table.get(vocabulary, code)

    def diagnosis_groups(self, vocabulary: str, code: str) -> tuple[str, ...]:
        if self.groups.ccs == "single":
            single = ccs.single(vocabulary, code)
            return () if single is None else (f"{single[1]} [{single[0]}.]",)
        found = () if self.categories is None else self.categories.get(vocabulary, code)
        if not found and self.groups.ccs == "ccsr" and (category := ccs.refined(vocabulary, code)):
            return self.named_category(category)
        return found

    def named_category(self, category: str) -> tuple[str, ...]:
        """A CCSR category under the name of the user's table, where it has one."""
        label = None if self.categories is None else self.categories.labels.get(category)
        return (label or f"{category} [CCSR]",)

    def applies_to(self, vocabulary: str, kind: str) -> bool:
        """Whether a grouper is requested for such codes: those that it does not map are then unmapped."""
        if (kind == DIAGNOSIS and self.groups.ccs) or (kind == MEDICATION and self.groups.atc):
            return True
        return self.table is not None and self.table.applies_to(vocabulary)


def ungrouped_name(vocabulary: str, code: str, name: str | None, level: str | None = None) -> str:
    """The feature name of an ungrouped code; depends on the code only, so that later data give the same name."""
    name = " ".join((name or "").split())
    suffix = f" {level}" if level else ""
    if name:
        return f"{name}{suffix} [{code}]"
    return f"{code}{suffix} [{vocabulary}]" if vocabulary else code + suffix


def split_level(code: str) -> tuple[str, str]:
    """The code of a measurement event as the source's code and the level.

    >>> split_level("2345-7 high")
    ('2345-7', 'high')
    """
    base, _, level = code.rpartition(" ")
    return base, level


def atc_names(table: "pa.Table") -> dict[str, str]:
    rows = table.select(["vocabulary", "code", "name"]).to_pylist()
    return {
        row["code"].strip().upper(): row["name"]
        for row in rows
        if row["code"] and row["name"] and (row["vocabulary"] or "").upper() == ATC
    }


class GroupTable:
    """A user's table of codes and groups; ignores case, and the dots of ICD codes. A code may have several groups."""

    def __init__(self, rows: Iterable[tuple[str, str, str | None]], title: str) -> None:
        self.groups: dict[tuple[str | None, str], tuple[str, ...]] = {}
        self.vocabularies: set[str | None] = set()
        for code, group, vocabulary in rows:
            key = None if vocabulary is None else vocabulary_key(vocabulary)
            self.vocabularies.add(key)
            for spelling in code_keys(key, code):
                earlier = self.groups.get((key, spelling), ())
                self.groups[key, spelling] = earlier if group in earlier else (*earlier, group)
        if not self.groups:
            raise InputError(f"{title} has no row with a code and a group; check the file.")
        found = (CCSR_LABEL.fullmatch(group) for several in self.groups.values() for group in several)
        self.labels = {match[1]: match[0] for match in found if match}

    def get(self, vocabulary: str, code: str) -> tuple[str, ...]:
        key = vocabulary_key(vocabulary)
        (spelling,) = code_keys(key, code)
        return self.groups.get((key, spelling)) or self.groups.get((None, spelling)) or ()

    def applies_to(self, vocabulary: str) -> bool:
        """A table without a vocabulary column applies to all vocabularies."""
        return None in self.vocabularies or vocabulary_key(vocabulary) in self.vocabularies

    @classmethod
    def read(cls, path: str) -> "GroupTable":
        header, lines = read_rows(Path(path))
        names = [clean_cell(name).lower() for name in header]
        if len(names) < 2:
            raise InputError(
                f"{path} has fewer than two columns; it needs a column of codes and one of groups."
            )
        if CCSR_CODE in names:
            return cls(list(ccsr_rows(names, lines)), path)
        if PHECODE in names and GROUP not in names:
            return cls(list(phecode_rows(names, lines, path)), path)
        code, groups = group_columns(names, path)
        vocabulary = names.index(VOCABULARY) if VOCABULARY in names else None
        short = sum(len(line) <= max(code, *groups, vocabulary or 0) for line in lines)
        if short:
            raise InputError(f"{path} has {short:,} rows that are too short; complete them.")
        rows = []
        for line in lines:
            group = next(filter(None, (clean_cell(line[column]) for column in groups)), "")
            if clean_cell(line[code]) and group:
                row_vocabulary = None if vocabulary is None else clean_cell(line[vocabulary]) or None
                rows.append((clean_cell(line[code]), group, row_vocabulary))
        return cls(rows, path)


def ccsr_rows(names: list[str], lines: list[list[Any]]) -> Iterator[tuple[str, str, str]]:
    """Code, category and vocabulary from AHRQ's file, which has a column for each category and its description."""
    columns = [
        (place, names.index(f"{name} description"))
        for place, name in enumerate(names)
        if CCSR_CATEGORY.fullmatch(name) and f"{name} description" in names
    ]
    for line in lines:
        for category, description in columns:
            if len(line) > description and (number := clean_cell(line[category])):
                label = f"{clean_cell(line[description])} [{number}]"
                yield clean_cell(line[names.index(CCSR_CODE)]), label, ICD10CM


def phecode_rows(
    names: list[str], lines: list[list[Any]], path: str
) -> Iterator[tuple[str, str, str | None]]:
    """Code, phecode with its name, and vocabulary from a map of the PheWAS Catalog."""
    code = next((names.index(name) for name in PHECODE_CODES if name in names), None)
    if code is None:
        raise InputError(f"{path} has phecodes but no column of codes; call it icd9, icd10, icd or code.")
    phecode = names.index(PHECODE)
    label = next((names.index(name) for name in PHECODE_NAMES if name in names), None)
    stated = next((names.index(name) for name in PHECODE_VOCABULARIES if name in names), None)
    for line in lines:
        cells = [clean_cell(cell) for cell in line] + [""] * (len(names) - len(line))
        vocabulary = PHECODE_CODES[names[code]]
        if vocabulary is None and stated is not None:
            vocabulary = FLAGS.get(cells[stated], cells[stated]) or None
        if cells[code] and cells[phecode]:
            name = cells[label] if label is not None else ""
            yield cells[code], ungrouped_name("phecode", cells[phecode], name), vocabulary


def group_columns(names: list[str], path: str) -> tuple[int, list[int]]:
    """Positions of the column of codes and of the columns of groups, the preferred one first."""
    if CODE in names and GROUP in names:
        return names.index(CODE), [names.index(GROUP)]
    if AHRQ_LEVELS[0] in names:  # a shorter branch of the hierarchy ends in the category
        return 0, [names.index(level) for level in AHRQ_LEVELS if level in names]
    if VOCABULARY in names[:2]:
        raise InputError(f"{path} lacks the columns {CODE} and {GROUP}; rename them.")
    return 0, [1]


def vocabulary_key(vocabulary: str) -> str:
    return icd_vocabulary(vocabulary) or vocabulary.strip().upper()


def code_keys(vocabulary: str | None, code: str) -> set[str]:
    """Lookup keys of a code: ICD codes without dots; codes of an unknown vocabulary with and without."""
    if vocabulary is None:
        return {code.strip().upper(), ccs.without_dots(code)}
    return {ccs.without_dots(code) if icd_vocabulary(vocabulary) else code.strip().upper()}


def clean_cell(value: Any) -> str:
    """Normalise a cell; AHRQ's files put single quotes around codes and labels."""
    if isinstance(value, float) and value.is_integer():  # integer codes converted to float, 12.0
        value = int(value)
    text = "" if value is None else str(value).strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1].strip()
    return " ".join(text.split())


def read_rows(path: Path, title: str = "groups") -> tuple[list[str], list[list[Any]]]:
    """Read header and rows of a CSV or Parquet file; CSV cells are text."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; check the path of the table of {title}.")
    if path.name.lower().endswith(PARQUET):
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError):
            raise InputError(f"{path} is not a readable Parquet file; write it again.") from None
        return table.column_names, [list(row) for row in zip(*table.to_pydict().values(), strict=True)]
    name = path.name.lower().removesuffix(".gz")
    open_text = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with open_text(path, "rt", encoding="utf-8-sig", newline="") as file:
            lines = limited_lines(file, path.name)
            rows = [row for row in csv.reader(lines, delimiter="\t" if name.endswith(".tsv") else ",") if row]
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError(f"{path} is not a CSV file in UTF-8; save it as one.") from None
    return (rows[0], list(rows[1:])) if rows else ([], [])
