"""Frozen, checked settings: the model's, the process group's and the server's."""

from .facts import DTYPES, Dtype
from .model import ModelConfig
from .parallel import ParallelConfig

__all__ = ["DTYPES", "Dtype", "ModelConfig", "ParallelConfig"]
