"""MiniMax M3: MiniMax-M2 with norms of each head, a shared expert, dense layers at the front, and layers whose heads
attend to blocks of positions that an indexer chooses.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import (
    AttentionSpec,
    BlockIndexerSpec,
    DecoderSpec,
    DenseSpec,
    LayerSpec,
    MoeSpec,
    NormSpec,
    QkNormSpec,
    RouteSpec,
)
from .common import attention, decoder, layer_types, with_rotary_dim
from .experts import MOST_EXPERTS, by_number
from .family import Family

_SPARSE, _FULL = "minimax_m3_sparse", "full_attention"
_MOST_BLOCK, _MOST_INDEX = 256, 256
"""Largest block, and largest index key, of the kernels."""
_AUTHORS: dict[str, str] = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}
"""Keys of `sparse_attention_config`, by those of Transformers. They count before these."""


def _minimax_m3(config: JsonObject) -> DecoderSpec:
    # The kernels know the numbers of the published models.
    for key, value in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
        if config.number(key, default=value) != value:
            raise config.error(key, f"{value}")
    norm = NormSpec(config.number("rms_norm_eps", default=1e-6), wide=True, one_plus=True)
    mixer = with_rotary_dim(config, replace(attention(config), qk_norm=QkNormSpec(norm)))
    dense = LayerSpec(mixer, DenseSpec(config.integer("dense_intermediate_size"), "clamped_swiglu"), norm, norm)
    mixed = replace(dense, ffn=_experts(config))
    kinds = _mixed(config)
    layers = by_number(config, dense, mixed, lambda index: kinds[index])
    if any(sparse := _sparse(config)):
        with_indexer = replace(mixer, indexer=_indexer(config, mixer, norm))
        pairs = zip(layers, sparse, strict=True)
        layers = tuple(replace(layer, mixer=with_indexer) if chooses else layer for layer, chooses in pairs)
    return decoder(config, layers, final_norm=norm)


def _experts(config: JsonObject) -> MoeSpec:
    experts = config.integer("num_local_experts", maximum=MOST_EXPERTS)
    top_k = config.integer("num_experts_per_tok", maximum=experts)
    route = RouteSpec(top_k, "sigmoid", scale=config.number("routed_scaling_factor"), correction=True)
    inner, shared = config.integer("intermediate_size"), config.integer("shared_intermediate_size")
    return MoeSpec(experts, inner, "clamped_swiglu", route, shared_inner=shared)


def _indexer(config: JsonObject, mixer: AttentionSpec, norm: NormSpec) -> BlockIndexerSpec:
    ours = config.child("sparse_attention_config")

    def size(key: str, maximum: int) -> int:
        where, name = (ours, _AUTHORS[key]) if _AUTHORS[key] in ours else (config, key)
        return where.integer(name, maximum=maximum)

    if size("index_n_heads", mixer.num_kv_heads) != mixer.num_kv_heads:
        raise config.error("index_n_heads", f"as many as `num_key_value_heads` ({mixer.num_kv_heads})")
    made = BlockIndexerSpec(
        head_dim=size("index_head_dim", _MOST_INDEX),
        block=size("index_block_size", _MOST_BLOCK),
        top_k=size("index_topk_blocks", 4096),
        local=size("index_local_blocks", 4096),
        norm=norm,
    )
    rotated = 0 if mixer.rope is None else mixer.rope.rotary_dim or mixer.head_dim
    if made.head_dim < rotated:
        raise config.error("index_head_dim", f"at least the {rotated} elements of a head that RoPE rotates")
    if made.local > made.top_k:
        raise config.error("index_local_blocks", f"at most `index_topk_blocks` ({made.top_k})")
    return made


def _sparse(config: JsonObject) -> Sequence[bool]:
    """Returns which layers have an indexer."""
    authors = config.child("sparse_attention_config")
    if "layer_types" not in config and (key := "sparse_attention_freq") in authors:
        return [bool(each) for each in authors.integers(key, config.integer("num_hidden_layers"), 1)]
    return [kind == _SPARSE for kind in layer_types(config, (_FULL, _SPARSE), lambda _: _FULL)]


def _mixed(config: JsonObject) -> Sequence[bool]:
    """Returns which layers have experts."""
    count = config.integer("num_hidden_layers")
    kinds = config.strings("mlp_layer_types")
    if not kinds and "moe_layer_freq" in config:
        return [bool(each) for each in config.integers("moe_layer_freq", count, 1)]
    if kinds and (len(kinds) != count or set(kinds) - {"dense", "sparse"}):
        raise config.error("mlp_layer_types", f"a list of {count} times 'dense' or 'sparse'")
    return [kind == "sparse" for kind in kinds] or [True] * count


_MOE = "block_sparse_moe"
_NAMES = TensorNames(
    router=f"{_MOE}.gate",
    router_correction=f"{_MOE}.e_score_correction_bias",
    expert_gate=f"{_MOE}.experts.{{expert}}.w1",
    expert_up=f"{_MOE}.experts.{{expert}}.w3",
    expert_down=f"{_MOE}.experts.{{expert}}.w2",
    shared_gate=f"{_MOE}.shared_experts.gate_proj",
    shared_up=f"{_MOE}.shared_experts.up_proj",
    shared_down=f"{_MOE}.shared_experts.down_proj",
    index_q="self_attn.index_q_proj",
    index_k="self_attn.index_k_proj",
    index_q_norm="self_attn.index_q_norm",
    index_k_norm="self_attn.index_k_norm",
    ignored=("mtp.*", "model.mtp.*", "*rotary_emb.inv_freq"),
)
_OF_TRANSFORMERS = TensorNames(
    gate_up="mlp.gate_up_proj",
    experts_layout="stacked",
    expert_gate="mlp.experts.gate_up_proj",
    expert_down="mlp.experts.down_proj",
    shared_gate_up="mlp.shared_experts.gate_up_proj",
    shared_down="mlp.shared_experts.down_proj",
    index_q="self_attn.indexer.q_proj",
    index_k="self_attn.indexer.k_proj",
)
"""Of the model of text by itself, which nobody but the library writes."""


def _names(config: JsonObject) -> TensorNames:
    return _OF_TRANSFORMERS if "MiniMaxM3VLForCausalLM" in config.strings("architectures") else _NAMES


MINIMAX_M3 = Family(
    "MiniMax M3",
    _minimax_m3,
    _names,
    {
        "rope_theta": 5e6,
        "head_dim": 128,
        "num_key_value_heads": 4,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "dense_intermediate_size": 12288,
        "shared_intermediate_size": 3072,
        "routed_scaling_factor": 2.0,
        "rotary_dim": 64,
        "index_n_heads": 4,
        "index_head_dim": 128,
        "index_block_size": 128,
        "index_topk_blocks": 16,
        "index_local_blocks": 1,
        "max_position_embeddings": 524288,
    },
    unread=("attention_bias", "partial_rotary_factor"),
)
