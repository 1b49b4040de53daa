"""One model of several hospitals that may not pool their records: only sums of patients travel, and the fit is exact.

`init` and `combine` are the coordinator's, `step` is a site's; docs/federated.md says what the sums can reveal.
"""

from phenotaste.federated.coordinator import Combined, combine, init
from phenotaste.federated.settings import Settings
from phenotaste.federated.site import Stepped, step
from phenotaste.federated.standing import status

__all__ = ["Combined", "Settings", "Stepped", "combine", "init", "status", "step"]
