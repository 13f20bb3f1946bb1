"""The spec of a decoder, as data. The builder makes layers from it, which know no family.

A family (`families/`) turns a `config.json` into a `DecoderSpec`. Counts are those of the whole model, not of a rank.
"""

from .attention import AttentionSpec, BlockIndexerSpec, IndexerSpec, LatentAttentionSpec, QkvLayout
from .compressed import CompressedAttentionSpec, EntryIndexerSpec
from .decoder import DecoderSpec, EmbeddingSpec, HeadSpec, PerLayerSpec
from .feed_forward import Activation, DenseSpec, FeedForwardSpec, GatedActivation, MoeSpec, RouteSpec
from .layer import LayerSpec, MixerSpec, SharedBlockSpec, SkipSpec
from .norms import NormSpec, QkNormSpec

__all__ = [
    "Activation",
    "AttentionSpec",
    "BlockIndexerSpec",
    "CompressedAttentionSpec",
    "DecoderSpec",
    "DenseSpec",
    "EmbeddingSpec",
    "EntryIndexerSpec",
    "FeedForwardSpec",
    "GatedActivation",
    "HeadSpec",
    "IndexerSpec",
    "LatentAttentionSpec",
    "LayerSpec",
    "MixerSpec",
    "MoeSpec",
    "NormSpec",
    "PerLayerSpec",
    "QkNormSpec",
    "QkvLayout",
    "RouteSpec",
    "SharedBlockSpec",
    "SkipSpec",
]
