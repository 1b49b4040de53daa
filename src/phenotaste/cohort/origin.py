"""The settings that a cohort was built with, as models keep them, and the differences between two builds."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

# Which patients are included, and where files are: a model may be applied to others.
IGNORED = (
    "like",
    "match",
    "min_patients",
    "min_visits",
    "groups.allow_loss",
    "index.codes",
    "index.covered",
    "index.labels",
    "measurements.learn_from",
    "index.label_rows",
    "index.washout",
    "source.options.events",
    "source.options.static",
    "source.options.schema",
    "source.options.vocabulary_schema",
    "source.options.vocabulary_folder",
    "source.options.split",
    "source.options.cohort_id",
    "source.options.cohort_table",
    "source.options.index_concepts",
)


def build_settings(origin: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The build settings in the origin of a cohort, without the folders of files; None where there are none.

    Examples
    --------
    >>> from phenotaste.cohort.origin import build_settings
    >>> build_settings({"settings": {"visit": "day", "groups": {"table": "/data/groups.csv"}}})
    {'visit': 'day', 'groups': {'table': 'groups.csv'}}
    """
    settings = (origin or {}).get("settings")
    return without_folders(settings) if isinstance(settings, Mapping) else None


def without_folders(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): without_folders(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(inner) for inner in value]
    return os.path.basename(value) if isinstance(value, str) and os.path.isabs(value) else value


def differences(model: Mapping[str, Any] | None, cohort: Mapping[str, Any] | None) -> list[str]:
    """The settings, of those that shape features and visits, in which a cohort differs from that of a model.

    Both are results of `build_settings`; nothing is compared where one of them is None.

    Examples
    --------
    >>> from phenotaste.cohort.origin import differences
    >>> differences({"visit": "day", "min_visits": 5}, {"visit": "week", "min_visits": 1})
    ['visit is week (model: day)']
    """
    if model is None or cohort is None:
        return []
    expected, found = dict(leaves(model)), dict(leaves(cohort))
    return [
        f"{name.replace('.options.', '.')} is {text(found.get(name))} (model: {text(expected.get(name))})"
        for name in sorted({*expected, *found})
        if found.get(name) != expected.get(name)
        and not any(name == ignored or name.startswith(f"{ignored}.") for ignored in IGNORED)
    ]


def warning(model: Mapping[str, Any] | None, cohort: Mapping[str, Any] | None) -> str | None:
    """A sentence on the settings in which a cohort differs from that of a model, None where it does not.

    Examples
    --------
    >>> from phenotaste.cohort.origin import warning
    >>> warning({"visit": "day"}, {"visit": "week"}).endswith("are not comparable: visit is week (model: day).")
    True
    """
    found = differences(model, cohort)
    if not found:
        return None
    return (
        "The cohort was built with other settings than the model's, and its scores are not comparable: "
        f"{'; '.join(found)}."
    )


def leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings by their names in full; those that are not set are left out."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value


def text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def thresholds(origin: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The quantiles of measurements that a cohort was built with, as models keep them for new patients.

    Examples
    --------
    >>> from phenotaste.cohort.origin import thresholds
    >>> thresholds({"settings": {"visit": "day"}})
    []
    """
    return [dict(row) for row in (origin or {}).get("thresholds") or ()]


def learnt_warning(origin: Mapping[str, Any] | None) -> str | None:
    """A sentence on what was learnt on all patients of a cohort, None where nothing was.

    Examples
    --------
    >>> from phenotaste.cohort.origin import learnt_warning
    >>> learnt_warning({"learnt": {"measurements": 2, "static": []}}).partition(" learnt")[0]
    'The limits of 2 measurements were'
    """
    learnt = (origin or {}).get("learnt") or {}
    parts = []
    if learnt.get("measurements"):
        parts.append(f"{learnt['measurements']:,} measurements")
    if learnt.get("static"):
        parts.append(f"{len(learnt['static']):,} static columns")
    if not parts:
        return None
    return (
        f"The limits of {' and '.join(parts)} were learnt as quantiles on patients of this cohort, test patients "
        "included, though not from their labels; give a table of ranges or bands to avoid it."
    )
