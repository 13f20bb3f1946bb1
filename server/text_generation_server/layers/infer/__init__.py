"""What layers compute, in terms of operators and weights."""

from .addend import Addend
from .attention import Attention
from .embedding import Embedding
from .feed_forward import DenseFeedForward, FeedForward
from .head import Head
from .latent_attention import LatentAttention
from .moe import MoeFeedForward
from .norm import Junction, Norm
from .parts import Parts
from .state import CacheShape, Chunks, Decodes, InferState, LayerCache
from .transformer import ParallelLayer, TransformerLayer

__all__ = [
    "Addend",
    "Attention",
    "CacheShape",
    "Chunks",
    "Decodes",
    "DenseFeedForward",
    "Embedding",
    "FeedForward",
    "Head",
    "InferState",
    "Junction",
    "LatentAttention",
    "LayerCache",
    "MoeFeedForward",
    "Norm",
    "ParallelLayer",
    "Parts",
    "TransformerLayer",
]
