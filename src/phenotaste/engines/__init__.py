"""Where the patient step runs: threads, files larger than memory, a Dask cluster, a GPU."""

from phenotaste.engines.base import Engine, EngineSession
from phenotaste.engines.checkpoint import Checkpoint
from phenotaste.engines.cuda import CudaEngine
from phenotaste.engines.dask import DaskEngine
from phenotaste.engines.disk import DiskEngine
from phenotaste.engines.threads import ThreadEngine

__all__ = ["Checkpoint", "CudaEngine", "DaskEngine", "DiskEngine", "Engine", "EngineSession", "ThreadEngine"]
