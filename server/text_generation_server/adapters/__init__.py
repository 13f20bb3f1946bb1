"""LoRA adapters of PEFT: strict reading, and what they do to the tensors of a model."""

from .base import BaseModel, ModelTensors
from .delta import Change, Delta, EmbeddingDelta, ExpertDeltas, Replaced, TokenRows, highest_rank
from .merge import MergedSource, untied_aliases
from .read import Adapter, read_adapter

__all__ = [
    "Adapter",
    "BaseModel",
    "Change",
    "Delta",
    "EmbeddingDelta",
    "ExpertDeltas",
    "MergedSource",
    "ModelTensors",
    "Replaced",
    "TokenRows",
    "highest_rank",
    "read_adapter",
    "untied_aliases",
]
