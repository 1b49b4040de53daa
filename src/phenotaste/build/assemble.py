"""The complete build: from records and settings to a cohort with its attrition and data quality."""

import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phenotaste.build import index, toml, window_figure, windows
from phenotaste.build.attrition import Attrition, quality_summary
from phenotaste.build.features import Features, select_features
from phenotaste.build.matrix import Rows, apply_minimums, collect_visits, to_model_features
from phenotaste.build.normalise import ENCOUNTER, Normalised, normalise
from phenotaste.build.settings import Settings
from phenotaste.build.static import static_features, to_model_columns
from phenotaste.cohort import Cohort
from phenotaste.cohort.checks import CSR
from phenotaste.sources.records import Records
from phenotaste.sources.workspace import Workspace, translate_errors

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from ibis import Table


class ModelColumns(NamedTuple):
    """The columns of a fitted model, in its order; static is None for a model without static features.

    Examples
    --------
    >>> from phenotaste import TASTE, build, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, n_static=2, rank=3, random_state=1)
    >>> model = TASTE(rank=3, random_state=0).fit(cohort)
    >>> columns = build.ModelColumns(tuple(model.feature_names_in_), tuple(model.static_names_in_))
    >>> len(columns.features), len(columns.static)
    (30, 2)
    """

    features: tuple[str, ...]
    static: tuple[str, ...] | None


@dataclass(frozen=True)
class Built:
    """A cohort with its attrition, data quality and settings.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste import build
    >>> from phenotaste.build.settings import Groups, Settings
    >>> from phenotaste.sources import tables
    >>> from phenotaste.sources.workspace import Workspace
    >>> written = Path("events.csv").write_text("patient,time,code\\n1,2020-01-01,I10\\n2,2020-01-05,E11.9\\n")
    >>> with Workspace() as workspace:
    ...     records = tables.read(workspace, Path("events.csv"), kind="diagnosis", vocabulary="ICD10CM")
    ...     built = build.cohort(workspace, records, Settings(groups=Groups(ccs="single")))
    >>> built.quality["events"], built.quality["unmapped_codes"], built.attrition["step"].iloc[0]
    (2, 0, 'in the source')
    """

    cohort: Cohort
    attrition: "pd.DataFrame"  # step, patients, visits, events, and the numbers that the step removed
    quality: dict[str, Any]
    unmapped: "pd.DataFrame"  # vocabulary, code, kind, name, events
    settings: Settings  # with the visit unit that was used
    patients: (
        "pa.Table | None"  # with an index: patient, label, index_date, window_start, window_end, match_set
    )
    notes: tuple[str, ...]
    labelled: bool = False  # whether the index dates come from labels of the source

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the cohort as a folder, together with the attrition, the settings and the data quality.

        Examples
        --------
        >>> import os
        >>> from pathlib import Path
        >>> from phenotaste import build
        >>> from phenotaste.build.settings import Groups, Settings
        >>> from phenotaste.sources import tables
        >>> from phenotaste.sources.workspace import Workspace
        >>> written = Path("events.csv").write_text("patient,time,code\\n1,2020-01-01,I10\\n2,2020-01-05,E11.9\\n")
        >>> with Workspace() as workspace:
        ...     records = tables.read(workspace, Path("events.csv"), kind="diagnosis", vocabulary="ICD10CM")
        ...     built = build.cohort(workspace, records, Settings(groups=Groups(ccs="single")))
        >>> built.save("cohort")
        >>> sorted(os.listdir("cohort"))[:4]
        ['attrition.csv', 'cohort.safetensors', 'manifest.json', 'quality.json']
        """
        self.cohort.save(path, extra_files=self.files())

    def files(self) -> Mapping[str, bytes]:
        """The files that `save` adds to the cohort, by name.

        Examples
        --------
        >>> from pathlib import Path
        >>> from phenotaste import build
        >>> from phenotaste.build.settings import Groups, Settings
        >>> from phenotaste.sources import tables
        >>> from phenotaste.sources.workspace import Workspace
        >>> written = Path("events.csv").write_text("patient,time,code\\n1,2020-01-01,I10\\n2,2020-01-05,E11.9\\n")
        >>> with Workspace() as workspace:
        ...     records = tables.read(workspace, Path("events.csv"), kind="diagnosis", vocabulary="ICD10CM")
        ...     built = build.cohort(workspace, records, Settings(groups=Groups(ccs="single")))
        >>> sorted(built.files())
        ['attrition.csv', 'quality.json', 'settings.toml', 'unmapped.csv']
        """
        files = {
            "attrition.csv": self.attrition.to_csv(index=False).encode(),
            "quality.json": (json.dumps(self.quality, indent=1) + "\n").encode(),
            "unmapped.csv": self.unmapped.to_csv(index=False).encode(),
            "settings.toml": toml.to_toml(self.settings).encode(),
        }
        if self.patients is not None:
            import pyarrow.parquet as pq

            buffer = io.BytesIO()
            pq.write_table(self.patients, buffer)
            files["patients.parquet"] = buffer.getvalue()
            files["windows.svg"] = window_figure.windows(self.settings, self.labelled)
        return files


def cohort(
    workspace: Workspace,
    records: Records,
    settings: Settings,
    *,
    model_columns: ModelColumns | None = None,
    progress: Callable[[str], None] | None = None,
) -> Built:
    """Build a cohort; with `model_columns`, on the features of a fitted model.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste import build
    >>> from phenotaste.build.settings import Groups, Settings
    >>> from phenotaste.sources import tables
    >>> from phenotaste.sources.workspace import Workspace
    >>> written = Path("events.csv").write_text("patient,time,code\\n1,2020-01-01,I10\\n2,2020-01-05,E11.9\\n")
    >>> with Workspace() as workspace:
    ...     records = tables.read(workspace, Path("events.csv"), kind="diagnosis", vocabulary="ICD10CM")
    ...     built = build.cohort(workspace, records, Settings(groups=Groups(ccs="single")))
    >>> built.cohort.feature_names.tolist()
    ['Dx_Diabetes mellitus without complication [49.]', 'Dx_Essential hypertension [98.]']
    """
    with translate_errors("the source"):
        return _Build(workspace, records, settings, model_columns, progress or (lambda step: None)).run()


class _Build:
    """State shared by the steps of one build."""

    def __init__(
        self,
        workspace: Workspace,
        records: Records,
        settings: Settings,
        model_columns: ModelColumns | None,
        progress: Callable[[str], None],
    ) -> None:
        self.workspace, self.records, self.settings = workspace, records, settings
        self.model_columns, self.progress = model_columns, progress
        self.attrition = Attrition()
        self.notes = list(records.notes)

    def run(self) -> Built:
        self.progress("reading events")
        tables, counts = normalise(self.workspace, self.records, self.settings.visit)
        self.settings = replace(self.settings, visit=counts.unit)
        self.progress("grouping codes")
        features = select_features(self.workspace, tables, counts, self.settings, self.attrition)
        self.progress("checking data quality")
        quality = quality_summary(tables, counts, features.unmapped)
        anchors = self.anchors(tables)
        self.progress("collecting visits")
        rows, names = self.visits(tables, features, anchors)
        self.progress("static features")
        return self.built(tables, rows, names, anchors, quality, features.unmapped)

    def anchors(self, tables: Normalised) -> "Table | None":
        if self.settings.index is None:
            return None
        self.progress("index dates and windows")
        if self.settings.implausible == "drop":
            tables = tables._replace(events=tables.events.filter(tables.events.implausible == 0))
        return index.find_anchors(
            self.workspace,
            tables,
            self.settings,
            self.attrition,
            tables.labels,
            self.records.index_codes,
            self.notes,
        )

    def visits(
        self, tables: Normalised, features: Features, anchors: "Table | None"
    ) -> tuple[Rows, np.ndarray]:
        """The visits that pass all filters, and the names of their features."""
        settings, events = self.settings, features.events
        starts = tables.visits if settings.visit == ENCOUNTER else None
        if anchors is not None:
            events = windows.inside(events, anchors)
            starts = None if starts is None else windows.inside(starts, anchors)
        rows = collect_visits(self.workspace, events, starts)
        if anchors is not None:
            self.attrition.record(
                "in the window",
                rows.n_patients,
                len(rows.patient),
                rows.n_events,
                "no event is in a window; choose a longer window or a shorter gap.",
            )
        if self.model_columns is not None:
            names = np.array(self.model_columns.features, dtype=str)
            rows = to_model_features(rows, features.names, self.model_columns.features, self.attrition)
            return apply_minimums(rows, len(names), settings.min_visits, 1, self.attrition), names
        rows = apply_minimums(
            rows, len(features.names), settings.min_visits, settings.min_patients, self.attrition
        )
        used = np.zeros(len(features.names), bool)
        used[rows.feature] = True
        renumbered = (np.cumsum(used) - 1).astype(np.int32)[rows.feature]
        return rows._replace(feature=renumbered), features.names[used]

    def built(
        self,
        tables: Normalised,
        rows: Rows,
        names: np.ndarray,
        anchors: "Table | None",
        quality: dict[str, Any],
        unmapped: "pd.DataFrame",
    ) -> Built:
        kept, firsts = np.unique(rows.patient, return_index=True)
        offsets = np.append(firsts, len(rows.patient))
        selected = None if anchors is None else anchors.order_by("patient").to_pyarrow()
        if selected is not None:
            selected = selected.take(np.searchsorted(selected["patient"].to_numpy(), kept))
            if broken := _broken_sets(selected):
                self.notes.append(
                    f"{broken:,} matched sets have lost their case or all their controls to the filters; "
                    "match_set in patients.parquet identifies the sets."
                )
        static, static_names = self.static(tables, rows, offsets, kept, anchors, selected)
        ids = tables.people.order_by("patient").select("id").to_pyarrow()["id"].take(kept)
        table = self.attrition.frame()
        data = CSR(_values(rows.amount, self.settings.values), rows.feature, rows.indptr, len(names))
        built = Cohort(
            data,
            offsets,
            static,
            patient_ids=ids.to_numpy(),
            visit_times=rows.time,
            feature_names=names,
            static_names=static_names,
            labels=_labels(selected),
            origin={
                "settings": _json_value(asdict(self.settings)),
                "attrition": table.to_dict("records"),
                "quality": quality,
                "notes": self.notes,
                "index_codes": list(self.records.index_codes),
            },
        )
        return Built(
            built,
            table,
            quality,
            unmapped,
            self.settings,
            _patient_table(ids, selected),
            tuple(self.notes),
            tables.labels is not None,
        )

    def static(
        self,
        tables: Normalised,
        rows: Rows,
        offsets: np.ndarray,
        kept: np.ndarray,
        anchors: "Table | None",
        selected: "pa.Table | None",
    ) -> tuple[np.ndarray | None, list[str] | None]:
        if self.model_columns is not None and self.model_columns.static is None:
            return None, None
        age_at = self.age_at(rows, offsets, selected)
        matrix, names, notes = static_features(tables, kept, age_at, anchors, self.settings.static)
        self.notes += notes
        if self.model_columns is not None and self.model_columns.static is not None:
            matrix, notes = to_model_columns(matrix, names, self.model_columns.static, len(kept))
            self.notes += notes
            names = list(self.model_columns.static)
        return (matrix, names) if matrix is not None else (None, None)

    def age_at(self, rows: Rows, offsets: np.ndarray, selected: "pa.Table | None") -> np.ndarray:
        """The day at which each patient's age is taken: a fixed date, the end of the window, or the last visit."""
        n_patients = len(offsets) - 1
        if self.settings.static.age_at is not None:
            return np.full(n_patients, np.datetime64(self.settings.static.age_at, "D"))
        if selected is not None:
            return selected["end"].to_numpy().astype("datetime64[D]")
        if self.records.as_of is not None:
            return np.full(n_patients, np.datetime64(self.records.as_of, "D"))
        return rows.time[offsets[1:] - 1].astype("datetime64[D]")


def _values(counts: np.ndarray, values: str) -> np.ndarray:
    if values == "binary":
        return np.ones(len(counts))
    return np.log1p(counts, dtype=np.float64) if values == "log" else counts.astype(np.float64)


def _labels(selected: "pa.Table | None") -> np.ndarray | None:
    if selected is None:
        return None
    labels = selected["label"].to_numpy().astype(float)
    return None if np.isnan(labels).all() else labels


def _broken_sets(selected: "pa.Table") -> int:
    """The number of matched sets without a case or without a control."""
    matched = selected.filter(selected["set"].is_valid())
    sets, labels = matched["set"].to_numpy(), matched["label"].to_numpy()
    return len(np.setxor1d(sets[labels == 1], sets[labels == 0]))


def _patient_table(ids: "pa.ChunkedArray", selected: "pa.Table | None") -> "pa.Table | None":
    import pyarrow as pa

    if selected is None:
        return None
    return pa.table(
        {
            "patient": ids,
            "label": selected["label"],
            "index_date": selected["index"],
            "window_start": selected["start"],
            "window_end": selected["end"],
            "match_set": selected["set"],
        }
    )


def _json_value(value: Any) -> Any:
    """Tuples as lists, as in JSON."""
    if isinstance(value, dict):
        return {name: _json_value(inner) for name, inner in value.items()}
    return [_json_value(inner) for inner in value] if isinstance(value, tuple | list) else value
