"""SHA-256 of the factors of ten fits, recorded before the renaming: no bit may change."""

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from helpers.clusters import local_cluster
from phenotaste import TASTE, baselines, simulate

RECORDED = Path(__file__).with_name("same_bits.json")
DATA = {
    "long": lambda: simulate.ehr(300, n_features=60, n_static=12, mean_visits=40, rank=8, random_state=3)[0],
    "short": lambda: simulate.ehr(400, n_features=50, n_static=10, mean_visits=6, rank=5, random_state=4)[0],
}


def disk(folder):
    from phenotaste.engines import DiskEngine

    return DiskEngine(folder, memory="4GB")


def fit(name, folder):
    common = {"random_state": 0, "max_iter": 15, "tol": 0}
    if name == "rank3":
        return "long", TASTE(3, **common)
    if name == "rank10":
        return "long", TASTE(10, n_init=2, **common)
    if name == "rank20":
        return "short", TASTE(20, **common)
    if name == "rank40":
        return "long", TASTE(40, **common)
    if name == "disk10":
        return "short", TASTE(10, n_init=2, engine=disk(folder / "disk"), **common)
    if name == "disk40":
        return "long", TASTE(40, engine=disk(folder / "disk"), **common)
    if name == "float32":
        return "long", TASTE(20, dtype="float32", **common)
    if name == "paper":
        return "short", TASTE(5, weights="absolute", normalize=False, solver="bpp", init="uniform", **common)
    if name == "bpp":
        return "long", TASTE(12, solver="bpp", **common)
    if name == "cohen":
        return "long", baselines.CohenPlus(8, algorithm="core", **common)
    raise ValueError(name)


NAMES = ("rank3", "rank10", "rank20", "rank40", "disk10", "disk40", "float32", "paper", "bpp", "cohen")


def digest(array):
    array = np.ascontiguousarray(array)
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()


def digests(model, cohort):
    found = {letter: digest(getattr(model, f"{letter}_")) for letter in "VHFWU"}
    found |= {"loss": digest(model.loss_curve_), "projected": digest(model.transform(cohort[:20]))}
    return found | {"rmse": f"{model.rmse_:.12g}", "cpi": f"{model.cpi_:.12g}"}


def run(name, folder):
    data, model = fit(name, folder)
    cohort = DATA[data]()
    model.fit(cohort)
    found = digests(model, cohort)
    model.engine = None
    model.save(folder / "model", include_patients=True)
    assert digests(type(model).load(folder / "model"), cohort) == found
    return found


def run_dask(folder):
    from phenotaste.engines.dask import DaskEngine

    cohort = DATA["long"]()
    with local_cluster(2) as cluster:
        model = TASTE(10, random_state=0, max_iter=15, tol=0, engine=DaskEngine(cluster)).fit(cohort)
    model.engine = None
    return digests(model, cohort)


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_are_those_recorded(name, tmp_path):
    assert run(name, tmp_path) == json.loads(RECORDED.read_text())[name]


def test_the_bits_of_dask_are_those_recorded(tmp_path):
    assert run_dask(tmp_path) == json.loads(RECORDED.read_text())["dask10"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for name in NAMES:
            (Path(folder) / name).mkdir()
            found[name] = run(name, Path(folder) / name)
        found["dask10"] = run_dask(Path(folder))
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")
