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
from phenotaste.build.groupers import PREFIX
from phenotaste.build.matrix import Rows, apply_minimums, collect_visits, to_model_features
from phenotaste.build.measurements import Rater, Threshold, patients_of
from phenotaste.build.names import with_names
from phenotaste.build.normalise import ENCOUNTER, Normalised, blocks, normalise, visit_number
from phenotaste.build.placement import intervals, place
from phenotaste.build.settings import CALENDAR, VISITS, Settings, Weights
from phenotaste.build.static import Numbers, last_fact_times, model_bounds, static_features, to_model_columns
from phenotaste.cohort import Cohort
from phenotaste.cohort.checks import CSR
from phenotaste.errors import InputError
from phenotaste.sources.records import MEASUREMENT, ORDER, ORIGIN, Records
from phenotaste.sources.typed_tables import MICROSECONDS
from phenotaste.sources.workspace import Workspace, translate_errors

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from ibis import Table


MAX_NAMELESS = 0.1  # of the events of a kind, for which a note is sufficient
FIRST_CATEGORY = (
    "Diagnoses have their first CCSR category only; AHRQ's DXCCSR file (--ccs-table) has all, with names."
)


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
    thresholds: tuple[Threshold, ...] = ()  # of measurements, learnt on the model's cohort


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
    thresholds: tuple[Threshold, ...] = ()  # of measurements, learnt on this cohort or given by a model
    warnings: tuple[str, ...] = ()  # what the user must know before using the cohort

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
        if self.thresholds:
            import pandas as pd

            table = pd.DataFrame(self.thresholds, columns=list(Threshold._fields))
            files["thresholds.csv"] = table.to_csv(index=False).encode()
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
        self.notes, self.warnings = list(records.notes), list(records.warnings)
        if settings.groups.ccs == "ccsr" and settings.groups.multi3 is None:
            self.notes.append(FIRST_CATEGORY)
        self.thresholds: tuple[Threshold, ...] = () if model_columns is None else model_columns.thresholds
        self.measurement_counts: dict[str, int] = {}
        self.learnt_bands: list[str] = []

    def run(self) -> Built:
        self.check_times()
        if self.settings.groups.names is not None:
            self.records = with_names(self.workspace, self.records, self.settings.groups.names)
        if MEASUREMENT in self.settings.kinds:
            self.progress("rating measurements")
            self.rate_measurements()
        self.progress("reading events")
        tables, counts = normalise(self.workspace, self.records, self.settings.visit, self.place_hours)
        self.settings = replace(self.settings, visit=counts.unit)
        if counts.placed is not None:
            by_day = counts.placed.days_note()
            note = by_day if counts.unit != ENCOUNTER else counts.placed.note(self.settings.place_hours)
            self.notes += [note] if note else []
        self.progress("grouping codes")
        features = select_features(self.workspace, tables, counts, self.settings, self.attrition)
        self.report_nameless(features)
        self.progress("checking data quality")
        quality: dict[str, Any] = {
            **quality_summary(tables, counts, features.unmapped),
            **self.measurement_counts,
            "coverage": features.coverage,
        }
        anchors = self.anchors(tables, self.attrition, self.notes, self.records)
        self.progress("collecting visits")
        rows, names = self.visits(tables, features, anchors)
        self.progress("static features")
        return self.built(tables, rows, names, anchors, quality, features.unmapped)

    def report_nameless(self, features: Features) -> None:
        """State the events whose concepts have no name: a warning if they are many, a note if they are few."""
        for kind, (events, example) in features.nameless.items():
            total = features.coverage[kind]["events"]
            sentence = (
                f"{events:,} of {total:,} {kind} events have an OMOP concept that the vocabulary does not name; their "
                f"features are called by its id, such as {example}."
            )
            (self.warnings if events > MAX_NAMELESS * total else self.notes).append(sentence)

    def check_times(self) -> None:
        """Refuse settings that the times or labels of the source cannot have."""
        index, visit = self.settings.index, self.settings.visit
        match = self.settings.match
        if match is not None and match.by == CALENDAR and self.records.shifted_dates:
            raise InputError(
                "the source shifts the dates of each patient, so that controls cannot be matched by date; match by the "
                "time since the first record (--match-by history)."
            )
        if self.records.time_unit == ORDER:
            if index is not None:
                raise InputError(
                    "times are an order only, without durations; build without an index and window."
                )
            if visit not in (None, "day", ENCOUNTER):
                raise InputError(
                    "times are an order only, without durations; a visit is a rank or an encounter."
                )
        if self.records.outcomes is not None and index is not None and index.first is None:
            raise InputError(
                "the label of the static table has no time, which the index needs; use --first, or a label table."
            )

    def rate_measurements(self) -> None:
        """Add the measurements to the events; quantiles are learnt first where results have no range."""
        settings, model = self.settings.measurements, self.model_columns
        rater = Rater(self.workspace, self.records, settings, self.thresholds)
        records, counts = rater.as_records()
        if not counts["measurements"]:
            self.notes.append("The source has no measurements; the kind is omitted.")
        missing = counts["measurements_without_range"] and settings.level != "counts"
        if missing and model is None and settings.quantiles is not None:
            self.progress("learning quantiles of measurements")
            rater.thresholds = rater.learn(self.learning_windows(records))
            records, counts = rater.as_records()
            if rater.thresholds:
                low, high = settings.quantiles
                self.notes.append(
                    f"{len(rater.thresholds):,} measurements without a reference range are low below the {low:.0%} "
                    f"quantile and high above the {high:.0%} quantile of this cohort; thresholds.csv lists them."
                )
        self.records, self.thresholds, self.measurement_counts = records, rater.thresholds, counts

    def learning_windows(self, records: Records) -> "Table | None":
        """The windows from which quantiles are learnt: id of the patient, start, end; None without an index.

        The index is found as in the build itself, but among all patients, as the features are not known yet.
        """
        import ibis

        if self.settings.index is None:
            return None
        tables, _ = normalise(self.workspace, records, self.settings.visit)
        people = tables.people
        attrition = Attrition()
        attrition.tally = people.select("patient", visits=ibis.literal(1), events=ibis.literal(1))
        anchors = self.anchors(tables, attrition, [], records)
        assert anchors is not None
        named = anchors.inner_join(people.select("patient", "id"), "patient").select("id", "start", "end")
        return self.workspace.materialise(named, "learning windows")

    @property
    def place_hours(self) -> float | None:
        """The tolerance of placement; ranks are in no encounter but their own."""
        return None if self.records.time_unit == ORDER else self.settings.place_hours

    def anchors(
        self, tables: Normalised, attrition: Attrition, notes: list[str], records: Records
    ) -> "Table | None":
        if self.settings.index is None:
            return None
        self.progress("index dates and windows")
        if self.settings.implausible == "drop":
            tables = tables._replace(events=tables.events.filter(tables.events.implausible == 0))
        return index.find_anchors(
            self.workspace,
            tables,
            self.settings,
            attrition,
            tables.labels,
            records.index_codes,
            notes,
        )

    def visits(
        self, tables: Normalised, features: Features, anchors: "Table | None"
    ) -> tuple[Rows, np.ndarray]:
        """The visits that pass all filters, and the names of their features."""
        settings, events = self.settings, features.events
        starts = tables.visits if settings.visit == ENCOUNTER else None
        if anchors is not None:
            events = self.inside(events, tables, anchors)
            starts = None if starts is None else windows.inside(starts, anchors)
        rows = collect_visits(self.workspace, events, starts)
        persons = None
        if anchors is not None:
            persons = anchors.order_by("row").select("patient").to_pyarrow()["patient"].to_numpy()
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
            rows, len(features.names), settings.min_visits, settings.min_patients, self.attrition, persons
        )
        used = np.zeros(len(features.names), bool)
        used[rows.feature] = True
        renumbered = (np.cumsum(used) - 1).astype(np.int32)[rows.feature]
        return rows._replace(feature=renumbered), features.names[used]

    def inside(self, events: "Table", tables: Normalised, anchors: "Table") -> "Table":
        """The events of the windows; those without an encounter are placed by what is known when the window ends."""
        inside = windows.inside(events, anchors)
        if self.settings.visit not in VISITS:
            return self.from_window_start(inside, anchors)
        if self.settings.visit != ENCOUNTER:
            return inside
        inside = self.workspace.materialise(inside, "events of windows")
        if not inside.encounter.isnull().any().to_pyarrow().as_py():
            return inside
        known = windows.known_by_end(tables.events.select("patient", "time", "encounter"), anchors)
        visits = None if tables.visits is None else windows.known_by_end(tables.visits, anchors)
        encounters = intervals(known, visits)
        placed, _ = place(self.workspace, inside, encounters, self.settings.place_hours)
        return placed.mutate(visit=visit_number(ENCOUNTER, placed.time, placed.placed))

    def from_window_start(self, events: "Table", anchors: "Table") -> "Table":
        """Visits of some hours, counted from the start of their window."""
        assert self.settings.visit is not None
        starts = anchors.select("start", window_row=anchors.row)
        joined = events.inner_join(starts, events.patient == starts.window_row)
        visit = blocks(self.settings.visit, joined.time, joined.start)
        return joined.mutate(visit=visit).select(*events.columns)

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
        selected = None if anchors is None else anchors.order_by("row").to_pyarrow()
        persons, several = kept, False
        if selected is not None:
            several = len(np.unique(selected["patient"].to_numpy())) < len(selected)
            selected = selected.take(kept)
            persons = selected["patient"].to_numpy()
            if broken := _broken_sets(selected):
                self.notes.append(
                    f"{broken:,} matched sets have lost their case or all their controls to the filters; "
                    "match_set in patients.parquet identifies the sets."
                )
        people = tables.people.order_by("patient").select("id").to_pyarrow()["id"].take(persons)
        static, static_names = self.static(tables, rows, offsets, kept, anchors, selected, people)
        ids, groups = people.to_numpy(), None
        if several and selected is not None:
            ids, groups = self.row_ids(people, selected), ids
        table = self.attrition.frame()
        values = _values(rows.amount, self.settings.values)
        values *= feature_weights(names, self.settings.weights)[rows.feature]
        data = CSR(values, rows.feature, rows.indptr, len(names))
        built = Cohort(
            data,
            offsets,
            static,
            patient_ids=ids,
            groups=groups,
            visit_times=self.as_given(rows.time),
            feature_names=names,
            static_names=static_names,
            labels=_labels(selected) if selected is not None else _outcomes(tables, kept),
            last_times=self.as_given(self.last_times(tables, rows, firsts, kept, anchors)),
            origin={
                "settings": _json_value(asdict(self.settings)),
                "attrition": table.to_dict("records"),
                "quality": quality,
                "notes": [*self.warnings, *self.notes],
                "index_codes": list(self.records.index_codes),
                "thresholds": [row._asdict() for row in self.thresholds],
                "learnt": self.learnt(),
                **({} if self.records.time_unit is None else {"time_unit": self.records.time_unit}),
            },
        )
        return Built(
            built,
            table,
            quality,
            unmapped,
            self.settings,
            self.patient_table(people, ids if several else None, selected),
            tuple(self.notes),
            tables.labels is not None,
            self.thresholds,
            tuple(self.warnings),
        )

    def static(
        self,
        tables: Normalised,
        rows: Rows,
        offsets: np.ndarray,
        kept: np.ndarray,
        anchors: "Table | None",
        selected: "pa.Table | None",
        people: "pa.ChunkedArray",
    ) -> tuple[np.ndarray | None, list[str] | None]:
        if self.model_columns is not None and self.model_columns.static is None:
            return None, None
        age_at = self.age_at(rows, offsets, selected)
        numbers = self.numbers(people)
        persons = kept if selected is None else selected["patient"].to_numpy()
        matrix, names, notes = static_features(
            tables, kept, age_at, anchors, self.settings.static, numbers, persons
        )
        self.learnt_bands = sorted(numbers.learnt)
        self.notes += notes
        if self.model_columns is not None and self.model_columns.static is not None:
            matrix, notes = to_model_columns(matrix, names, self.model_columns.static, len(kept))
            self.notes += notes
            names = list(self.model_columns.static)
        return (matrix, names) if matrix is not None else (None, None)

    def last_times(
        self,
        tables: Normalised,
        rows: Rows,
        firsts: np.ndarray,
        kept: np.ndarray,
        anchors: "Table | None",
    ) -> np.ndarray:
        """The time of the last record used of each patient: an event or a dated static fact."""
        last: np.ndarray = np.maximum.reduceat(rows.last, firsts)
        if self.model_columns is not None and self.model_columns.static is None:
            return last
        return np.fmax(last, last_fact_times(tables, kept, anchors, self.settings.static))

    def numbers(self, people: "pa.ChunkedArray") -> Numbers:
        """The bounds of bands of numeric static columns, and the patients on whom others are learnt."""
        stated, model = self.settings.static.bounds(), self.model_columns
        learning = np.ones(len(people), bool)
        if (listed := self.settings.measurements.learn_from) is not None:
            learning = np.isin(np.array(people.to_pylist(), dtype=str), patients_of(listed))
        if model is not None:
            return Numbers(stated | model_bounds(model.static), learning, {}, fixed=True)
        return Numbers(stated, learning, {})

    def learnt(self) -> dict[str, Any]:
        """What was learnt on the patients of this cohort; nothing with the columns of a model."""
        if self.model_columns is not None:
            return {}
        return {"measurements": len(self.thresholds), "static": self.learnt_bands}

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

    def as_given(self, times: np.ndarray) -> np.ndarray:
        """Times as the source has them: dates, or numbers in its unit from zero."""
        unit = self.records.time_unit
        if unit is None:
            return times
        passed = (times.astype("datetime64[us]") - np.datetime64(ORIGIN)).astype(np.int64)
        numbers: np.ndarray = passed / MICROSECONDS[unit]
        return np.rint(numbers).astype(np.int64) if unit == ORDER else numbers

    def row_ids(self, people: "pa.ChunkedArray", selected: "pa.Table") -> np.ndarray:
        """Patient and index time, where patients have several rows of the cohort."""
        times = self.as_given(selected["index"].to_numpy())
        texts = (
            [f"{time:.15g}" for time in times.tolist()]
            if times.dtype.kind == "f"
            else np.datetime_as_string(times).tolist()
        )
        return np.array(
            [f"{patient}@{text}" for patient, text in zip(people.to_pylist(), texts, strict=True)]
        )

    def patient_table(
        self, people: "pa.ChunkedArray", ids: np.ndarray | None, selected: "pa.Table | None"
    ) -> "pa.Table | None":
        """Labels, index times and windows; `row` is the id in the cohort, where patients have several."""
        import pyarrow as pa

        if selected is None:
            return None
        times = {"index_date": "index", "window_start": "start", "window_end": "end"}
        if self.records.time_unit is not None:
            given = {
                name: pa.array(self.as_given(selected[column].to_numpy())) for name, column in times.items()
            }
        else:
            given = {name: selected[column] for name, column in times.items()}
        rows = {} if ids is None else {"row": pa.array(ids)}
        return pa.table(
            {"patient": people, **rows, "label": selected["label"], **given, "match_set": selected["set"]}
        )


def _outcomes(tables: Normalised, kept: np.ndarray) -> np.ndarray | None:
    """The outcomes that the source states without a time, of the kept patients."""
    if tables.outcomes is None:
        return None
    stated = index.stated_labels(tables.outcomes, [], timed=False)
    labels = np.full(int(max(kept.max(initial=0), stated.patient.max(initial=0))) + 1, np.nan)
    labels[stated.patient] = stated.value
    return None if np.isnan(labels[kept]).all() else labels[kept]


def _values(counts: np.ndarray, values: str) -> np.ndarray:
    if values == "binary":
        return np.ones(len(counts))
    return np.log1p(counts, dtype=np.float64) if values == "log" else counts.astype(np.float64)


def feature_weights(names: np.ndarray, weights: Weights) -> np.ndarray:
    """The weight of each feature, by the kind that its prefix states."""
    by_prefix = {prefix: getattr(weights, kind) for kind, prefix in PREFIX.items()}
    return np.array([by_prefix.get(f"{str(name).partition('_')[0]}_", 1.0) for name in names], float)


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


def _json_value(value: Any) -> Any:
    """Tuples as lists, as in JSON."""
    if isinstance(value, dict):
        return {name: _json_value(inner) for name, inner in value.items()}
    return [_json_value(inner) for inner in value] if isinstance(value, tuple | list) else value
