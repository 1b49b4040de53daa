"""Phenotype membership: a threshold on the share, score or amount of each patient."""

import warnings
from contextlib import suppress
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate, rounding_key
from phenotaste.errors import InputError
from phenotaste.patients import Patients
from phenotaste.review import Reviewed, fingerprint
from phenotaste.validation import check_choice

Measure = Literal["share", "score", "amount"]
MEASURES: tuple[str, ...] = get_args(Measure)
MAJORITY = 0.5
FORMAT = "phenotaste-membership"
TOP_FEATURES = 10


class Phenotype(NamedTuple):
    """A phenotype of a model or of a reviewed model; `numbers` are those that a review merged into `number`."""

    number: int
    label: str  # for columns: the reviewer's name, or the number
    name: str  # for display
    numbers: tuple[int, ...]
    features: list[dict[str, Any]]  # those with the largest weights: kind, feature, weight


def fitted_model(model: Any) -> Any:
    return model.model if isinstance(model, Reviewed) else model


def list_phenotypes(model: Any) -> list[Phenotype]:
    if getattr(model, "V_", None) is None:
        raise InputError("the model is not fitted: fit it, or load one that is.")
    table = model.phenotypes(top=TOP_FEATURES)
    if isinstance(model, Reviewed):
        groups = zip(model.groups, model.labels(), model.names, strict=True)
        rows = [(group.number, label, name, group.members) for group, label, name in groups]
    else:
        rows = [(r, str(r), f"Phenotype {r}", (r,)) for r in range(1, model.V_.shape[1] + 1)]
    columns = ["kind", "feature", "weight"]
    return [
        Phenotype(*one, table.loc[table["phenotype"] == one[0], columns].to_dict("records")) for one in rows
    ]


class Rule(NamedTuple):
    """A patient has a phenotype where its `measure` is at least the `threshold`.

    Shares are between 0 and 1, so that one half is a natural threshold; scores and amounts have no natural scale.

    Examples
    --------
    >>> from phenotaste.ecosystem import Rule
    >>> Rule()
    Rule(measure='share', threshold=0.5)
    >>> Rule("score", threshold=2.5).measure
    'score'
    """

    measure: Measure = "share"
    threshold: float = MAJORITY

    def check(self) -> None:
        """Raise an InputError for an unknown measure, or a threshold that no patient or every patient reaches.

        Examples
        --------
        >>> from phenotaste.ecosystem import Rule
        >>> Rule("share", threshold=2.0).check()
        Traceback (most recent call last):
            ...
        phenotaste.errors.InputError: The threshold is 2.0, and no share exceeds 1: give one up to 1.
        """
        check_choice("measure", self.measure, MEASURES)
        if not 0 < self.threshold < np.inf:
            raise InputError(
                f"The threshold is {self.threshold}: give a number above zero, or every patient is a member."
            )
        if self.measure == "share" and self.threshold > 1:
            raise InputError(f"The threshold is {self.threshold}, and no share exceeds 1: give one up to 1.")


class Membership(NamedTuple):
    """A row for each patient with visits, a column for each phenotype. Patient-level."""

    rule: Rule
    phenotypes: list[Phenotype]
    subjects: NDArray[np.int64]
    first: NDArray[np.datetime64]  # visit
    last: NDArray[np.datetime64]  # record used
    values: NDArray[np.float64]
    without_visits: int  # patients without a date, who are excluded

    @property
    def members(self) -> NDArray[np.bool_]:
        return self.values >= self.rule.threshold


def find_members(model: Any, cohort: Cohort, rule: Rule) -> Membership:
    """Score the patients, after all checks, and apply the rule."""
    rule.check()
    phenotypes = list_phenotypes(model)
    subjects, times = integer_ids(cohort), dates(cohort)
    if fitted_model(model).has_negative_weights:
        raise InputError(
            "The model's scores may be negative, so a threshold does not define membership: fit a non-negative model."
        )
    projection = model.project(cohort)
    patients = Patients.of(projection)
    measures = {"share": patients.shares, "amount": patients.amounts, "score": lambda: projection.W}
    seen = np.flatnonzero(patients.visits)
    return Membership(
        rule,
        phenotypes,
        subjects[seen],
        times[cohort.offsets[seen]],
        last_used(cohort, times)[seen],
        np.asarray(measures[rule.measure]()[seen], np.float64),
        len(cohort) - len(seen),
    )


def integer_ids(cohort: Cohort) -> NDArray[np.int64]:
    """Patient ids as the integers that both formats require; text only where the conversion is exact."""
    ids = cohort.patient_ids if cohort.groups is None else cohort.groups
    if ids.dtype.kind == "U":
        texts, ids = ids, np.empty(0)
        with suppress(ValueError, OverflowError):
            ids = np.array([int(text) for text in texts.tolist()], np.int64)
        if not np.array_equal(ids.astype(str), texts):
            raise InputError(
                "The patients' ids are text, and subject_id must be an integer: build the cohort with the "
                "person_id or subject_id of the source as its patient."
            )
    if len(ids) and ids.max() > np.iinfo(np.int64).max:
        raise InputError("A patient's id has more than 64 bits: build the cohort with the ids of the source.")
    if np.array_equal(ids, np.arange(len(ids))):
        warnings.warn(
            "the patient ids count from 0, as in a cohort without ids: make sure that they are those of your source.",
            stacklevel=4,
        )
    return ids.astype(np.int64)


def dates(cohort: Cohort) -> NDArray[np.datetime64]:
    times = cohort.visit_times
    if times is None or times.dtype.kind != "M":
        kind = "have no times" if times is None else "have numbers for times"
        raise InputError(
            f"The cohort's visits {kind}, and both formats require dates: build the cohort with dated visits."
        )
    return times


def last_used(cohort: Cohort, visit_times: NDArray[np.datetime64]) -> NDArray[np.datetime64]:
    """The time of the last record that each score uses; any for patients without visits."""
    if cohort.last_times is not None:
        return cohort.last_times
    if cohort.origin is not None and "attrition" in cohort.origin:
        raise InputError(
            "The cohort was built by an earlier version, which did not keep the times of the last events, and a visit "
            "may last longer than its start: build the cohort again."
        )
    last: NDArray[np.datetime64] = visit_times[np.maximum(cohort.offsets[1:] - 1, 0)]
    return last


def rule_record(model: Any, found: Membership, dates: str) -> dict[str, Any]:
    """The rule, model and phenotypes, to be written with the members; contains no patient data."""
    fitted = fitted_model(model)
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "phenotaste": __version__,
        "rule": {"measure": found.rule.measure, "comparison": ">=", "threshold": found.rule.threshold},
        "dates": dates,
        "model": {
            "method": type(fitted).__name__,
            "fingerprint": fingerprint(fitted),
            "phenotypes": int(fitted.V_.shape[1]),
        },
        "phenotypes": [
            {
                "number": each.number,
                "name": each.name,
                "merged": list(each.numbers),
                "heaviest_features": each.features,
            }
            for each in found.phenotypes
        ],
    }
    if isinstance(model, Reviewed):
        record["review"] = model.review.provenance_record()
        for phenotype in record["phenotypes"]:
            phenotype |= model.review.decision_record(phenotype["number"])
    return record


class Exported(NamedTuple):
    """Counts of what was written, rounded, safe to display; None for one that is withheld."""

    files: list[str]
    patients: int | None
    without_visits: int | None
    names: list[str]
    members: list[int | None]  # of each phenotype; None where members or non-members are too few


def exported(found: Membership, files: list[str]) -> Exported:
    gate = Gate(key=rounding_key(found.subjects, found.values))
    n_patients = len(np.unique(found.subjects))  # a patient may have several rows
    total = gate.rounded("patients", n_patients)
    having = [len(np.unique(found.subjects[members])) for members in found.members.T]
    names = [phenotype.name for phenotype in found.phenotypes]
    counts = [gate.count(name, n) for name, n in zip(names, having, strict=True)]
    members = [None if gate.share(count, total) is None else count for count in counts]
    without_visits = gate.count("without visits", found.without_visits)
    return Exported(files, gate.count("patients", n_patients), without_visits, names, members)
