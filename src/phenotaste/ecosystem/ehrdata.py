"""EHRData (patients × variables × time) as a cohort."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.cohort.from_tables import Table, iso_times, static_matrix
from phenotaste.errors import InputError

R_LAYER = "R_layer"  # the layer of `.R` in ehrdata before 0.0.10
INDEX = "index"
DAY = np.timedelta64(1, "D")


class Cells(NamedTuple):
    """The content of a tensor: where any variable is recorded (patients × times), and the non-zero entries."""

    recorded: NDArray[np.bool_]
    patient: NDArray[Any]
    feature: NDArray[Any]
    time: NDArray[Any]
    value: NDArray[np.float64]


def from_ehrdata(
    edata: Any,
    *,
    layer: str | None = None,
    patient: str | None = None,
    static: Sequence[str] = (),
    time: str | None = None,
    start: str | None = None,
    labels: str | None = None,
    values: Literal["given", "recorded"] = "given",
) -> Cohort:
    """Build a cohort from an EHRData of the package ehrdata: patients × variables × time.

    A visit is a patient and a time at which at least one variable is recorded. Missing values (NaN) of a visit count
    as zero, and a time at which all variables are missing is not a visit. A recorded zero is a value, so a time with
    zeros only is a visit without codes.

    Parameters
    ----------
    layer : layer to read; required only where several have three dimensions.
    patient : column of obs with the patients' ids; by default the names of obs, as text.
    static : columns of obs to use as static features, encoded as `Cohort.from_events` encodes its static table.
    time : column of tem with dates, numbers or durations (converted to days), or "index" for its index; by default
        the step, counted from 0.
    start : column of obs with the date from which `time` counts days or durations, for dated visits.
    labels : column of obs with labels, NaN where unknown.
    values : "given", or "recorded" to count 1 for each value regardless of its size, as for measurements that can be
        negative or have units of different magnitudes.

    Examples
    --------
    >>> import ehrdata, numpy as np
    >>> from phenotaste.ecosystem import from_ehrdata
    >>> values = np.array([[[1, np.nan, 3]], [[np.nan, 0, np.nan]]])  # two patients, one variable, three times
    >>> from_ehrdata(ehrdata.EHRData(R=values)).visits.toarray()
    array([[1.],
           [3.],
           [0.]])
    """
    if values not in ("given", "recorded"):
        raise InputError(f"values is {values!r}: choose 'given' or 'recorded'.")
    tensor = select_tensor(edata, layer)
    n_patients, n_features, n_times = tensor.shape
    cells = sparse_cells(tensor, values) if hasattr(tensor, "coords") else dense_cells(tensor, values)
    row_of = np.cumsum(cells.recorded.reshape(-1)) - 1  # by patient, then by time
    entries = (cells.value, (row_of[cells.patient * n_times + cells.time], cells.feature))
    offsets = np.concatenate([[0], np.cumsum(cells.recorded.sum(axis=1))])
    owners, steps = np.nonzero(cells.recorded)
    facts = Table(edata.obs, "obs")
    matrix, static_names = static_of(facts, static, n_patients)
    return Cohort(
        sp.coo_array(entries, shape=(int(offsets[-1]), n_features)).tocsr(),
        offsets,
        matrix,
        static_names=static_names,
        patient_ids=[str(name) for name in edata.obs_names] if patient is None else ids_of(facts, patient),
        visit_times=times_of(edata, owners, steps, time, start),
        feature_names=[str(name) for name in edata.var_names],
        labels=None if labels is None else labels_of(edata.obs, labels),
    )


def select_tensor(edata: Any, layer: str | None) -> Any:
    """The requested three-dimensional array; ehrdata versions store it as R, as a layer, or as X."""
    if not all(hasattr(edata, name) for name in ("obs", "var", "layers", "tem")):
        raise InputError(
            f"from_ehrdata needs an EHRData, not {type(edata).__name__}: create one with ehrdata."
        )
    arrays = {"X": edata.X, **dict(edata.layers.items())}
    if getattr(edata, "R", None) is not None:
        arrays[R_LAYER] = edata.R  # slices in time apply to R only
    found = {name: array for name, array in arrays.items() if len(getattr(array, "shape", ())) == 3}
    listed = ", ".join(found) or "none"
    if layer is None and len(found) != 1:
        which = "no layer" if not found else "more than one layer"
        raise InputError(
            f"the EHRData has {which} of patients × variables × time ({listed}): choose one with layer=."
        )
    name = next(iter(found)) if layer is None else R_LAYER if layer == "R" else layer
    if name not in found:
        raise InputError(
            f"the EHRData has no layer {layer!r} of patients × variables × time: it has {listed}."
        )
    if found[name].shape[2] != len(edata.tem):
        raise InputError(f"layer {name!r} and tem have different numbers of times: slice both, or neither.")
    return found[name]


def dense_cells(tensor: Any, values: str) -> Cells:
    array = numbers(np.asarray(tensor))
    present: NDArray[np.bool_] = ~np.isnan(array)
    k, j, t = np.nonzero(present if values == "recorded" else present & (array != 0))
    found = np.ones(len(k)) if values == "recorded" else array[k, j, t]
    return Cells(np.asarray(present.any(axis=1)), k, j, t, found)


def sparse_cells(tensor: Any, values: str) -> Cells:
    """As `dense_cells` for a `sparse.COO`, made dense only where its fill value counts."""
    missing_by_default = bool(np.isnan(numbers(np.asarray(tensor.fill_value))))
    if not missing_by_default and (tensor.fill_value != 0 or values == "recorded"):
        return dense_cells(tensor.todense(), values)
    n_patients, n_features, n_times = tensor.shape
    (k, j, t), data = tensor.coords, numbers(tensor.data)
    missing = np.isnan(data)
    known = np.full((n_patients, n_times), 0 if missing_by_default else n_features)
    if missing_by_default:
        np.add.at(known, (k[~missing], t[~missing]), 1)
    else:
        np.subtract.at(known, (k[missing], t[missing]), 1)
    kept = ~missing if values == "recorded" else ~missing & (data != 0)
    found = np.ones(int(kept.sum())) if values == "recorded" else data[kept]
    return Cells(known > 0, k[kept], j[kept], t[kept], found)


def numbers(array: NDArray[Any]) -> NDArray[np.float64]:
    try:
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        # NumPy's message quotes the value, which may be patient data.
        raise InputError(
            "the layer contains values that are not numbers: encode categories as 0 and 1, for example with ehrapy."
        ) from None


def ids_of(facts: Table, name: str) -> NDArray[Any]:
    distinct, codes = facts.codes(name)
    ids = distinct[codes]
    return ids if ids.dtype.kind in "iu" else ids.astype(str)


def static_of(
    facts: Table, names: Sequence[str], n_patients: int
) -> tuple[NDArray[Any] | None, list[str] | None]:
    if isinstance(names, str):
        raise InputError("static is a single string: give a list of columns of obs.")
    for name in names:
        facts.column(name)  # raises for an absent column, and lists the available ones
    chosen = Table(facts.source[list(names)], facts.title)
    return static_matrix(chosen, "", np.arange(n_patients)) if names else (None, None)


def labels_of(obs: Any, name: str) -> NDArray[Any]:
    if name not in obs.columns:
        raise InputError(f"obs has no column {name!r} for labels; its columns are: {', '.join(obs.columns)}.")
    return np.asarray(obs[name])


def times_of(
    edata: Any, patients: NDArray[Any], steps: NDArray[Any], time: str | None, start: str | None
) -> NDArray[Any]:
    """The time of each visit: a column of tem or the step, relative to the patient's start where one is given."""
    steps_alone: NDArray[Any] = np.arange(len(edata.tem))
    moments = steps_alone if time is None else moments_of(edata.tem, time)
    if start is None:
        found = moments / DAY if moments.dtype.kind == "m" else moments
        return found[steps]
    begun = Table(edata.obs, "obs").times(start)
    if begun.dtype.kind != "M" or moments.dtype.kind == "M":
        raise InputError(
            "start must be a column of obs with dates, and time one of tem with days or durations since then."
        )
    if moments.dtype.kind != "m":
        moments = np.round(moments * (DAY / np.timedelta64(1, "us"))).astype("m8[us]")
    return begun[patients] + moments[steps]


def moments_of(tem: Any, name: str) -> NDArray[Any]:
    """A column of tem, or its index, which ehrdata converts to text."""
    if name not in tem.columns and name != INDEX:
        listed = ", ".join(map(str, [*tem.columns, INDEX]))
        raise InputError(f"tem has no column {name!r}; choose one of: {listed}.")
    moments = np.asarray(tem[name] if name in tem.columns else tem.index)
    if moments.dtype.kind in "OTU":
        moments = read_texts([str(text) for text in moments])
    if moments.dtype.kind not in "iufmM":
        raise InputError(f"{name!r} of tem must hold numbers, durations or dates; convert it first.")
    return moments


def read_texts(texts: list[str]) -> NDArray[Any]:
    """Parse texts as numbers or ISO dates, if all of them are."""
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        dates = iso_times(np.array(texts))
        return np.array(texts) if dates is None else dates
