"""Queries of the vocabulary tables: names of concepts, classes to roll up to, and concept sets."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources.coding import EITHER_ICD
from phenotaste.sources.omop.cdm import CdmBackend
from phenotaste.sources.omop.cdm_schema import (
    ANCESTOR,
    ATC_CLASSES,
    CLINICAL_FINDING,
    CONCEPT,
    INGREDIENT_VOCABULARIES,
    OMOP,
    RELATIONSHIP,
    VOCABULARY,
)
from phenotaste.sources.records import ATC
from phenotaste.storage.input_files import read_text

if TYPE_CHECKING:
    from ibis import Table

MAPS_TO = "Maps to"
# OMOP's vocabularies of diagnoses in source data, and ICD for ICD-9-CM or ICD-10-CM by the form of each code.
DIAGNOSIS_VOCABULARIES = (
    *(EITHER_ICD, "ICD9CM", "ICD10CM", "ICD10", "ICD10GM", "ICD10CN", "CIM10", "KCD7", "ICDO3"),
    *("SNOMED", "Read", "ICPC", "ICPC2P", "OXMIS", "CIEL", "MedDRA"),
)


def missing_vocabulary(cdm: CdmBackend) -> list[str]:
    """A sentence where the CDM has no concepts, which is why features have no names."""
    table = cdm.vocabulary.table(CONCEPT)
    what = "no concept table" if table is None else "local concepts only"
    if cdm.vocabulary.has(CONCEPT):
        assert table is not None
        if cdm.vocabulary.fetch(table.limit(1), "omop_any_concept").count().to_pyarrow().as_py():
            return []
        what = "an empty concept table"
    others = [name for name in cdm.schemas_with(CONCEPT) if name != cdm.vocabulary.schema]
    hint = f" (schemas with a concept table: {', '.join(others)})" if others else ""
    return [
        f"{cdm.vocabulary.label} has {what}: concepts have no names and cannot be rolled up. Give the schema or the "
        f"folder of OMOP's vocabulary (--vocabulary-schema, --vocabulary-folder){hint}."
    ]


def known_vocabulary(cdm: CdmBackend, name: str) -> str:
    """A vocabulary of diagnoses in OMOP's spelling; one that neither OMOP nor the CDM knows is refused."""
    table = cdm.vocabulary.table(VOCABULARY)
    listed = set[str]()
    if table is not None:
        rows = cdm.vocabulary.fetch(table.select("vocabulary_id"), "omop_vocabularies").to_pyarrow()
        listed = set(rows.column(0).drop_null().to_pylist())
    for known in (*DIAGNOSIS_VOCABULARIES, *sorted(listed)):
        if _plain(known) == _plain(name):
            return known
    raise InputError(
        f"the source vocabulary {name} is unknown; use one of {', '.join(DIAGNOSIS_VOCABULARIES)}, or one of the "
        "CDM's vocabulary table."
    )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.upper() if letter.isalnum())


def concepts(cdm: CdmBackend, ids: "Table", name: str) -> "Table | None":
    """The rows of `concept` for these ids; None where the table does not exist."""
    table = cdm.vocabulary.table(CONCEPT)
    return None if table is None else cdm.vocabulary.lookup(table, "concept_id", ids, name)


def drug_classes(cdm: CdmBackend, ids: "Table", level: str) -> "Table":
    """concept, code, vocabulary, name: the ingredients of drugs, or their ATC classes of a level."""
    import ibis

    concept = cdm.vocabulary.table(CONCEPT)
    ancestor = cdm.vocabulary.table(ANCESTOR)
    if concept is None or ancestor is None:
        raise InputError(
            f"the CDM has no {CONCEPT if concept is None else ANCESTOR} table, which a roll-up of drugs needs; "
            'use drugs "era" or "exposure".'
        )
    if level == "ingredient":
        known = concept.vocabulary_id.isin(INGREDIENT_VOCABULARIES)
        targets = concept.filter(known & (concept.concept_class_id == "Ingredient"))
    else:
        known = concept.vocabulary_id == ATC
        targets = concept.filter(known & (concept.concept_class_id == ATC_CLASSES[level]))
    pairs = ancestor.inner_join(targets, ancestor.ancestor_concept_id == targets.concept_id).select(
        concept="descendant_concept_id", target="concept_id", atc="concept_code", name="concept_name"
    )
    itself = targets.select(
        concept="concept_id", target="concept_id", atc="concept_code", name="concept_name"
    )
    found = cdm.vocabulary.lookup(pairs.union(itself), "concept", ids, f"omop_rollup_{level}").distinct()
    code = found.target.cast("string") if level == "ingredient" else found.atc
    vocabulary = OMOP if level == "ingredient" else ATC
    return found.select(concept="concept", code=code, vocabulary=ibis.literal(vocabulary), name="name")


def condition_classes(cdm: CdmBackend, ids: "Table", level: int) -> "Table":
    """concept, code, vocabulary, name: ancestors of conditions `level` levels below "Clinical finding"."""
    import ibis

    concept, ancestor = cdm.vocabulary.table(CONCEPT), cdm.vocabulary.table(ANCESTOR)
    if concept is None or ancestor is None:
        raise InputError(
            f"the CDM has no {CONCEPT if concept is None else ANCESTOR} table, which a roll-up of conditions "
            "needs; omit the level of conditions."
        )
    below = ancestor.filter(
        (ancestor.ancestor_concept_id == CLINICAL_FINDING) & (ancestor.min_levels_of_separation == level)
    ).select(target="descendant_concept_id")
    names = concept.select("concept_id", "concept_name")
    targets = below.left_join(names, below.target == names.concept_id).select("target", name="concept_name")
    pairs = ancestor.inner_join(targets, ancestor.ancestor_concept_id == targets.target).select(
        concept="descendant_concept_id", target="target", name="name"
    )
    itself = targets.select(concept="target", target="target", name="name")
    found = cdm.vocabulary.lookup(pairs.union(itself), "concept", ids, "omop_rollup_conditions").distinct()
    return found.select(
        "concept", code=found.target.cast("string"), vocabulary=ibis.literal(OMOP), name="name"
    )


class Item(NamedTuple):
    """An item of a concept set exported from ATLAS."""

    concept: int
    excluded: bool
    descendants: bool
    mapped: bool
    vocabulary: str = ""
    code: str = ""


def index_codes(cdm: CdmBackend, path: Path, codes: str) -> tuple[str, ...]:
    """The concepts of a set as "OMOP:ID", or the source codes that map to them as "ICD9CM:4280"."""
    items = read_concept_set(path)
    included = _resolve(cdm, [i for i in items if not i.excluded], path.name)
    excluded = _resolve(cdm, [i for i in items if i.excluded], path.name)
    chosen = sorted(included - excluded)
    if not chosen:
        raise InputError(f"the concept set {path.name} is empty; check its exclusions.")
    if codes == "standard":
        return tuple(f"{OMOP}:{concept}" for concept in chosen)
    return _source_codes(cdm, chosen, path.name)


def read_concept_set(path: Path) -> list[Item]:
    """Read the items of a set, exported alone ({"items": …}) or with its name ({"expression": {"items": …}})."""
    text = read_text(path, "the concept set")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not valid JSON; export the concept set from ATLAS again.") from None
    try:
        items = content if isinstance(content, list) else content.get("expression", content)["items"]
        return [
            Item(
                int(item["concept"]["CONCEPT_ID"]),
                bool(item.get("isExcluded")),
                bool(item.get("includeDescendants")),
                bool(item.get("includeMapped")),
                str(item["concept"].get("VOCABULARY_ID") or ""),
                str(item["concept"].get("CONCEPT_CODE") or ""),
            )
            for item in items
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(
            f"{path.name} is not a concept set: it needs items with concept.CONCEPT_ID; export it from ATLAS again."
        ) from None


def _resolve(cdm: CdmBackend, items: list[Item], title: str) -> set[int]:
    """Resolve items as ATLAS does: first descendants, then the concepts that map to them."""
    resolved = {item.concept for item in items}
    parents = [item for item in items if item.descendants]
    if parents:
        resolved |= _descendants(cdm, {item.concept for item in parents}, title)
    mapped = {item.concept for item in items if item.mapped}
    if mapped:
        mapped |= _descendants(cdm, {item.concept for item in parents if item.mapped}, title)
        resolved |= _mapped_to(cdm, mapped, title)
    return resolved


def _descendants(cdm: CdmBackend, ids: set[int], title: str) -> set[int]:
    if not ids:
        return set()
    ancestor = cdm.vocabulary.table(ANCESTOR)
    if ancestor is None:
        raise InputError(
            f"the concept set {title} includes descendants, which needs the table {ANCESTOR}; "
            "add it, or list every concept."
        )
    rows = cdm.vocabulary.lookup(ancestor, "ancestor_concept_id", _ids(ids), "omop_descendants")
    return set(rows.descendant_concept_id.to_pyarrow().to_pylist())


def _mapped_to(cdm: CdmBackend, ids: set[int], title: str) -> set[int]:
    relationship = cdm.vocabulary.table(RELATIONSHIP)
    if relationship is None:
        raise InputError(
            f"source codes of the concept set {title} require the table {RELATIONSHIP}, "
            "which the CDM lacks; add it, or use standard codes without mapped concepts."
        )
    maps = relationship.filter(relationship.relationship_id == MAPS_TO)
    if "invalid_reason" in maps.columns:
        maps = maps.filter(maps.invalid_reason.isnull())
    rows = cdm.vocabulary.lookup(maps, "concept_id_2", _ids(ids), "omop_mapped")
    return set(rows.concept_id_1.to_pyarrow().to_pylist())


def _source_codes(cdm: CdmBackend, ids: list[int], title: str) -> tuple[str, ...]:
    concept_ids = set(ids) | _mapped_to(cdm, set(ids), title)
    found = concepts(cdm, _ids(concept_ids), "omop_source_set")
    if found is None:
        raise InputError(f"source codes of the concept set {title} need the table {CONCEPT}; add it.")
    rows = found.select("vocabulary_id", "concept_code").distinct().to_pyarrow().to_pylist()
    return tuple(sorted(f"{row['vocabulary_id']}:{row['concept_code']}" for row in rows))


def _ids(ids: set[int]) -> "Table":
    import ibis
    import pyarrow as pa

    return ibis.memtable(pa.table({"id": pa.array(sorted(ids), pa.int64())}))
