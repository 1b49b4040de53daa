"""Cohorts and fitted models as AnnData, and cohorts back from it.

An AnnData has no axis for visits: X holds each patient's totals, and the visits are in `uns`, from which
`from_anndata` selects those of the remaining patients and features.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.ecosystem.membership import Phenotype, fitted_model, list_phenotypes
from phenotaste.errors import InputError
from phenotaste.model_file import FIGURES, settings_of
from phenotaste.patients import Patients
from phenotaste.review import Reviewed, fingerprint
from phenotaste.review.reviewed import unique
from phenotaste.storage.atomic import check_output_file, replace_file
from phenotaste.storage.encoding import json_value

UNS_KEY, LABEL, VISITS = "phenotaste", "label", "visits"
SCORES, AMOUNTS, SHARES, DEFINITIONS = "X_taste", "taste_amounts", "taste_shares", "taste"


def to_anndata(cohort: Cohort, model: Any = None, *, visits: bool = True) -> Any:
    """Convert a cohort to an AnnData and, with a fitted or reviewed model, its phenotypes.

    X holds each patient's totals over the visits; obs the number of visits, static features, labels and scores;
    var the number of patients with the feature. Of the model, `obsm["X_taste"]` are the scores,
    `obsm["taste_amounts"]` the amounts in the data's own units, `obsm["taste_shares"]` the shares, `varm["taste"]`
    the definitions V, and `uns["phenotaste"]["model"]` its settings, figures, names, H and F. The
    visits themselves are in `uns["phenotaste"]["visits"]`, unless `visits` is False; `from_anndata` needs them. All
    of it is patient-level.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.ecosystem import to_anndata
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> adata = to_anndata(cohort, TASTE(rank=3, random_state=0).fit(cohort))
    >>> adata.shape, adata.obsm["X_taste"].shape, adata.varm["taste"].shape
    ((60, 30), (60, 3), (30, 3))
    """
    anndata = import_anndata()
    phenotypes = [] if model is None else list_phenotypes(model)
    projection = None if model is None else model.project(cohort)
    features = names_or_numbers(cohort.feature_names, cohort.n_features)
    statics = names_or_numbers(cohort.static_names, cohort.n_static)
    columns: dict[str, NDArray[Any]] = {VISITS: cohort.visit_counts}
    if cohort.labels is not None:
        columns[LABEL] = cohort.labels
    scores = [f"phenotype_{phenotype.label}" for phenotype in phenotypes]
    static_keys, score_keys = obs_keys(columns, statics, scores)
    if cohort.static is not None:
        columns |= dict(zip(static_keys, cohort.static.T, strict=True))
    if projection is not None:
        columns |= dict(zip(score_keys, projection.W.T, strict=True))
    totals = patient_totals(cohort)
    ids = cohort.patient_ids.astype(str)
    adata = anndata.AnnData(
        totals,
        obs=frame(columns, ids),
        var=frame({"patients": np.bincount(totals.indices, minlength=cohort.n_features)}, features),
    )
    kept: dict[str, Any] = {"version": __version__, "cohort": cohort_record(cohort, static_keys, statics)}
    if visits:
        kept[VISITS] = visits_record(cohort, ids, features)
    if projection is not None:
        adata.obsm[SCORES] = np.array(projection.W, np.float64)
        patients = Patients.of(projection)
        adata.obsm[AMOUNTS], adata.obsm[SHARES] = patients.amounts(), patients.shares()
        adata.varm[DEFINITIONS] = definition_rows(cohort, model)
        kept["model"] = model_record(model, phenotypes)
    adata.uns[UNS_KEY] = kept
    return adata


def from_anndata(adata: Any) -> Cohort:
    """Recover the cohort from the output of `to_anndata`: its remaining patients and features, in their current order.

    Examples
    --------
    >>> from phenotaste import Cohort
    >>> from phenotaste.ecosystem import from_anndata, to_anndata
    >>> cohort = Cohort([[1, 0], [0, 1], [3, 0]], offsets=[0, 2, 3], feature_names=["gout", "cough"])
    >>> from_anndata(to_anndata(cohort)[:, ["gout"]]).visits.toarray().ravel()
    array([1., 0., 3.])
    """
    kept = getattr(adata, "uns", {}).get(UNS_KEY)
    if not isinstance(kept, dict) or VISITS not in kept:
        raise InputError(
            "the AnnData contains no visits of a cohort: give one that ecosystem.to_anndata made with visits=True."
        )
    stored, about = kept[VISITS], kept["cohort"]
    rows = stored_positions(adata.obs_names, stored["patients"], "patients")
    columns = stored_positions(adata.var_names, stored["features"], "features")
    ids = np.asarray(stored["patients"]).astype(str)
    stored_cohort = Cohort(
        sp.csr_array(stored["matrix"]),
        np.asarray(stored["offsets"]),
        patient_ids=ids.astype(np.int64) if about["integer_ids"] else ids,
        visit_times=_stored_times(stored, "times"),
        last_times=_stored_times(stored, "last_times"),
        groups=_stored_groups(stored, bool(about.get("integer_groups"))),
        allow_negative=bool(about["allow_negative"]),
    )
    part = stored_cohort[rows]
    pairs = zip(about["static_columns"], about["static_names"], strict=True)
    static = [(str(key), str(name)) for key, name in pairs if key in adata.obs]
    names = [str(name) for name in adata.var_names]
    return Cohort(
        part.visits
        if np.array_equal(columns, np.arange(stored_cohort.n_features))
        else part.visits[:, columns],
        part.offsets,
        np.column_stack([np.asarray(adata.obs[key], np.float64) for key, _ in static]) if static else None,
        patient_ids=part.patient_ids,
        visit_times=part.visit_times,
        last_times=part.last_times,
        groups=part.groups,
        feature_names=names if about["named_features"] else None,
        static_names=[name for _, name in static] if static and about["named_static"] else None,
        labels=np.asarray(adata.obs[LABEL]) if about["labelled"] and LABEL in adata.obs else None,
        allow_negative=part.allow_negative,
        origin=json.loads(str(about["origin"])),
    )


def write_anndata(
    cohort: Cohort, path: str | os.PathLike[str], model: Any = None, *, visits: bool = True
) -> None:
    """Write the result of `to_anndata` to a file (.h5ad), atomically; patient-level, readable by its owner only.

    Examples
    --------
    >>> import anndata
    >>> from phenotaste import Cohort
    >>> from phenotaste.ecosystem import write_anndata
    >>> write_anndata(Cohort([[1, 0], [0, 1], [3, 0]], offsets=[0, 2, 3]), "cohort.h5ad")
    >>> anndata.read_h5ad("cohort.h5ad").obs["visits"].tolist()
    [2, 1]
    """
    import_anndata()
    with replace_file(check_output_file(path), private=True) as file:
        to_anndata(cohort, model, visits=visits).write_h5ad(file.name)


def import_anndata() -> Any:
    try:
        import anndata
    except ImportError:
        raise InputError(
            "AnnData needs the package anndata, which is not installed: run pip install 'phenotaste[anndata]'."
        ) from None
    return anndata


def frame(columns: dict[str, NDArray[Any]], index: NDArray[Any]) -> Any:
    """A table with object labels: anndata 0.12 cannot write the string type of pandas 3."""
    import pandas as pd

    table = pd.DataFrame({key: np.asarray(column) for key, column in columns.items()})
    table.index = pd.Index(index.astype(object), dtype=object)
    table.columns = pd.Index(np.array(list(columns), object), dtype=object)
    return table


def names_or_numbers(names: NDArray[Any] | None, length: int) -> NDArray[Any]:
    return np.arange(length).astype(str) if names is None else names


def obs_keys(
    taken: dict[str, Any], statics: Sequence[str] | NDArray[Any], scores: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Unique columns of obs for these names, without slashes, which HDF5 does not allow."""
    requested = [*taken, *(str(name).replace("/", "|") for name in [*statics, *scores])]
    keys = unique(requested)[len(taken) :]
    return keys[: len(statics)], keys[len(statics) :]


def patient_totals(cohort: Cohort) -> sp.csr_array:
    """Patients × features: the sum over each patient's visits."""
    n = cohort.n_visits
    belongs = sp.csr_array((np.ones(n), np.arange(n), cohort.offsets), shape=(len(cohort), n))
    totals = sp.csr_array(belongs @ cohort.visits)
    totals.sort_indices()
    return totals


def definition_rows(cohort: Cohort, model: Any) -> NDArray[np.float64]:
    """V with a row for each feature of the cohort; zero for features that the model does not have."""
    names = model.feature_names_in_
    if names is None or cohort.feature_names is None:
        return np.array(model.V_)
    position = {str(name): row for row, name in enumerate(names)}
    rows = np.zeros((cohort.n_features, model.V_.shape[1]))
    for row, name in enumerate(cohort.feature_names):
        if str(name) in position:
            rows[row] = model.V_[position[str(name)]]
    return rows


def cohort_record(cohort: Cohort, keys: list[str], names: NDArray[Any]) -> dict[str, Any]:
    """Properties of the cohort that obs and var do not contain."""
    return {
        "static_columns": np.array(keys, object),
        "static_names": names.astype(object),
        "named_features": cohort.feature_names is not None,
        "named_static": cohort.static_names is not None,
        "labelled": cohort.labels is not None,
        "integer_ids": cohort.patient_ids.dtype.kind in "iu",
        "integer_groups": cohort.groups is not None and cohort.groups.dtype.kind in "iu",
        "allow_negative": cohort.allow_negative,
        "origin": json.dumps(cohort.origin),
    }


def visits_record(cohort: Cohort, ids: NDArray[Any], features: NDArray[Any]) -> dict[str, Any]:
    record = {
        "matrix": cohort.visits.copy(),
        "offsets": np.array(cohort.offsets),
        "patients": ids.astype(object),
        "features": features.astype(object),
    }
    if cohort.groups is not None:
        record["groups"] = cohort.groups.astype(str).astype(object)
    for name, times in (("times", cohort.visit_times), ("last_times", cohort.last_times)):
        if times is not None:
            record[name] = times.view(np.int64).copy() if times.dtype.kind == "M" else np.array(times)
            record[f"{name}_dtype"] = times.dtype.str
    return record


def _stored_groups(stored: dict[str, Any], integers: bool) -> NDArray[Any] | None:
    if "groups" not in stored:
        return None
    groups = np.asarray(stored["groups"]).astype(str)
    return groups.astype(np.int64) if integers else groups


def _stored_times(stored: dict[str, Any], name: str) -> NDArray[Any] | None:
    return np.asarray(stored[name]).astype(str(stored[f"{name}_dtype"])) if name in stored else None


def model_record(model: Any, phenotypes: list[Phenotype]) -> dict[str, Any]:
    """The model of the scores: settings, figures, and the definitions H and F, which do not fit obs or var."""
    fitted = fitted_model(model)
    figures = {name.rstrip("_"): json_value(getattr(fitted, name)) for name in FIGURES}
    record = {
        "method": type(fitted).__name__,
        "fingerprint": fingerprint(fitted),
        "phenotypes": np.array([phenotype.name for phenotype in phenotypes], object),
        "settings": {name: value for name, value in settings_of(fitted).items() if value is not None},
        "figures": {name: value for name, value in figures.items() if value is not None},
        "H": np.array(fitted.H_),
    }
    if isinstance(model, Reviewed):
        decisions = [model.review.decision_record(phenotype.number) for phenotype in phenotypes]
        record["review"] = json.dumps(model.review.provenance_record())
        record["decisions"] = json.dumps(decisions)
    if model.F_ is not None:
        record["F"] = np.array(model.F_)
        record["static_names"] = names_or_numbers(model.static_names_in_, len(model.F_)).astype(object)
    return record


def stored_positions(current: Any, stored: Any, what: str) -> NDArray[np.int64]:
    """The position of each current name in the stored ones."""
    position = {str(name): row for row, name in enumerate(stored)}
    try:
        return np.array([position[str(name)] for name in current], np.int64)
    except KeyError:
        raise InputError(
            f"the AnnData has {what} without stored visits: it was joined or renamed after to_anndata."
        ) from None
