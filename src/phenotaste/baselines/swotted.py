"""SWoTTeD: phenotypes that extend over several visits (Sebia, Guyet & Audureau 2024), run in an environment of its own.

H. Sebia, T. Guyet, E. Audureau: "SWoTTeD: an extension of tensor decomposition to temporal phenotyping", Machine
Learning 2024. The engine is the authors' package swotted, which is not imported here: its dependencies (lightning,
jupyter, fastapi) would be those of this package.
"""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from phenotaste.baselines._pooled import Found, Pooled, Visits
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.validation import check_number

VARIABLE = "PHENOTASTE_SWOTTED"
PROGRAM = Path(__file__).with_name("_swotted_process.py")


def interpreter() -> str | None:
    """The Python interpreter with swotted that the environment names; None if it names no program."""
    given = os.environ.get(VARIABLE, "")
    return given if given and os.access(given, os.X_OK) and Path(given).is_file() else None


class SWoTTeD(Pooled):
    """Phenotypes of several consecutive visits that slide over the history (Sebia, Guyet & Audureau 2024).

    A visit is reconstructed from the phenotypes that begin at it or shortly before, under a Bernoulli loss: values are
    read as present or absent. The package swotted runs in the interpreter that the variable PHENOTASTE_SWOTTED
    names (`python -m venv S && S/bin/pip install swotted`, then PHENOTASTE_SWOTTED=S/bin/python). Patients go there and
    back in a folder that only the user can read.

    Parameters
    ----------
    rank : number of phenotypes.
    window : number of visits of a phenotype; shorter histories are followed by empty visits.
    sparsity, non_succession : weights of the penalties on large definitions and on a phenotype that repeats itself.
    max_iter, learning_rate : passes over the patients, of the fit and for the scores, and the step size of Adam.
    time_limit : seconds after which a fit or a scoring is refused.
    random_state : an integer for a reproducible start.

    Attributes
    ----------
    windows_ : definitions, phenotypes × features × visits of the window.
    V_, W_ : their sums over the window with unit columns, and scores, the activity summed over the visits, as found in
        the fit; F_ is None.
    loss_curve_ : the final Bernoulli loss.

    Examples
    --------
    >>> from phenotaste import baselines
    >>> baselines.SWoTTeD(rank=3, window=2).window
    2
    """

    _arrays: ClassVar[tuple[str, ...]] = ("windows_",)
    _counts: ClassVar[tuple[str, ...]] = ("rank", "window", "max_iter")
    _amounts: ClassVar[tuple[str, ...]] = ("sparsity", "non_succession", "learning_rate")
    n_init = 1

    windows_: Array

    def __init__(
        self,
        rank: int = 5,
        *,
        window: int = 3,
        sparsity: float = 0.5,
        non_succession: float = 0.5,
        max_iter: int = 300,
        learning_rate: float = 0.01,
        time_limit: float = 3600.0,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.window = window
        self.sparsity = sparsity
        self.non_succession = non_succession
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.time_limit = time_limit
        self.random_state = random_state

    def _check_settings(self) -> None:
        super()._check_settings()
        check_number("time_limit", self.time_limit, closed="neither")

    def _find(self, visits: Visits, rng: np.random.Generator) -> Found:
        answer = self._run(visits, {"seed": rng.integers(2**31)})
        windows = self._answered(answer, "windows", (self.rank, visits.X.shape[1], self.window))
        totals = self._answered(answer, "totals", (len(visits.offsets) - 1, self.rank))
        loss = float(self._answered(answer, "loss", ()))
        sums = windows.sum(axis=2).T
        norms = np.linalg.norm(sums, axis=0)
        V = sums / np.where(norms > 0, norms, 1.0)
        more = {"windows_": windows}
        return Found(V, totals * norms, [loss], Outcome.MAX_ITER, more, self.max_iter)

    def _scores(self, visits: Visits) -> Array:
        return self._totals(visits, self.windows_) * np.linalg.norm(self.windows_.sum(axis=2), axis=1)

    def _totals(self, visits: Visits, windows: Array) -> Array:
        """The activity of each phenotype, summed over the visits; zeros without a history."""
        known = np.add.reduceat(np.append(np.diff(visits.X.indptr), 0), visits.offsets[:-1]) > 0
        known &= np.diff(visits.offsets) > 0
        rows = np.repeat(known, np.diff(visits.offsets))
        offsets = np.concatenate([[0], np.cumsum(np.diff(visits.offsets)[known])])
        totals = np.zeros((len(known), self.rank))
        if known.any():
            answer = self._run(Visits(visits.X[rows], offsets), {"windows": windows})
            totals[known] = self._answered(answer, "totals", (int(known.sum()), self.rank))
        return totals

    def _run(self, visits: Visits, more: dict[str, Any]) -> dict[str, Array]:
        """The arrays that swotted returns for these patients."""
        python = interpreter()
        if python is None:
            raise InputError(
                f"SWoTTeD runs in an environment of its own: install swotted there, and set {VARIABLE} to its python."
            )
        settings = ("rank", "window", "sparsity", "non_succession", "learning_rate")
        X = visits.X.copy()
        X.eliminate_zeros()
        request = {name: getattr(self, name) for name in settings} | more
        request |= {"epochs": self.max_iter, "n_features": X.shape[1], "offsets": visits.offsets}
        request |= {"indices": X.indices, "indptr": X.indptr}
        with tempfile.TemporaryDirectory(prefix="phenotaste-swotted-") as folder:
            asked, answered = Path(folder, "request.npz"), Path(folder, "response.npz")
            np.savez(asked, **request)
            command = [python, "-I", str(PROGRAM), str(asked), str(answered)]
            try:
                done = subprocess.run(
                    command, capture_output=True, timeout=self.time_limit, check=False, cwd=folder
                )
            except subprocess.TimeoutExpired:
                raise InputError(
                    f"SWoTTeD took more than {self.time_limit:g} seconds: raise time_limit, or lower max_iter."
                ) from None
            try:
                with np.load(answered, allow_pickle=False) as arrays:
                    return {name: arrays[name] for name in arrays.files}
            except (OSError, ValueError, EOFError):
                lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
                reason = (
                    lines[-1] if lines[-1].startswith("ModuleNotFoundError") else lines[-1].partition(":")[0]
                )
                raise InputError(
                    f"SWoTTeD failed in {python} ({reason}): check that swotted can be imported there."
                ) from None

    def _answered(self, answer: dict[str, Array], name: str, shape: tuple[int, ...]) -> Array:
        array = answer.get(name)
        if array is None or array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise InputError("SWoTTeD returned something else than finite factors: lower learning_rate.")
        return array

    def _without_data(self, n_features: int) -> Found:
        more = {"windows_": np.full((self.rank, n_features, self.window), 1.0 / n_features)}
        return super()._without_data(n_features)._replace(more=more)

    def _check_fitted(self) -> None:
        super()._check_fitted()
        expected = (self.rank, self.n_features_in_, self.window)
        if self.windows_.shape != expected or not np.isfinite(self.windows_).all():
            raise ValueError("windows")
