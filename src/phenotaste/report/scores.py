"""Scores and courses of patients as Parquet files. They are patient-level, so only their owner can read them."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.factorization import Projection
from phenotaste.patients import Patients, PooledProjection
from phenotaste.phenotype_model import PhenotypeModel
from phenotaste.review import Reviewed, fingerprint
from phenotaste.storage.atomic import check_output_file, replace_file

if TYPE_CHECKING:
    import pyarrow as pa

VISITS_PER_BLOCK = 2**20


class Scoring(NamedTuple):
    """What `write_scores` returns: the numbers of patients, visits and features, and the objective.

    Methods without courses have neither short histories nor an objective of new patients.

    Examples
    --------
    >>> from phenotaste.report.scores import Scoring
    >>> Scoring(60, 2980, unknown_features=1, absent_features=0, short_histories=2, objective=8206.9).unknown_features
    1
    """

    patients: int
    visits: int
    unknown_features: int
    absent_features: int
    short_histories: int | None = None
    objective: float | None = None


def write_scores(
    model: PhenotypeModel | Reviewed,
    cohort: Cohort,
    path: str | os.PathLike[str],
    courses: str | os.PathLike[str] | None = None,
) -> Scoring:
    """Score a cohort and write a row for each patient, and into `courses`, if given, a row for each visit.

    Of each patient: `phenotype_1`, ..., the score, the size of a phenotype relative to the patient's whole record;
    `amount_1`, ..., the same in the data's own units; `share_1`, ..., its part of the sum of the squared sizes. Of
    each visit: `phenotype_1`, ..., the size at that visit (score × course). Amounts and shares are zero for
    patients without a history, whose scores are from the static features and the mean score. Where patients have
    several rows, one for each index time, the column `group` has the patient.

    Of methods without courses, such as `PatientNMF`, scores are in the data's own units. Their files have neither loss
    nor short histories, and `courses` raises InputError.

    Under a review, columns have the reviewer's names, those of merged phenotypes are summed, and those of rejected
    ones are left out. The metadata of the files, under "phenotaste", identify the model, its phenotypes and the review:
    by whom, when, and on which earlier ones it is based.

    Examples
    --------
    >>> import pandas as pd
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.report.scores import write_scores
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
    >>> write_scores(model, cohort, "scores.parquet").patients
    60
    >>> pd.read_parquet("scores.parquet").columns[:7].tolist()
    ['patient', 'phenotype_1', 'phenotype_2', 'phenotype_3', 'amount_1', 'amount_2', 'amount_3']
    """
    import pyarrow.parquet as pq

    if courses is not None:
        check_courses(model)
    projection = model.project(cohort)
    fitted, labels = model, [str(r + 1) for r in range(model.V_.shape[1])]
    if isinstance(model, Reviewed):
        fitted, labels = model.model, model.labels()
    about = metadata(model, labels)
    table = scores_table(projection, cohort, labels, fitted.V_.shape[1]).replace_schema_metadata(about)
    with ExitStack() as files:
        pq.write_table(table, files.enter_context(replace_file(check_output_file(path), private=True)))
        if courses is not None:
            blocks = (
                block.replace_schema_metadata(about) for block in course_tables(projection, cohort, labels)
            )
            first = next(blocks)
            file = files.enter_context(replace_file(check_output_file(courses), private=True))
            with pq.ParquetWriter(file, first.schema) as writer:
                writer.write_table(first)
                for block in blocks:
                    writer.write_table(block)
    written = Scoring(len(cohort), cohort.n_visits, projection.unknown_features, projection.absent_features)
    if not model.has_courses:
        return written
    short = int(np.sum(table["short_history"].to_numpy()))
    return written._replace(short_histories=short, objective=projection.loss)


def check_courses(model: PhenotypeModel | Reviewed) -> None:
    """Refuse to write the courses of a method that has none."""
    if not model.has_courses:
        fitted = model.model if isinstance(model, Reviewed) else model
        raise InputError(f"A model of {type(fitted).__name__} has no courses: leave out courses.")


def metadata(model: PhenotypeModel | Reviewed, labels: list[str]) -> dict[str, str]:
    """Metadata of a file of scores; its columns, such as phenotype_Gout, end in the labels listed here."""
    fitted = model.model if isinstance(model, Reviewed) else model
    names, numbers = [f"Phenotype {label}" for label in labels], [[r + 1] for r in range(len(labels))]
    if isinstance(model, Reviewed):
        names, numbers = model.names, [list(group.members) for group in model.groups]
    columns = zip(labels, names, numbers, strict=True)
    phenotypes = [dict(zip(("label", "name", "numbers"), column, strict=True)) for column in columns]
    record: dict[str, Any] = {
        "version": __version__,
        "model": fingerprint(fitted),
        "reviewed": isinstance(model, Reviewed),
        "phenotypes": phenotypes,
    }
    if isinstance(model, Reviewed):
        record["review"] = model.review.provenance_record()
        for phenotype, group in zip(phenotypes, model.groups, strict=True):
            phenotype |= model.review.decision_record(group.number)
    return {"phenotaste": json.dumps(record)}


def scores_table(
    projection: Projection | PooledProjection, cohort: Cohort, labels: list[str], rank: int
) -> "pa.Table":
    """Scores, amounts and shares of each patient, number of visits and, with courses, short-history flag and loss.

    A history is short if it has fewer visits than the rank of the model, even if a review left fewer phenotypes.
    """
    import pyarrow as pa

    patients = Patients.of(projection)
    columns = {"patient": cohort.patient_ids}
    if cohort.groups is not None:
        columns["group"] = cohort.groups
    parts = {"phenotype": projection.W, "amount": patients.amounts(), "share": patients.shares()}
    for name, matrix in parts.items():
        columns |= {f"{name}_{label}": column for label, column in zip(labels, matrix.T, strict=True)}
    columns["visits"] = patients.visits
    if isinstance(projection, Projection):
        columns["short_history"] = patients.visits < rank
        columns["loss"] = projection.patient_loss
    return pa.table({name: pa.array(np.ascontiguousarray(column)) for name, column in columns.items()})


def course_tables(projection: Projection, cohort: Cohort, labels: list[str]) -> Iterator["pa.Table"]:
    """Yield blocks of visits: patient, visit (counted from 1), time if known, score × course. There is at least one."""
    import pyarrow as pa

    offsets = projection.offsets
    for first in range(0, max(cohort.n_visits, 1), VISITS_PER_BLOCK):
        rows = np.arange(first, min(first + VISITS_PER_BLOCK, cohort.n_visits))
        owner = np.searchsorted(offsets, rows, side="right") - 1
        columns = {"patient": cohort.patient_ids[owner], "visit": rows - offsets[owner] + 1}
        if cohort.visit_times is not None:
            columns["time"] = cohort.visit_times[rows]
        sizes = np.multiply(projection.U[rows], projection.W[owner], dtype=np.float64)
        columns |= {f"phenotype_{label}": size for label, size in zip(labels, sizes.T, strict=True)}
        yield pa.table({name: pa.array(np.ascontiguousarray(column)) for name, column in columns.items()})
