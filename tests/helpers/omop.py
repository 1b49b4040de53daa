"""What the OMOP source reads from a CDM, as plain rows that can be compared."""

import functools
import json

import pytest

from phenotaste.errors import InputError
from phenotaste.sources import omop
from phenotaste.sources.records import (
    EVENTS,
    FACTS,
    KINDS,
    LABELS,
    MEASUREMENTS,
    NAMES,
    PERIODS,
    PERSONS,
    VISITS,
)
from phenotaste.sources.workspace import Workspace

COLUMNS = {
    "events": EVENTS,
    "persons": PERSONS,
    "facts": FACTS,
    "visits": (*VISITS, "end_time"),
    "periods": PERIODS,
    "labels": LABELS,
    "names": NAMES,
    "measurements": MEASUREMENTS,
}
OPTIONS = [
    {},
    {"kinds": KINDS, "drugs": "era"},
    {"drugs": "exposure"},
    {"drugs": "atc4", "condition_level": 2},
    {"drugs": "atc2", "condition_level": 3},
    {"codes": "source", "source_vocabulary": "ICD9CM", "kinds": KINDS},
    {"cohort_table": "cohort", "cohort_id": 7},
    {"type_concepts": ("dx=32821", "lab=32856"), "kinds": KINDS},
]


def rows(records):
    """Everything that Records hold: its tables as sorted rows with their types, and the rest as it is."""
    held = {}
    for name, part in records._asdict().items():
        if name in COLUMNS and part is not None:
            table = part.to_pyarrow()
            assert tuple(table.column_names) == COLUMNS[name]
            held[name] = (
                table.schema.types,
                sorted(map(repr, zip(*table.to_pydict().values(), strict=True))),
            )
        else:
            held[name] = part
    return held


def expected(location, **options):
    """As `read`, for a CDM that does not change: it is read once for each choice of options."""
    return _read_once(str(location), tuple(sorted(options.items())))


@functools.cache
def _read_once(location, options):
    return read(location, **dict(options))


def read(location, **options):
    with Workspace(threads=1) as workspace:
        return rows(omop.read(workspace, str(location), **options))


def refusal(location, **options):
    with Workspace(threads=1) as workspace, pytest.raises(InputError) as refused:
        omop.read(workspace, str(location), **options)
    message = str(refused.value)
    assert message.endswith((".", "?"))
    assert "\n" not in message
    return message


def concept_set(path, *items):
    """(concept, excluded, descendants, mapped) as ATLAS writes them."""
    lines = [
        {
            "concept": {"CONCEPT_ID": concept, "CONCEPT_NAME": "any"},
            "isExcluded": excluded,
            "includeDescendants": descendants,
            "includeMapped": mapped,
        }
        for concept, excluded, descendants, mapped in items
    ]
    path.write_text(json.dumps({"items": lines}))
    return path
