"""Weights of layers, and how the ranks of a group share them."""

from .activations import Activations, ActivationScheme, RmsNorm
from .adapted import AdaptedLinear, CurrentAdapters, SitePages, StepAdapters, Wrap, wrapped
from .attention import AttentionWeights, load_attention
from .blocks import RowBlock
from .checkpoint import Checkpoint, Matrices, NormWeights
from .copies import PrefillCopies
from .ends import EmbeddingWeights, load_embedding, load_head, load_quantised_head, rounded
from .experts import shared_experts, stack
from .feed_forward import DenseWeights, load_dense
from .gated_delta import GatedDeltaWeights, load_gated_delta
from .kv_scales import load_kv_scales
from .latent_attention import LatentAttentionWeights, load_latent_attention
from .linear import Dense, Linear, Split, activate, activated, each_alone, in_blocks
from .loading import column_parallel, row_parallel, stacked_rows
from .low_rank import LowRankPages, low_rank_pages, unplaced
from .mamba import Mamba2Weights, MambaWeights, load_mamba, load_mamba2
from .moe import MoeWeights, load_moe
from .per_layer import LayerInputWeights, PerLayerWeights, load_layer_input, load_per_layer
from .readers import Codes, QuantisedReader, reader_of
from .short_conv import ShortConvWeights, load_short_conv
from .sites import Site
from .split import HeadSplit, VocabularyShard, even_span, padded_rows, vocabulary_shard
from .streams import StreamEndWeights, StreamWeights, load_stream_end, load_streams
from .w8a8 import W8A8Linear

__all__ = [
    "ActivationScheme",
    "Activations",
    "AdaptedLinear",
    "AttentionWeights",
    "Checkpoint",
    "Codes",
    "CurrentAdapters",
    "Dense",
    "DenseWeights",
    "EmbeddingWeights",
    "GatedDeltaWeights",
    "HeadSplit",
    "LatentAttentionWeights",
    "LayerInputWeights",
    "Linear",
    "LowRankPages",
    "Mamba2Weights",
    "MambaWeights",
    "Matrices",
    "MoeWeights",
    "NormWeights",
    "PerLayerWeights",
    "PrefillCopies",
    "QuantisedReader",
    "RmsNorm",
    "RowBlock",
    "ShortConvWeights",
    "Site",
    "SitePages",
    "Split",
    "StepAdapters",
    "StreamEndWeights",
    "StreamWeights",
    "VocabularyShard",
    "W8A8Linear",
    "Wrap",
    "activate",
    "activated",
    "column_parallel",
    "each_alone",
    "even_span",
    "in_blocks",
    "load_attention",
    "load_dense",
    "load_embedding",
    "load_gated_delta",
    "load_head",
    "load_kv_scales",
    "load_latent_attention",
    "load_layer_input",
    "load_mamba",
    "load_mamba2",
    "load_moe",
    "load_per_layer",
    "load_quantised_head",
    "load_short_conv",
    "load_stream_end",
    "load_streams",
    "low_rank_pages",
    "padded_rows",
    "reader_of",
    "rounded",
    "row_parallel",
    "shared_experts",
    "stack",
    "stacked_rows",
    "unplaced",
    "vocabulary_shard",
    "wrapped",
]
