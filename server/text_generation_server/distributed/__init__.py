"""The tensor-parallel group: how the ranks of one model find each other and combine tensors."""

from .group import TensorParallelGroup, init_group
from .pending import PendingAllReduce

__all__ = ["PendingAllReduce", "TensorParallelGroup", "init_group"]
