"""Weights of experts: from the layouts of checkpoints to a rank's shard, in the number format in which it runs."""

from .loading import load_experts
from .shard import ExpertShard, shared_experts
from .stacking import stack

__all__ = ["ExpertShard", "load_experts", "shared_experts", "stack"]
