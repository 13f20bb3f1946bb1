"""DeepSeek V4: attention to a window of positions and to compressed ones, hyper-connections between residual streams,
and experts with bounds of activations, which in the first layers a table has for each token id.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..quantisation import Fp8, Packed, Rule, Schemes
from ..rope import parse_rope
from ..rotary import RopeSpec
from ..spec import CompressedAttentionSpec, DecoderSpec, EntryIndexerSpec, LayerSpec, MoeSpec, NormSpec
from .common import MOST_HEADS, MOST_LAYERS, decoder, pre_norm_layer
from .experts import mixture
from .family import Family
from .glm_next import bounded_silu, hyper_connections

_MOST_HEAD, _MOST_INDEX = 512, 256
"""Largest head and index key of the kernels."""
_MOST_RATE = 1024
"""Positions of an entry are read at once: a hostile number must not fill the memory."""
_MX_GROUP = 32
_SLIDING, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_OF_RATIOS: Mapping[float, str] = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}
"""Types of layers, by the numbers in `compress_ratios` of published files."""
_USUAL_RATES = {_SPARSE: 4, _HEAVY: 128}
_OLDER_RATES = {_SPARSE: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
_BY_TOKEN = {"hash_moe": True, "moe": False}
_SCORES: Mapping[str, Literal["sqrtsoftplus", "sigmoid"]] = {"sqrtsoftplus": "sqrtsoftplus", "sigmoid": "sigmoid"}
_HAS_MXFP4 = {"fp4": True, "fp8": False}


@dataclass(frozen=True)
class _Rotary:
    """RoPE of layers without entries, and of those with them."""

    main: RopeSpec
    compress: RopeSpec
    dim: int


def _deepseek_v4(config: JsonObject) -> DecoderSpec:
    if config.integer("num_key_value_heads", default=1) != 1:
        raise config.error("num_key_value_heads", "1")
    if config.boolean("mlp_bias", default=False):
        raise UnsupportedModel("`mlp_bias` in config.json must be false for this family")
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    kinds, by_token = _layer_types(config, count), _by_token(config, count)
    mixers = {kind: _attention(config, kind, _rotary(config)) for kind in dict.fromkeys(kinds)}
    experts = _experts(config)
    norm = NormSpec(config.number("rms_norm_eps"), wide=True)

    def layer(kind: str, hashed: bool) -> LayerSpec:
        route = replace(experts.route, by_token=hashed, correction=not hashed)
        plain = pre_norm_layer(config, mixers[kind], replace(experts, route=route))
        return replace(plain, attention_norm=norm, ffn_norm=norm, streams=True)

    layers = tuple(layer(*each) for each in zip(kinds, by_token, strict=True))
    streams = replace(hyper_connections(config), weighted_end=True)
    return replace(decoder(config, layers, final_norm=norm), streams=streams)


def _layer_types(config: JsonObject, count: int) -> tuple[str, ...]:
    """As `layer_types` or `compress_ratios` list them, which may have more for layers that guess further tokens."""
    if "layer_types" in config:
        key, kinds = "layer_types", list(config.strings("layer_types"))
    elif "compress_ratios" in config:
        key, ratios = "compress_ratios", config.array("compress_ratios")
        kinds = [_OF_RATIOS.get(each, "") if isinstance(each, int | float) else "" for each in ratios]
    else:
        key, kinds = "layer_types", [_HEAVY, _HEAVY, *(_SPARSE if index % 2 else _HEAVY for index in range(count))]
    known = _OF_RATIOS.values() if key == "layer_types" else _OF_RATIOS
    if len(kinds) < count or set(kinds[:count]) - set(_OF_RATIOS.values()):
        raise config.error(key, f"a list of {count} times one of {', '.join(map(str, known))}")
    return tuple(kinds[:count])


def _by_token(config: JsonObject, count: int) -> tuple[bool, ...]:
    """Which layers have experts by token id: as `mlp_layer_types` lists them, else the first `num_hash_layers`."""
    kinds = config.strings("mlp_layer_types")
    if not kinds:
        first = config.integer("num_hash_layers", default=3, minimum=0)
        return tuple(index < first for index in range(count))
    if len(kinds) < count or set(kinds[:count]) - set(_BY_TOKEN):
        raise config.error("mlp_layer_types", f"a list of {count} times 'hash_moe' or 'moe'")
    return tuple(_BY_TOKEN[each] for each in kinds[:count])


def _rotary(config: JsonObject) -> _Rotary:
    """From `rope_parameters` with an object for each of both, or as the older keys say: then layers without entries
    are not stretched.
    """
    key, size = "rope_parameters" if "rope_parameters" in config else "rope_scaling", _head_dim(config)
    scaling = config.child(key)
    nested = [kind in scaling for kind in ("main", "compress")]
    if any(nested) and not all(nested):
        raise config.error(key, "such that it has both `main` and `compress`, or neither")
    main = parse_rope(config, size, True, "main", scaled=False)
    compress = parse_rope(config, size, True, "compress", theta_key="compress_rope_theta")
    if not all(nested):
        # What stands beside the scaling is the base of the others.
        compress = replace(compress, theta=config.number("compress_rope_theta"))
        if "partial_rotary_factor" not in config and "partial_rotary_factor" not in scaling:
            dim = config.integer("qk_rope_head_dim", minimum=2, maximum=size)
            main, compress = replace(main, rotary_dim=dim), replace(compress, rotary_dim=dim)
        if compress.rope_type == "yarn" and compress.attention_factor is None:
            compress = replace(compress, attention_factor=1.0)
    if main.rotary_dim != compress.rotary_dim or main.rotary_dim % 2:
        raise config.error(key, "such that both rotate the same even number of elements")
    whole = (replace(each, rotary_dim=0) for each in (main, compress))
    return _Rotary(*whole, dim=main.rotary_dim)


def _head_dim(config: JsonObject) -> int:
    return config.integer("head_dim", minimum=2, maximum=_MOST_HEAD)


def _attention(config: JsonObject, kind: str, rotary: _Rotary) -> CompressedAttentionSpec:
    heads = config.integer("num_attention_heads", maximum=MOST_HEADS)
    groups = config.integer("o_groups", maximum=heads)
    if heads % groups:
        raise config.error("o_groups", f"a divisor of `num_attention_heads` ({heads})")
    spec = CompressedAttentionSpec(
        heads,
        _head_dim(config),
        config.integer("q_lora_rank"),
        rotary.main if kind == _SLIDING else rotary.compress,
        rotary.dim,
        config.integer("sliding_window"),
        config.number("rms_norm_eps"),
        groups,
        config.integer("o_lora_rank"),
    )
    if kind == _SLIDING:
        return spec
    spec = replace(spec, rate=_rate(config, kind))
    return replace(spec, overlaps=True, indexer=_indexer(config, rotary.dim)) if kind == _SPARSE else spec


def _rate(config: JsonObject, kind: str) -> int:
    """The positions of an entry. The older key wins, as in Transformers."""
    if (older := _OLDER_RATES[kind]) in config:
        return config.integer(older, maximum=_MOST_RATE)
    if "compress_rates" in config:
        return config.child("compress_rates").integer(kind, maximum=_MOST_RATE)
    return _USUAL_RATES[kind]


def _indexer(config: JsonObject, rope_dim: int) -> EntryIndexerSpec:
    size = config.integer("index_head_dim", maximum=_MOST_INDEX)
    if size < rope_dim:
        raise config.error("index_head_dim", f"at least the {rope_dim} elements that are rotated")
    heads = config.integer("index_n_heads", maximum=MOST_HEADS)
    return EntryIndexerSpec(heads, size, config.integer("index_topk"))


def _experts(config: JsonObject) -> MoeSpec:
    if config.integer("n_shared_experts", default=1) != 1:
        raise UnsupportedModel("`n_shared_experts` in config.json must be 1 for this family")
    score = config.choice("scoring_func", _SCORES)
    scale = config.number("routed_scaling_factor")
    experts = mixture(config, "n_routed_experts", "moe_intermediate_size", score=score, norm=1, scale=scale, wide=True)
    return replace(experts, activation=bounded_silu(config), shared_inner=experts.inner)


def _schemes(config: JsonObject, schemes: Schemes) -> Schemes:
    """Published files have MXFP4 of routed experts beside FP8, and say nothing of what keeps 16 bits: that has no scale
    beside it.
    """
    if schemes.method != "fp8" or schemes.online:
        return schemes
    key = "expert_dtype"
    source = config if key in config else config.child("quantization_config")
    has_mxfp4 = source.choice(key, _HAS_MXFP4, default="fp8")
    rules = tuple(
        replace(rule, scheme=replace(rule.scheme, mark="weight_scale")) if isinstance(rule.scheme, Fp8) else rule
        for rule in schemes.rules
    )
    experts = Rule(Packed("mxfp4", 4, _MX_GROUP), "search", r"\.mlp\.experts\.")
    return replace(schemes, rules=(experts, *rules) if has_mxfp4 else rules)


def _names(config: JsonObject) -> TensorNames:
    first = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    extra = range(first, first + config.integer("num_nextn_predict_layers", minimum=0, maximum=16))
    behind = tuple(f"{prefix}layers.{index}.*" for index in extra for prefix in ("", "model."))
    shared = "mlp.shared_experts"
    return TensorNames(
        q_a_norm="self_attn.q_a_norm",
        kv_a="self_attn.kv_proj",
        kv_a_norm="self_attn.kv_norm",
        out="self_attn.o_b_proj",
        index_q="self_attn.compressor.indexer.q_b_proj",
        index_weights="self_attn.compressor.indexer.scorer.weights_proj",
        shared_gate=f"{shared}.gate_proj",
        shared_up=f"{shared}.up_proj",
        shared_down=f"{shared}.down_proj",
        experts_stack=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
        streams_out="hc_head.hc_",
        mixer_streams="attn_hc.",
        ffn_streams="ffn_hc.",
        spellings=_SPELLINGS,
        ignored=(*TensorNames().ignored, "mtp.*", "*.mtp.*", *behind),
    )


_SPELLINGS = (
    (r"^(?:model\.)?embed\.", "model.embed_tokens."),
    (r"^head\.", "lm_head."),
    (r"^(layers|norm)\.", r"model.\1."),
    (r"^(?:model\.)?hc_head_", "model.hc_head.hc_"),
    (r"\.hc_(attn|ffn)_(\w+)$", r".\1_hc.\2"),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.attn_sink$", ".sinks"),
    (r"\.indexer\.compressor\.", ".indexer."),
    (r"\.self_attn\.indexer\.", ".self_attn.compressor.indexer."),
    (r"\.indexer\.weights_proj\.", ".indexer.scorer.weights_proj."),
    (r"(\.self_attn(?:\.compressor)?(?:\.indexer)?)\.norm\.", r"\1.kv_norm."),
    (r"\.ape$", ".position_bias"),
    (r"\.q_norm\.", ".q_a_norm."),
    (r"\.w([qo])_([ab])\.", r".\1_\2_proj."),
    (r"\.wkv\.", ".kv_proj."),
    (r"\.wgate\.", ".gate_proj."),
    (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
    (r"(experts(?:\.\d+)?)\.w1\.", r"\1.gate_proj."),
    (r"(experts(?:\.\d+)?)\.w2\.", r"\1.down_proj."),
    (r"(experts(?:\.\d+)?)\.w3\.", r"\1.up_proj."),
    (r"(?<!_hc)\.(?:scale|weight_scale_inv)$", ".weight_scale"),
)
"""From names of the authors, and of Transformers where it writes them, to those of its modules."""

DEEPSEEK_V4 = Family(
    "DeepSeek V4",
    _deepseek_v4,
    _names,
    {
        "head_dim": 512,
        "q_lora_rank": 1024,
        "qk_rope_head_dim": 64,
        "num_experts_per_tok": 6,
        "n_routed_experts": 256,
        "moe_intermediate_size": 2048,
        "scoring_func": "sqrtsoftplus",
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "compress_rope_theta": 160000.0,
        "rms_norm_eps": 1e-6,
        "sliding_window": 128,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 1048576,
    },
    older={"n_routed_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"},
    schemes=_schemes,
)
