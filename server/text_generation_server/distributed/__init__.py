"""Tensor-parallel group: rendezvous of the ranks of one model, and their collectives."""

from .group import TensorParallelGroup, init_group
from .pending import PendingAllReduce

__all__ = ["PendingAllReduce", "TensorParallelGroup", "init_group"]
