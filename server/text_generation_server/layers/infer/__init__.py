"""What layers compute, in terms of operators and weights."""

from .post import PostLayer
from .pre import PreLayer
from .state import Chunks, Decodes, InferState
from .transformer import LayerSettings, TransformerLayer

__all__ = ["Chunks", "Decodes", "InferState", "LayerSettings", "PostLayer", "PreLayer", "TransformerLayer"]
