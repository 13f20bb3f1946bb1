"""The tensor-parallel group: how the ranks of one model find each other and combine tensors."""

from .group import TensorParallelGroup, init_group

__all__ = ["TensorParallelGroup", "init_group"]
