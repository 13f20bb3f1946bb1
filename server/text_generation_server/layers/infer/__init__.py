"""What layers compute, in terms of operators and weights."""

from .post import PostLayer
from .pre import PreLayer
from .state import InferState
from .transformer import LayerSettings, TransformerLayer

__all__ = ["InferState", "LayerSettings", "PostLayer", "PreLayer", "TransformerLayer"]
