"""Folders of tensors whose contents show which save they come from."""

import json
import os
from pathlib import Path

import numpy as np

from phenotaste.storage import tensors

PATIENT = "patient-4711"


def state(number, size=1000):
    """Contents that differ for every number, so that a mixture of two saves is detected."""
    files = {"model": {"V": np.full(size, number), "names": np.array([PATIENT, str(number)])}}
    if number % 2:
        files["patients"] = {"W": np.full((size, 2), number / 2)}
    return files, {"number": number}


def save(path, number, **options):
    files, meta = state(number, **options)
    tensors.write(path, "model", files, meta)


def number_in(path):
    """The number of the state in a folder, after checking all of its contents."""
    arrays, meta = tensors.read(path, "model")
    files, expected = state(meta["number"], size=len(arrays["model"]["V"]))
    assert meta == expected
    assert arrays.keys() == files.keys()
    for stem in files:
        for name, array in files[stem].items():
            np.testing.assert_array_equal(arrays[stem][name], array)
    return meta["number"]


def manifest_of(path):
    return json.loads((Path(path) / "manifest.json").read_text())


def names_in(path):
    return set(os.listdir(path))


def tidy(path):
    """Whether the folder holds only the manifest and the files it lists, and no draft is left next to it."""
    listed = {entry["name"] for entry in manifest_of(path)["files"].values()}
    drafts = [name for name in os.listdir(Path(path).parent) if name.endswith(".partial")]
    return names_in(path) == listed | {"manifest.json"} and not drafts
