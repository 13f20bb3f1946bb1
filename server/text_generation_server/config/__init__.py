"""Frozen, checked settings: the model's, the process group's and the server's."""

from .model import DTYPES, Dtype, ModelConfig
from .parallel import ParallelConfig

__all__ = ["DTYPES", "Dtype", "ModelConfig", "ParallelConfig"]
