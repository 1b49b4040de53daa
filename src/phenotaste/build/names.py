"""Names of codes from a user's table, which take precedence over those of the source."""

from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.build.groupers import clean_cell, code_keys, read_rows, vocabulary_key
from phenotaste.errors import InputError
from phenotaste.sources.coding import ICD_VERSIONS
from phenotaste.sources.records import ATC, DIAGNOSIS, NAMES, PROCEDURE, Records, union
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table

CODE, VOCABULARY, VERSION = "code", "vocabulary", "icd_version"
SPELLINGS = {  # columns of such tables in MIMIC, OMOP and MEDS, in order of preference
    CODE: ("code", "icd_code", "concept_code", "itemid"),
    "name": ("name", "long_title", "concept_name", "label", "description", "title"),
    VOCABULARY: ("vocabulary", "vocabulary_id"),
    VERSION: ("icd_version",),
}


def with_names(workspace: Workspace, records: Records, path: str) -> Records:
    """The records with the names of a table for the codes that occur in them."""
    import ibis
    import pyarrow as pa

    table = NameTable.read(path)
    coded = [records.events] + ([] if records.measurements is None else [records.measurements])
    codes = union(distinct_codes(rows) for rows in coded).distinct().to_pyarrow().to_pylist()
    found = [
        {"vocabulary": row["vocabulary"], "code": row["code"], "name": name}
        for row in codes
        if (name := table.get(row["vocabulary"] or "", row["code"]))
    ]
    # Groups of ATC codes have names of their own, although they do not occur.
    listed = {(row["vocabulary"], row["code"]) for row in found}
    found += [
        {"vocabulary": ATC, "code": code, "name": name}
        for (vocabulary, code), name in table.names.items()
        if vocabulary == ATC and (ATC, code) not in listed
    ]
    named = pa.Table.from_pylist(found, schema=pa.schema([(name, pa.string()) for name in NAMES]))
    names = workspace.ingest(named.to_reader(), "user's names")
    if records.names is None:
        return records._replace(names=names)
    ours = names.mutate(key=names.vocabulary.fill_null(""))
    theirs = records.names.mutate(key=records.names.vocabulary.fill_null(""))
    others = theirs.anti_join(ours, ["key", "code"])
    return records._replace(names=ibis.union(names, others.select(*NAMES)))


def distinct_codes(rows: "Table") -> "Table":
    return rows.filter(rows.code.notnull()).select("vocabulary", "code").distinct()


class NameTable:
    """Names by vocabulary, if stated, and code; ignores case, and the dots of ICD codes."""

    def __init__(self, names: dict[tuple[str | None, str], str]) -> None:
        self.names = names

    def get(self, vocabulary: str, code: str) -> str | None:
        key = vocabulary_key(vocabulary)
        (spelling,) = code_keys(key, code)
        return self.names.get((key, spelling)) or self.names.get((None, spelling))

    @classmethod
    def read(cls, path: str) -> "NameTable":
        header, lines = read_rows(Path(path))
        columns = [clean_cell(name).lower() for name in header]
        place = {
            ours: next((columns.index(name) for name in spelt if name in columns), None)
            for ours, spelt in SPELLINGS.items()
        }
        code, name = place[CODE], place["name"]
        if code is None or name is None:
            raise InputError(f"{path} lacks the columns code and name; rename its columns.")
        kind = PROCEDURE if "proc" in Path(path).name.lower() else DIAGNOSIS  # as in MIMIC's d_icd_procedures
        names: dict[tuple[str | None, str], str] = {}
        for line in lines:
            cells = [clean_cell(cell) for cell in line] + [""] * (len(columns) - len(line))
            if cells[code] and cells[name]:
                key = row_vocabulary(cells, place[VOCABULARY], place[VERSION], kind)
                for spelling in code_keys(key, cells[code]):
                    names.setdefault((key, spelling), cells[name])
        if not names:
            raise InputError(f"{path} has no row with a code and a name; check the file.")
        return cls(names)


def row_vocabulary(cells: list[str], vocabulary: int | None, version: int | None, kind: str) -> str | None:
    """The vocabulary of a row, None where it holds for all."""
    if vocabulary is not None and cells[vocabulary]:
        return vocabulary_key(cells[vocabulary])
    stated = None if version is None else ICD_VERSIONS.get((kind, cells[version]))
    return None if stated is None else vocabulary_key(stated)
