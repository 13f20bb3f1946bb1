"""Weights of experts: from the layouts in which checkpoints have them to a rank's part, as it runs."""

from .loading import load_experts
from .part import ExpertPart, shared_experts
from .stacking import stack

__all__ = ["ExpertPart", "load_experts", "shared_experts", "stack"]
