"""Who runs the patient step: threads here, files larger than memory, other machines."""

from typing import Any, Protocol

from phenotaste.core.loop import Engine
from phenotaste.core.records import Weights


class Opener(Protocol):
    """What `TASTE(engine=...)` takes: it opens an engine over a cohort, for one fit or one projection.

    Its settings are about where the work is done, never about what is found: every engine finds the same bits.
    """

    def open(
        self,
        cohort: Any,  # the Cohort, with names and all
        aligned: Any,  # its arrays in the order of the model's columns (align.Aligned)
        weights: Weights,
        rank: int,
        *,
        exact: bool,
        dtype: str,
        n_jobs: int | None,
    ) -> Engine: ...
