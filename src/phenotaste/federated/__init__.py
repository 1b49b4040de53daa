"""One model of several hospitals that may not pool their records: they send only sums, and the fit is exact.

`init` and `combine` run at the coordinator, `step` at a site; docs/federated.md says what the sums can reveal.
"""

from phenotaste.federated.coordinator import CombineReport, combine, init, status
from phenotaste.federated.settings import Settings
from phenotaste.federated.site import StepReport, step

__all__ = ["CombineReport", "Settings", "StepReport", "combine", "init", "status", "step"]
