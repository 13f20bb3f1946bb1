"""The tensor-parallel group: how the ranks of one model find each other and combine tensors."""

from .group import TensorParallelGroup, init_group
from .under_way import SumUnderWay

__all__ = ["SumUnderWay", "TensorParallelGroup", "init_group"]
