"""Grouping of codes to features by CCS, ATC or a user's table; works on the distinct codes, not on events."""

import csv
import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phenotaste.build import ccs
from phenotaste.build.ccs import icd_vocabulary
from phenotaste.build.settings import Groups
from phenotaste.errors import InputError
from phenotaste.sources.records import ATC, DIAGNOSIS, MEDICATION, PROCEDURE

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = {DIAGNOSIS: "Dx_", MEDICATION: "Rx_", PROCEDURE: "Px_"}
ATC_LETTERS = {1: 1, 2: 3, 3: 4, 4: 5, 5: 7}
NO_CONCEPT = {("OMOP", "0"), ("NONE", "0")}  # OMOP's concept for unmapped codes
CODE, GROUP, VOCABULARY = "code", "group", "vocabulary"
AHRQ_LEVELS = tuple(f"ccs lvl {level} label" for level in (3, 2, 1))  # of AHRQ's ccs_multi_dx_tool_2015.csv
PARQUET = (".parquet", ".pq")


def assign(codes: "pa.Table", groups: Groups, names: "pa.Table | None" = None) -> list[str | None]:
    """The feature of each row of `codes` (vocabulary, code, kind, name, events), or None for an unmapped code.

    `names` (vocabulary, code, name) do not depend on the codes that occur; a group of ATC codes takes the name of its
    own code there or in `codes`.
    """
    grouper = Grouper(groups, atc_names(codes) | ({} if names is None else atc_names(names)))
    return [grouper.feature(row) for row in codes.to_pylist()]


class Grouper:
    """The groupers of the settings, with their tables loaded."""

    def __init__(self, groups: Groups, names: dict[str, str]) -> None:
        self.groups = groups
        self.names = names
        self.table = None if groups.table is None else GroupTable.read(groups.table)
        self.multi3 = None
        if groups.ccs == "multi3" and groups.multi3 is not None:
            self.multi3 = GroupTable.read(groups.multi3)

    def feature(self, row: dict[str, Any]) -> str | None:
        vocabulary, code, kind = row["vocabulary"] or "", (row["code"] or "").strip(), row["kind"]
        if not code or (vocabulary.upper(), code) in NO_CONCEPT:
            return None
        name = self.group(vocabulary, code, kind)
        if name is None:
            if self.applies_to(vocabulary, kind) and self.groups.unmapped == "drop":
                return None
            name = ungrouped_name(vocabulary, code, row["name"])
        return name if name.startswith(PREFIX[kind]) else PREFIX[kind] + name

    def group(self, vocabulary: str, code: str, kind: str) -> str | None:
        """The group from the first grouper that maps the code, the user's table last."""
        if kind == DIAGNOSIS and self.groups.ccs == "single" and (found := ccs.single(vocabulary, code)):
            number, label = found
            return f"{label} [{number}.]"
        if kind == DIAGNOSIS and self.multi3 and (category := self.multi3.get(vocabulary, code)):
            return category
        if kind == MEDICATION and self.groups.atc and vocabulary.upper() == ATC:
            letters = ATC_LETTERS[self.groups.atc]
            if len(code) >= letters:
                short = code[:letters].upper()
                return ungrouped_name(ATC, short, self.names.get(short))
        return None if self.table is None else self.table.get(vocabulary, code)

    def applies_to(self, vocabulary: str, kind: str) -> bool:
        """Whether a grouper is requested for such codes: those that it does not map are then unmapped."""
        if (kind == DIAGNOSIS and self.groups.ccs) or (kind == MEDICATION and self.groups.atc):
            return True
        return self.table is not None and self.table.applies_to(vocabulary)


def ungrouped_name(vocabulary: str, code: str, name: str | None) -> str:
    """The feature name of an ungrouped code; depends on the code only, so that later data give the same name."""
    name = " ".join((name or "").split())
    if name:
        return f"{name} [{code}]"
    return f"{code} [{vocabulary}]" if vocabulary else code


def atc_names(table: "pa.Table") -> dict[str, str]:
    rows = table.select(["vocabulary", "code", "name"]).to_pylist()
    return {
        row["code"].strip().upper(): row["name"]
        for row in rows
        if row["code"] and row["name"] and (row["vocabulary"] or "").upper() == ATC
    }


class GroupTable:
    """A user's table of codes and groups; ignores case, and the dots of ICD codes."""

    def __init__(self, rows: Iterable[tuple[str, str, str | None]], title: str) -> None:
        self.groups: dict[tuple[str | None, str], str] = {}
        self.vocabularies: set[str | None] = set()
        conflicts = 0
        for code, group, vocabulary in rows:
            key = None if vocabulary is None else vocabulary_key(vocabulary)
            self.vocabularies.add(key)
            for spelling in code_keys(key, code):
                conflicts += self.groups.setdefault((key, spelling), group) != group
        if conflicts:
            raise InputError(
                f"{title} assigns some codes (compared without dots) to more than one group; keep one row per code, or "
                f"add a column {VOCABULARY} where vocabularies share codes."
            )
        if not self.groups:
            raise InputError(f"{title} has no row with a code and a group; check the file.")

    def get(self, vocabulary: str, code: str) -> str | None:
        key = vocabulary_key(vocabulary)
        (spelling,) = code_keys(key, code)
        return self.groups.get((key, spelling)) or self.groups.get((None, spelling))

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


def read_rows(path: Path) -> tuple[list[str], list[list[Any]]]:
    """Read header and rows of a CSV or Parquet file; CSV cells are text."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; check the path of the table of groups.")
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
            rows = [row for row in csv.reader(file, delimiter="\t" if name.endswith(".tsv") else ",") if row]
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile):
        raise InputError(f"{path} is not a CSV file in UTF-8; save it as one.") from None
    return (rows[0], list(rows[1:])) if rows else ([], [])
