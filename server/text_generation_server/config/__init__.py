"""Frozen, checked settings: the model's, the process group's and the server's."""

from .model import DTYPES, Activation, Dtype, ModelConfig, RopeScaling, RopeType
from .parallel import ParallelConfig

__all__ = ["DTYPES", "Activation", "Dtype", "ModelConfig", "ParallelConfig", "RopeScaling", "RopeType"]
