"""What layers compute, in terms of operators and weights."""

from .addend import Addend, Destination
from .attention import Attention
from .embedding import Embedding
from .feed_forward import DenseFeedForward, FeedForward
from .gated_delta import GatedDelta
from .head import Head
from .latent_attention import LatentAttention
from .mamba import Mamba
from .mamba2 import Mamba2
from .mixer import Mixer
from .moe import MoeFeedForward
from .norm import Junction, Norm
from .parts import Parts
from .short_conv import ShortConv
from .state import CacheShape, Chunks, Decodes, InferState, LayerCache, LayerState, StateShape
from .transformer import FeedForwardLayer, Layer, MixerLayer, ParallelLayer, Sums, TransformerLayer

__all__ = [
    "Addend",
    "Attention",
    "CacheShape",
    "Chunks",
    "Decodes",
    "DenseFeedForward",
    "Destination",
    "Embedding",
    "FeedForward",
    "FeedForwardLayer",
    "GatedDelta",
    "Head",
    "InferState",
    "Junction",
    "LatentAttention",
    "Layer",
    "LayerCache",
    "LayerState",
    "Mamba",
    "Mamba2",
    "Mixer",
    "MixerLayer",
    "MoeFeedForward",
    "Norm",
    "ParallelLayer",
    "Parts",
    "ShortConv",
    "StateShape",
    "Sums",
    "TransformerLayer",
]
