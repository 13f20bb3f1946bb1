"""Builds the mixers of a decoder's layers: attention of every kind, and recurrent ones."""

from collections.abc import Callable
from dataclasses import replace

import torch

from text_generation_kernels import KV_CODES

from ..config.kv_cache import QuantisedKvCache
from ..config.recurrent import RecurrentSpec
from ..config.rotary import QueryGrowth, RopeSpec
from ..config.shards import check_heads
from ..config.spec import (
    AttentionSpec,
    BlockIndexerSpec,
    CompressedAttentionSpec,
    IndexerSpec,
    LatentAttentionSpec,
    MixerSpec,
)
from ..layers.infer import (
    Attention,
    BlockSparseAttention,
    CacheShape,
    CompressedAttention,
    ContextParallel,
    Indexer,
    LatentAttention,
    Mixer,
    PooledIndexer,
    RecurrentMixer,
)
from ..layers.rope import RopeTable
from ..layers.weights import (
    AttentionWeights,
    Checkpoint,
    HeadSplit,
    load_attention,
    load_compressed_attention,
    load_indexer,
    load_kv_scales,
    load_latent_attention,
)
from .recurrent import recurrent_mixer


class MixerBuilder:
    """Reads this rank's shard of mixers, in the order of the layers. It is for one use, as `DecoderBuilder` is."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        calibrated: str | None,
        kv_cache: QuantisedKvCache | None,
        device: torch.device,
        note: Callable[[int | None, object, object], None],
    ) -> None:
        """`calibrated` is the type for which the checkpoint has scales of keys and values, where it names one;
        `kv_cache` that of a quantised KV cache, None: the model's. `note` gets the layer, spec and weights of each.
        """
        self._checkpoint = checkpoint
        self._calibrated = calibrated
        self._kv_cache: QuantisedKvCache | None = kv_cache
        self._device = device
        self._note = note
        self._tables: dict[tuple[RopeSpec | None, int, QueryGrowth | None], RopeTable] = {}
        self._cache_of: dict[int, int] = {}
        self.caches: list[CacheShape] = []
        """Those of all mixers so far."""
        self.recurrent: list[RecurrentMixer] = []
        """The recurrent mixers so far."""
        self.parallel: ContextParallel | None = None
        """Where ranks have some positions of latent attention each."""

    @property
    def ropes(self) -> tuple[RopeTable, ...]:
        """The tables of all mixers so far."""
        return tuple(self._tables.values())

    def build(self, index: int, spec: MixerSpec) -> Mixer:
        """Builds the mixer of a layer, and notes its cache or state."""
        if isinstance(spec, RecurrentSpec):
            recurrent = self._recurrent_mixer(index, spec)
            self.recurrent.append(recurrent)
            return recurrent
        if isinstance(spec, CompressedAttentionSpec):
            return self._compressed_attention(index, spec)
        is_latent = isinstance(spec, LatentAttentionSpec)
        attention = self._latent_attention(index, spec) if is_latent else self._attention(index, spec)
        if is_latent or spec.reads_layer is None:
            self._cache_of[index] = len(self.caches)
            self.caches.append(attention.cache)
        return attention

    def _attention(self, index: int, spec: AttentionSpec) -> Attention:
        heads = HeadSplit.of(spec.num_heads, spec.num_kv_heads, self._checkpoint.group)
        weights = load_attention(self._checkpoint, index, spec, heads)
        self._note(index, spec, weights)
        return self.attention_of(self._checkpoint, index, spec, weights, heads)

    def attention_of(
        self, checkpoint: Checkpoint, index: int, spec: AttentionSpec, weights: AttentionWeights, heads: HeadSplit
    ) -> Attention:
        """Builds attention with these weights, which `checkpoint` has in layer `index`."""
        group, rope = checkpoint.group, self._rope(spec.rope, spec.head_dim, spec.query_growth)
        place = len(self.caches) if spec.reads_layer is None else self._cache_of[spec.reads_layer]
        if spec.indexer is not None:
            index_rope = self._index_rope(spec, spec.indexer)
            made = BlockSparseAttention(place, spec, weights, heads, rope, group, spec.indexer, index_rope)
            self.caches.append(made.index_cache)
            return made
        if self._kv_cache is None:
            return Attention(place, spec, weights, heads, rope, group)
        scales = None
        # Scales are calibrated for one type, and wrong for another. Tools that do not name the type mean fp8_e4m3fn.
        if spec.reads_layer is None and self._kv_cache == (self._calibrated or "fp8_e4m3fn"):
            scales = load_kv_scales(checkpoint, index, spec.num_kv_heads, heads)
        return Attention(place, spec, weights, heads, rope, group, KV_CODES[self._kv_cache], scales)

    def _index_rope(self, spec: AttentionSpec, indexer: BlockIndexerSpec) -> RopeTable:
        """Returns the table of what RoPE rotates of an index key: as many elements as of a head."""
        rotated = spec.head_dim if spec.rope is None else spec.rope.rotary_dim or spec.head_dim
        return self._rope(spec.rope and replace(spec.rope, rotary_dim=0), min(rotated, indexer.head_dim))

    def _latent_attention(self, index: int, spec: LatentAttentionSpec) -> LatentAttention:
        heads = HeadSplit.of(spec.num_heads, spec.num_heads, self._checkpoint.group)
        weights = load_latent_attention(self._checkpoint, index, spec, heads)
        self._note(index, spec, weights)
        rope, indexer = self._rope(spec.rope, spec.shared_dim), None
        if spec.indexer is not None:
            indexer = self._indexer(index, spec, spec.indexer)
            self.caches.append(indexer.cache)
        return LatentAttention(len(self.caches), spec, weights, heads, rope, indexer, self.parallel)

    def _compressed_attention(self, index: int, spec: CompressedAttentionSpec) -> CompressedAttention:
        group = self._checkpoint.group
        check_heads(spec.out_groups, "groups of attention heads", group.world_size)
        heads = HeadSplit.of(spec.num_heads, spec.num_heads, group)
        weights = load_compressed_attention(self._checkpoint, index, spec, heads)
        self._note(index, spec, weights)
        rope = self._rope(spec.rope, spec.rope_dim)
        made = CompressedAttention(len(self.caches), spec, weights, heads, rope)
        self.caches += made.caches
        return made

    def _indexer(self, index: int, attention: LatentAttentionSpec, spec: IndexerSpec) -> Indexer:
        weights = load_indexer(self._checkpoint, index, attention, spec)
        self._note(index, spec, weights)
        # Kernels rotate a pair at least, if only by angles of 0.
        rope = self._rope(attention.rope, attention.rope_dim or 2)
        made = PooledIndexer if attention.pool else Indexer
        return made(len(self.caches), attention, spec, weights, rope)

    def _recurrent_mixer(self, index: int, spec: RecurrentSpec) -> RecurrentMixer:
        mixer, weights = recurrent_mixer(self._checkpoint, index, len(self.recurrent), spec, self._rope)
        self._note(index, spec, weights)
        return mixer

    def _rope(self, rope: RopeSpec | None, head_dim: int, growth: QueryGrowth | None = None) -> RopeTable:
        """Returns the one table of all layers with the same rotary embedding."""
        key = rope, head_dim, growth
        return self._tables.setdefault(key, RopeTable(rope, head_dim, self._device, growth))
