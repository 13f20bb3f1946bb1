"""What layers compute, in terms of operators and weights."""

from .altup import AltUp, AltUpEnd, AltUpLayer
from .attention import Attention
from .block_sparse import BlockSparseAttention
from .compressed_attention import CompressedAttention
from .context_parallel import ContextParallel
from .embedding import Embedding
from .expert_load import ExpertLoad
from .feed_forward import DenseFeedForward, FeedForward, ScaledFeedForward, SparseFeedForward
from .fusion import OutputFusion, SublayerOutput
from .gated_delta import GatedDelta
from .gated_lru import GatedLru
from .head import Head
from .hyper_connections import HyperConnectedLayer, HyperConnection, HyperEnd, WeightedHyperEnd
from .indexer import Indexer
from .kimi_delta import KimiDelta
from .latent_attention import LatentAttention
from .layer_state import LayerState, StateShape
from .lightning import Lightning
from .mamba import Mamba
from .mamba2 import Mamba2
from .media import MediaInput
from .mixer import Mixer, RecurrentMixer
from .mixer_pair import MixerPair
from .moe import MoeFeedForward, expert_mlps, route_options
from .norm import AddNorm, Norm
from .overlapped_halves import OverlappedHalves
from .per_layer import LayerInput, PerLayerInputs
from .pooled_indexer import PooledIndexer
from .rotation import new_tokens
from .scaled_layer import ExpertsBeside, ScaledLayer
from .shared_block import BlockCall, CallingLayer
from .short_conv import ShortConv
from .shortcut import ShortcutEnd, ShortcutStart
from .state import CacheShape, InferState, SharedChunks
from .state_windows import Recurrence, StateWindows, accepted_runs
from .streams import StreamEnd, StreamEnds
from .taps import Taps, add_norm
from .token_ids import keep_token_ids
from .transformer import FeedForwardLayer, Layer, MixerLayer, OutputFusions, ParallelLayer, SkipLayer, TransformerLayer

__all__ = [
    "AddNorm",
    "AltUp",
    "AltUpEnd",
    "AltUpLayer",
    "Attention",
    "BlockCall",
    "BlockSparseAttention",
    "CacheShape",
    "CallingLayer",
    "CompressedAttention",
    "ContextParallel",
    "DenseFeedForward",
    "Embedding",
    "ExpertLoad",
    "ExpertsBeside",
    "FeedForward",
    "FeedForwardLayer",
    "GatedDelta",
    "GatedLru",
    "Head",
    "HyperConnectedLayer",
    "HyperConnection",
    "HyperEnd",
    "Indexer",
    "InferState",
    "KimiDelta",
    "LatentAttention",
    "Layer",
    "LayerInput",
    "LayerState",
    "Lightning",
    "Mamba",
    "Mamba2",
    "MediaInput",
    "Mixer",
    "MixerLayer",
    "MixerPair",
    "MoeFeedForward",
    "Norm",
    "OutputFusion",
    "OutputFusions",
    "OverlappedHalves",
    "ParallelLayer",
    "PerLayerInputs",
    "PooledIndexer",
    "Recurrence",
    "RecurrentMixer",
    "ScaledFeedForward",
    "ScaledLayer",
    "SharedChunks",
    "ShortConv",
    "ShortcutEnd",
    "ShortcutStart",
    "SkipLayer",
    "SparseFeedForward",
    "StateShape",
    "StateWindows",
    "StreamEnd",
    "StreamEnds",
    "SublayerOutput",
    "Taps",
    "TransformerLayer",
    "WeightedHyperEnd",
    "accepted_runs",
    "add_norm",
    "expert_mlps",
    "keep_token_ids",
    "new_tokens",
    "route_options",
]
