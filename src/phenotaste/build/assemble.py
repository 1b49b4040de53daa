"""The build from end to end: records and settings in, a cohort with its attrition and data quality out."""

import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phenotaste.build import filters, index, quality, toml, window_figure, windows
from phenotaste.build.attrition import Attrition
from phenotaste.build.features import Features, choose
from phenotaste.build.matrix import Rows, gather
from phenotaste.build.normalise import Compact, compact
from phenotaste.build.settings import Settings
from phenotaste.build.static import like_model, static_features
from phenotaste.build.visits import ENCOUNTER
from phenotaste.cohort import Cohort
from phenotaste.cohort.checks import CSR
from phenotaste.sources.records import Records
from phenotaste.sources.workspace import Workspace, refusing

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from ibis import Table


class Like(NamedTuple):
    """The columns of a fitted model, in its order; static is None for a model without static features.

    Examples
    --------
    >>> from phenotaste import TASTE, build, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, n_static=2, rank=3, random_state=1)
    >>> model = TASTE(rank=3, random_state=0).fit(cohort)
    >>> like = build.Like(tuple(model.feature_names_in_), tuple(model.static_names_in_))
    >>> len(like.features), len(like.static)
    (30, 2)
    """

    features: tuple[str, ...]
    static: tuple[str, ...] | None


@dataclass(frozen=True)
class Built:
    """A cohort and how it came about.

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
    attrition: "pd.DataFrame"  # step, patients, visits, events, and how many of each the step removed
    quality: dict[str, Any]
    unmapped: "pd.DataFrame"  # vocabulary, code, kind, name, events
    settings: Settings  # with the unit of visits that was used
    patients: (
        "pa.Table | None"  # with an index: patient, label, index_date, window_start, window_end, match_set
    )
    notes: tuple[str, ...]
    labelled: bool = False  # the source stated the index dates

    def save(self, path: str | os.PathLike[str]) -> None:
        """The cohort's folder, with the attrition, the settings and the data quality beside the data.

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
        """What `save` puts beside the data, by name.

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
    like: Like | None = None,
    progress: Callable[[str], None] | None = None,
) -> Built:
    """Build a cohort; with `like` on the features of a fitted model, whatever the data have.

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
    tell = progress or (lambda step: None)
    with refusing("the source"):
        return _Build(workspace, records, settings, like, tell).run()


class _Build:
    """What the steps of one build share."""

    def __init__(
        self,
        workspace: Workspace,
        records: Records,
        settings: Settings,
        like: Like | None,
        tell: Callable[[str], None],
    ) -> None:
        self.workspace, self.records, self.like, self.tell = workspace, records, like, tell
        self.settings = settings
        self.attrition = Attrition()
        self.notes = list(records.notes)

    def run(self) -> Built:
        self.tell("reading events")
        tables, reading = compact(self.workspace, self.records, self.settings.visit)
        self.settings = replace(self.settings, visit=reading.unit)
        self.tell("grouping codes")
        features = choose(self.workspace, tables, reading, self.settings, self.attrition)
        self.tell("checking data quality")
        oddities = quality.summary(tables, reading, features.unmapped)
        anchors = self.anchors(tables)
        self.tell("collecting visits")
        rows, names = self.rows(tables, features, anchors)
        self.tell("static features")
        return self.built(tables, rows, names, anchors, oddities, features.unmapped)

    def anchors(self, tables: Compact) -> "Table | None":
        if self.settings.index is None:
            return None
        self.tell("index dates and windows")
        if self.settings.implausible == "drop":
            tables = tables._replace(events=tables.events.filter(tables.events.doubt == 0))
        return index.anchor(
            self.workspace,
            tables,
            self.settings,
            self.attrition,
            tables.labels,
            self.records.index_codes,
            self.notes,
        )

    def rows(self, tables: Compact, features: Features, anchors: "Table | None") -> tuple[Rows, np.ndarray]:
        """The visits that pass all filters, and the names that their features are numbered by."""
        settings, events = self.settings, features.events
        starts = tables.visits if settings.visit == ENCOUNTER else None
        if anchors is not None:
            events = windows.inside(events, anchors)
            starts = None if starts is None else windows.inside(starts, anchors)
        rows = gather(self.workspace, events, starts)
        if anchors is not None:
            self.attrition.record(
                "in the window",
                rows.n_patients,
                len(rows.patient),
                rows.n_events,
                "no event lies in a window; choose a longer window or a shorter gap.",
            )
        if self.like is not None:
            names = np.array(self.like.features, dtype=str)
            rows = filters.as_model(rows, features.names, self.like.features, self.attrition)
            return filters.enough(rows, len(names), settings.min_visits, 1, self.attrition), names
        rows = filters.enough(
            rows, len(features.names), settings.min_visits, settings.min_patients, self.attrition
        )
        used = np.zeros(len(features.names), bool)
        used[rows.feature] = True
        return rows._replace(feature=(np.cumsum(used) - 1).astype(np.int32)[rows.feature]), features.names[
            used
        ]

    def built(
        self,
        tables: Compact,
        rows: Rows,
        names: np.ndarray,
        anchors: "Table | None",
        oddities: dict[str, Any],
        unmapped: "pd.DataFrame",
    ) -> Built:
        kept, firsts = np.unique(rows.patient, return_index=True)
        offsets = np.append(firsts, len(rows.patient))
        chosen = None if anchors is None else anchors.order_by("patient").to_pyarrow()
        if chosen is not None:
            chosen = chosen.take(np.searchsorted(chosen["patient"].to_numpy(), kept))
            if broken := _broken_sets(chosen):
                self.notes.append(
                    f"{broken:,} matched sets have lost their case or all their controls to the filters; "
                    "match_set in patients.parquet says who belongs together."
                )
        static, static_names = self.static(tables, rows, offsets, kept, anchors, chosen)
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
            labels=_labels(chosen),
            origin={
                "settings": _plain(asdict(self.settings)),
                "attrition": table.to_dict("records"),
                "quality": oddities,
                "notes": self.notes,
                "index_codes": list(self.records.index_codes),
            },
        )
        return Built(
            built,
            table,
            oddities,
            unmapped,
            self.settings,
            _listed(ids, chosen),
            tuple(self.notes),
            tables.labels is not None,
        )

    def static(
        self,
        tables: Compact,
        rows: Rows,
        offsets: np.ndarray,
        kept: np.ndarray,
        anchors: "Table | None",
        chosen: "pa.Table | None",
    ) -> tuple[np.ndarray | None, list[str] | None]:
        if self.like is not None and self.like.static is None:
            return None, None
        age_at = self.age_at(rows, offsets, chosen)
        matrix, names, notes = static_features(tables, kept, age_at, anchors, self.settings.static)
        self.notes += notes
        if self.like is not None and self.like.static is not None:
            matrix, notes = like_model(matrix, names, self.like.static, len(kept))
            self.notes += notes
            names = list(self.like.static)
        return (matrix, names) if matrix is not None else (None, None)

    def age_at(self, rows: Rows, offsets: np.ndarray, chosen: "pa.Table | None") -> np.ndarray:
        """The day each patient's age is taken at: one for all, the end of the window, or the last visit."""
        n_patients = len(offsets) - 1
        if self.settings.static.age_at is not None:
            return np.full(n_patients, np.datetime64(self.settings.static.age_at, "D"))
        if chosen is not None:
            return chosen["end"].to_numpy().astype("datetime64[D]")
        if self.records.as_of is not None:
            return np.full(n_patients, np.datetime64(self.records.as_of, "D"))
        return rows.time[offsets[1:] - 1].astype("datetime64[D]")


def _values(counts: np.ndarray, values: str) -> np.ndarray:
    if values == "binary":
        return np.ones(len(counts))
    return np.log1p(counts, dtype=np.float64) if values == "log" else counts.astype(np.float64)


def _labels(chosen: "pa.Table | None") -> np.ndarray | None:
    if chosen is None:
        return None
    labels = chosen["label"].to_numpy().astype(float)
    return None if np.isnan(labels).all() else labels


def _broken_sets(chosen: "pa.Table") -> int:
    """How many matched sets are left without a case or without a control."""
    matched = chosen.filter(chosen["set"].is_valid())
    sets, labels = matched["set"].to_numpy(), matched["label"].to_numpy()
    return len(np.setxor1d(sets[labels == 1], sets[labels == 0]))


def _listed(ids: "pa.ChunkedArray", chosen: "pa.Table | None") -> "pa.Table | None":
    import pyarrow as pa

    if chosen is None:
        return None
    return pa.table(
        {
            "patient": ids,
            "label": chosen["label"],
            "index_date": chosen["index"],
            "window_start": chosen["start"],
            "window_end": chosen["end"],
            "match_set": chosen["set"],
        }
    )


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON gives them back."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value
