"""DeepSeek V3.2 and GLM 5: DeepSeek V3 whose tokens attend to the `index_topk` positions that an indexer chooses. In
GLM 5.2 some layers attend to those of the layer before them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..json_object import JsonObject
from ..spec import DecoderSpec, IndexerSpec, LatentAttentionSpec, LayerSpec
from .common import MOST_HEADS, decoder, gated, pre_norm_layer
from .deepseek import SIZES, sigmoid_routed
from .experts import by_number, mixed_by_type, shared_expert_names
from .family import Family
from .latent import latent_attention

_MOST_INDEX = 256
"""Largest index key of the kernels."""
_NORM_EPS = 1e-6
"""Of the layer norm of index keys, whatever `rms_norm_eps` is."""
_SHARED = {"full": False, "shared": True}
_LETTERS = {"F": False, "S": True}


def _sparse(config: JsonObject, interleaved: bool) -> DecoderSpec:
    """`interleaved`: whether neighbours of an index key are a pair, unless the file says so."""
    config.integer("q_lora_rank")
    mixer = latent_attention(config, interleaved=True)
    mixer = replace(mixer, top_k=config.integer("index_topk"), indexer=indexer(config, interleaved))
    dense = pre_norm_layer(config, mixer, gated(config))
    mixed = replace(dense, ffn=sigmoid_routed(config))
    layers = by_number(config, dense, mixed, mixed_by_type(config))
    return decoder(config, with_shared(config, layers))


def indexer(config: JsonObject, interleaved: bool) -> IndexerSpec:
    """Under DeepSeek's keys. `interleaved`: whether neighbours of an index key are a pair, unless the file says so."""
    size = config.integer("index_head_dim", maximum=_MOST_INDEX)
    if size < config.integer("qk_rope_head_dim", minimum=0):
        raise config.error("index_head_dim", "at least `qk_rope_head_dim`")
    heads = config.integer("index_n_heads", maximum=MOST_HEADS)
    return IndexerSpec(heads, size, config.boolean("indexer_rope_interleave", default=interleaved), _NORM_EPS)


def _shared(config: JsonObject, layers: int) -> Sequence[bool]:
    """Returns which layers attend to the positions of the layer before them."""
    for key in ("indexer_types", "index_topk_pattern"):
        if key not in config:
            continue
        values = config.plain()[key]
        known = _LETTERS if isinstance(values, str) else _SHARED
        given = list(values) if isinstance(values, str) else config.strings(key)
        if len(given) < layers or any(each not in known for each in given) or known[given[0]]:
            raise config.error(key, f"of {layers} layers, 'full' or 'shared' each, of which the first is 'full'")
        return [known[each] for each in given]
    every = config.integer("index_topk_freq", default=1)
    first = config.integer("index_skip_topk_offset", default=2)
    return [max(index - first + 1, 0) % every != 0 for index in range(layers)]


def with_shared(config: JsonObject, layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """Returns the same layers, without indexers where latent attention reads what a layer before it has chosen."""
    shared = _shared(config, len(layers))
    first = next((index for index, layer in enumerate(layers) if isinstance(layer.mixer, LatentAttentionSpec)), 0)
    if shared[first]:
        raise config.error("indexer_types", f"'full' for layer {first}, the first one with an indexer")

    def without(layer: LayerSpec) -> LayerSpec:
        mixer = layer.mixer
        return replace(layer, mixer=replace(mixer, indexer=None)) if isinstance(mixer, LatentAttentionSpec) else layer

    return tuple(without(layer) if is_shared else layer for layer, is_shared in zip(layers, shared, strict=False))


_DEFAULTS = {
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3,
    "index_topk": 2048,
    "index_head_dim": 128,
}
_UNREAD = ("mlp_bias", "partial_rotary_factor")
_V32 = {**SIZES, **_DEFAULTS, "index_n_heads": 64, "n_group": 8, "topk_group": 4, "max_position_embeddings": 163840}
DEEPSEEK_V32 = Family(
    "DeepSeek V3.2",
    partial(_sparse, interleaved=False),
    shared_expert_names(1),
    _V32,
    older={"n_routed_experts": "num_experts"},
    unread=(*_UNREAD, "indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"),
)
GLM5 = Family(
    "GLM 5",
    partial(_sparse, interleaved=True),
    shared_expert_names(1),
    {
        **{**SIZES, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256},
        **_DEFAULTS,
        "index_n_heads": 32,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 202752,
    },
    older={"n_routed_experts": "num_experts"},
    unread=_UNREAD,
)
