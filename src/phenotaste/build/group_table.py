"""A user's table of codes and their groups: CSV or Parquet, two columns, or three with the vocabulary."""

import csv
import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phenotaste.build.ccs import icd_vocabulary, plain
from phenotaste.errors import InputError

CODE, GROUP, VOCABULARY = "code", "group", "vocabulary"
AHRQ_LEVELS = (
    "ccs lvl 3 label",
    "ccs lvl 2 label",
    "ccs lvl 1 label",
)  # of AHRQ's ccs_multi_dx_tool_2015.csv
PARQUET = (".parquet", ".pq")


class GroupTable:
    """Looks codes up; those of ICD with or without dots, all in any case."""

    def __init__(self, rows: Iterable[tuple[str, str, str | None]], title: str) -> None:
        self.groups: dict[tuple[str | None, str], str] = {}
        self.vocabularies: set[str | None] = set()
        twice = 0
        for code, group, vocabulary in rows:
            key = None if vocabulary is None else spelling(vocabulary)
            self.vocabularies.add(key)
            for written in spellings(key, code):
                twice += self.groups.setdefault((key, written), group) != group
        if twice:
            raise InputError(
                f"{title} puts some codes in more than one group, dots apart; leave one row for each code, or "
                f"add a column {VOCABULARY} where codes of several vocabularies are spelt alike."
            )
        if not self.groups:
            raise InputError(f"{title} has no row with a code and a group; fill it.")

    def get(self, vocabulary: str, code: str) -> str | None:
        key = spelling(vocabulary)
        (written,) = spellings(key, code)
        return self.groups.get((key, written)) or self.groups.get((None, written))

    def concerns(self, vocabulary: str) -> bool:
        """A table that does not say whose codes it lists is about all."""
        return None in self.vocabularies or spelling(vocabulary) in self.vocabularies

    @classmethod
    def read(cls, path: str) -> "GroupTable":
        header, lines = rows_of(Path(path))
        names = [clean(name).lower() for name in header]
        if len(names) < 2:
            raise InputError(f"{path} has fewer than two columns; it needs one of codes and one of groups.")
        code, groups = columns_of(names, path)
        vocabulary = names.index(VOCABULARY) if VOCABULARY in names else None
        short = sum(len(line) <= max(code, *groups, vocabulary or 0) for line in lines)
        if short:
            raise InputError(f"{path} has {short:,} rows that are too short; complete them.")
        rows = []
        for line in lines:
            group = next(filter(None, (clean(line[column]) for column in groups)), "")
            if clean(line[code]) and group:
                which = None if vocabulary is None else clean(line[vocabulary]) or None
                rows.append((clean(line[code]), group, which))
        return cls(rows, path)


def columns_of(names: list[str], path: str) -> tuple[int, list[int]]:
    """Where the code stands, and where its group may stand, the first choice first."""
    if CODE in names and GROUP in names:
        return names.index(CODE), [names.index(GROUP)]
    if AHRQ_LEVELS[0] in names:  # where a branch of the hierarchy is shorter, its last level is the category
        return 0, [names.index(level) for level in AHRQ_LEVELS if level in names]
    if VOCABULARY in names[:2]:
        raise InputError(f"{path} lacks the columns {CODE} and {GROUP}; name them so.")
    return 0, [1]


def spelling(vocabulary: str) -> str:
    return icd_vocabulary(vocabulary) or vocabulary.strip().upper()


def spellings(vocabulary: str | None, code: str) -> set[str]:
    """As the code is looked up: ICD without dots; a row that does not say whether it is ICD may be found either way."""
    if vocabulary is None:
        return {code.strip().upper(), plain(code)}
    return {plain(code) if icd_vocabulary(vocabulary) else code.strip().upper()}


def clean(value: Any) -> str:
    """AHRQ's files put single quotes around codes and labels."""
    if isinstance(value, float) and value.is_integer():  # codes that some tool turned into 12.0
        value = int(value)
    text = "" if value is None else str(value).strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1].strip()
    return " ".join(text.split())


def rows_of(path: Path) -> tuple[list[str], list[list[Any]]]:
    """Header and rows; what a CSV holds is text."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; check the path of the table of groups.")
    if path.name.lower().endswith(PARQUET):
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError):
            raise InputError(f"{path} is no Parquet file that can be read; write it again.") from None
        return table.column_names, [list(row) for row in zip(*table.to_pydict().values(), strict=True)]
    name = path.name.lower().removesuffix(".gz")
    open_text = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with open_text(path, "rt", encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file, delimiter="\t" if name.endswith(".tsv") else ",") if row]
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile):
        raise InputError(f"{path} is no CSV in UTF-8; save it as one.") from None
    return (rows[0], list(rows[1:])) if rows else ([], [])
