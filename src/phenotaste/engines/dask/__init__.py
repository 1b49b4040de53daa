"""The patient step on a Dask cluster."""

from phenotaste.engines.dask.engine import DaskEngine

__all__ = ["DaskEngine"]
