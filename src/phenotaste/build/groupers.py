"""Which feature a code becomes: CCS, ATC, a user's table, or itself; works on the distinct codes, never on events."""

from typing import TYPE_CHECKING, Any

from phenotaste.build import ccs
from phenotaste.build.group_table import GroupTable
from phenotaste.build.settings import Groups
from phenotaste.sources.records import ATC, DIAGNOSIS, MEDICATION, PROCEDURE

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = {DIAGNOSIS: "Dx_", MEDICATION: "Rx_", PROCEDURE: "Px_"}
ATC_LETTERS = {1: 1, 2: 3, 3: 4, 4: 5, 5: 7}
NO_CONCEPT = {("OMOP", "0"), ("NONE", "0")}  # OMOP's concept for what could not be mapped

ccs_single = ccs.single


def assign(codes: "pa.Table", groups: Groups, names: "pa.Table | None" = None) -> list[str | None]:
    """The feature of each row of `codes` (vocabulary, code, kind, name, events), or None for an unmapped code.

    `names` (vocabulary, code, name) are names that do not depend on which codes occur; a group of ATC codes is
    called by the name that its own code has there or in `codes`.
    """
    grouper = Grouper(groups, atc_names(codes) | ({} if names is None else atc_names(names)))
    return [grouper.feature(row) for row in codes.to_pylist()]


class Grouper:
    """The groupers that the settings ask for, with their tables read."""

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
            if self.concerns(vocabulary, kind) and self.groups.unmapped == "drop":
                return None
            name = own_name(vocabulary, code, row["name"])
        return name if name.startswith(PREFIX[kind]) else PREFIX[kind] + name

    def group(self, vocabulary: str, code: str, kind: str) -> str | None:
        """The first grouper that knows the code, the user's table last."""
        if kind == DIAGNOSIS and self.groups.ccs == "single" and (found := ccs.single(vocabulary, code)):
            number, label = found
            return f"{label} [{number}.]"
        if kind == DIAGNOSIS and self.multi3 and (category := self.multi3.get(vocabulary, code)):
            return category
        if kind == MEDICATION and self.groups.atc and vocabulary.upper() == ATC:
            letters = ATC_LETTERS[self.groups.atc]
            if len(code) >= letters:
                short = code[:letters].upper()
                return own_name(ATC, short, self.names.get(short))
        return None if self.table is None else self.table.get(vocabulary, code)

    def concerns(self, vocabulary: str, kind: str) -> bool:
        """Whether some grouper was asked for such codes: one that it does not know is then unmapped."""
        if (kind == DIAGNOSIS and self.groups.ccs) or (kind == MEDICATION and self.groups.atc):
            return True
        return self.table is not None and self.table.concerns(vocabulary)


def own_name(vocabulary: str, code: str, name: str | None) -> str:
    """A code as a feature of its own; depends on nothing but the code, so that later data give the same name."""
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
