"""Weights of layers, and how the ranks of a group share them."""

from .activations import Activations, ActivationScheme, RmsNorm
from .adapted import AdaptedLinear, Adapting, SitePages, wrapped
from .adapted_dense import AdaptedDense
from .adapted_embedding import AdaptedEmbedding, EmbeddingChange
from .adapted_experts import ExpertChange, ExpertSite, ExpertTables
from .adapted_norm import NewNorm, ReplacedNorm
from .adapter_memory import AdapterMemory, AdapterRoom, HostFactors, HostSite
from .altup import AltUpEndWeights, AltUpWeights, load_altup, load_altup_end
from .attention import AttentionWeights, load_attention
from .blocks import RowBlock
from .checkpoint import Checkpoint, Matrices, NormWeights
from .compressed_attention import CompressedAttentionWeights, EntryWeights, load_compressed_attention
from .copies import PrefillCopies
from .current_adapters import CurrentAdapters, Room, StepAdapters
from .ends import EmbeddingWeights, load_class_head, load_embedding, load_head, load_quantised_head, rounded
from .experts import ExpertShard, shared_experts, stack
from .feed_forward import DenseWeights, load_dense
from .gated_delta import GatedDeltaWeights, load_gated_delta
from .gated_lru import GatedLruWeights, load_gated_lru
from .hyper_connections import HyperConnectionWeights, HyperEndWeights, load_hyper_connection, load_hyper_end
from .image_low_rank import ImageMatrices, ImageTokens
from .indexer import IndexerWeights, load_indexer
from .kimi_delta import KimiDeltaWeights, load_kimi_delta
from .kv_scales import load_kv_scales
from .latent_attention import LatentAttentionWeights, load_latent_attention
from .lightning import LightningWeights, load_lightning
from .linear import Dense, Linear, Split, activate, activated, each_alone, in_blocks
from .loading import column_parallel, row_parallel, stacked_rows
from .low_rank import LowRankPages, changed_of, low_rank_pages
from .mamba import Mamba2Weights, MambaWeights, load_mamba, load_mamba2
from .moe import MoeWeights, load_moe
from .per_layer import LayerInputWeights, PerLayerWeights, load_layer_input, load_per_layer
from .readers import Codes, QuantisedReader, reader_of
from .replaced_rows import NewRows, ReplacedHead, rows_change
from .shared_block import CallLinear, CallWeights, SharedBlockWeights, as_called, load_call, load_shared_block
from .short_conv import ShortConvWeights, load_short_conv
from .sites import Site
from .split import HeadSplit, VocabularyShard, even_span, padded_rows, vocabulary_shard
from .w8a8 import W8A8Linear

__all__ = [
    "ActivationScheme",
    "Activations",
    "AdaptedDense",
    "AdaptedEmbedding",
    "AdaptedLinear",
    "AdapterMemory",
    "AdapterRoom",
    "Adapting",
    "AltUpEndWeights",
    "AltUpWeights",
    "AttentionWeights",
    "CallLinear",
    "CallWeights",
    "Checkpoint",
    "Codes",
    "CompressedAttentionWeights",
    "CurrentAdapters",
    "Dense",
    "DenseWeights",
    "EmbeddingChange",
    "EmbeddingWeights",
    "EntryWeights",
    "ExpertChange",
    "ExpertShard",
    "ExpertSite",
    "ExpertTables",
    "GatedDeltaWeights",
    "GatedLruWeights",
    "HeadSplit",
    "HostFactors",
    "HostSite",
    "HyperConnectionWeights",
    "HyperEndWeights",
    "ImageMatrices",
    "ImageTokens",
    "IndexerWeights",
    "KimiDeltaWeights",
    "LatentAttentionWeights",
    "LayerInputWeights",
    "LightningWeights",
    "Linear",
    "LowRankPages",
    "Mamba2Weights",
    "MambaWeights",
    "Matrices",
    "MoeWeights",
    "NewNorm",
    "NewRows",
    "NormWeights",
    "PerLayerWeights",
    "PrefillCopies",
    "QuantisedReader",
    "ReplacedHead",
    "ReplacedNorm",
    "RmsNorm",
    "Room",
    "RowBlock",
    "SharedBlockWeights",
    "ShortConvWeights",
    "Site",
    "SitePages",
    "Split",
    "StepAdapters",
    "VocabularyShard",
    "W8A8Linear",
    "activate",
    "activated",
    "as_called",
    "changed_of",
    "column_parallel",
    "each_alone",
    "even_span",
    "in_blocks",
    "load_altup",
    "load_altup_end",
    "load_attention",
    "load_call",
    "load_class_head",
    "load_compressed_attention",
    "load_dense",
    "load_embedding",
    "load_gated_delta",
    "load_gated_lru",
    "load_head",
    "load_hyper_connection",
    "load_hyper_end",
    "load_indexer",
    "load_kimi_delta",
    "load_kv_scales",
    "load_latent_attention",
    "load_layer_input",
    "load_lightning",
    "load_mamba",
    "load_mamba2",
    "load_moe",
    "load_per_layer",
    "load_quantised_head",
    "load_shared_block",
    "load_short_conv",
    "low_rank_pages",
    "padded_rows",
    "reader_of",
    "rounded",
    "row_parallel",
    "rows_change",
    "shared_experts",
    "stack",
    "stacked_rows",
    "vocabulary_shard",
    "wrapped",
]
