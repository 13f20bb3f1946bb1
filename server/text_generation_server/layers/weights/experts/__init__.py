"""Weights of experts: from the layouts in which checkpoints have them to a rank's part, as it runs."""

from .loading import load_experts
from .shard import ExpertShard, shared_experts

__all__ = ["ExpertShard", "load_experts", "shared_experts"]
