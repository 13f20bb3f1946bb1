"""GLM 5.3 Flash: hyper-connections between residual streams, Kimi delta attention whose decays have a lower bound,
every fourth layer latent attention without RoPE to the pools of positions that an indexer chooses, and the experts of
DeepSeek V3 with bounds of activations.
"""

from collections.abc import Mapping
from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import KimiDeltaSpec
from ..spec import DecoderSpec, GatedActivation, LatentAttentionSpec, LayerSpec
from ..streams import HyperConnectionsSpec
from .common import MOST_LAYERS, decoder, gated, layer_types, pre_norm_layer, silu_alone
from .deepseek import SIZES, sigmoid_routed
from .deepseek_sparse import indexer, with_shared
from .experts import mixed_by_type, shared_expert_names
from .family import Family
from .kimi_linear import OF_STATES, kimi_delta, with_kimi_delta
from .latent import latent_attention

_LINEAR, _INDEXED = "linear_attention", "indexed_attention"
_HAS_STATE = {_LINEAR: True, _INDEXED: False, "deepseek_sparse_attention": False, "full_attention": False}
"""By the type of a layer; the last three are one type."""
_WANTED: Mapping[str, object] = {
    "index_kpool_always_select_tail": True,
    "index_kpool_compress": True,
    "mhc": True,
    "mla_use_nope": True,
}
"""Keys that published files have with these values alone."""
_ACTIVATIONS: Mapping[float, GatedActivation] = {10: "silu_below_10"}
"""By the bound of their inputs."""
_MOST_STREAMS, _MOST_ITERATIONS, _MOST_POOL = 16, 1000, 256
"""A hostile number must not fill the memory, nor keep a kernel busy for long."""


def _glm_next(config: JsonObject) -> DecoderSpec:
    for key, wanted in _WANTED.items():
        if config.plain().get(key, wanted) not in (wanted, None):
            raise UnsupportedModel(f"`{key}` in config.json must be {str(wanted).lower()} for this family")
    mixers = {True: _kimi_delta(config), False: _latent(config)}
    activation, is_mixed = bounded_silu(config), mixed_by_type(config)
    dense, experts = (replace(each, activation=activation) for each in (gated(config), sigmoid_routed(config)))

    def layer(index: int, kind: str) -> LayerSpec:
        network = experts if is_mixed(index) else dense
        return replace(pre_norm_layer(config, mixers[_HAS_STATE[kind]], network), streams=True)

    kinds = layer_types(config, _HAS_STATE, lambda index: _INDEXED if index % 4 == 3 else _LINEAR)
    model = decoder(config, with_shared(config, tuple(layer(*each) for each in enumerate(kinds))))
    return replace(model, streams=hyper_connections(config))


def _kimi_delta(config: JsonObject) -> KimiDeltaSpec:
    """With a lower bound under either of its names."""
    of_states, key = config.child(OF_STATES), "gate_lower_bound"
    source, key = (of_states, key) if key in of_states.plain() else (config, "linear_lower_bound")
    if key in source:
        bound = source.number(key, above=-1e9)
        if bound >= 0:
            raise source.error(key, "a number below 0")
    else:
        # `null` is no bound, but the usual one where published files do not say otherwise.
        bound = -5.0 if OF_STATES in config and of_states.boolean("safe_gate", default=True) else 0.0
    return replace(kimi_delta(config), least=bound)


def _latent(config: JsonObject) -> LatentAttentionSpec:
    if config.integer("qk_rope_head_dim", default=0, minimum=0):
        raise UnsupportedModel("`qk_rope_head_dim` in config.json must be 0 for this family, which has no RoPE")
    # The indexer reads the low-rank vector.
    config.integer("q_lora_rank")
    mixer = latent_attention(config, interleaved=False, rotates=False, shares=False)
    chosen, pool = config.integer("index_topk"), config.integer("index_kpool", maximum=_MOST_POOL)
    if chosen % pool:
        raise config.error("index_topk", f"a multiple of `index_kpool` ({pool})")
    chooses = indexer(config, interleaved=False)
    return replace(mixer, norm_eps=config.number("rms_norm_eps"), top_k=chosen, pool=pool, indexer=chooses)


def bounded_silu(config: JsonObject) -> GatedActivation:
    """The activation of gates below `swiglu_limit`, and of what they gate within it."""
    silu_alone(config, "hidden_act")
    bound = config.number("swiglu_limit")
    if bound not in _ACTIVATIONS:
        known = ", ".join(str(each) for each in _ACTIVATIONS)
        raise UnsupportedModel(f"`swiglu_limit` in config.json must be {known} for this family, not {bound:g}")
    return _ACTIVATIONS[bound]


def hyper_connections(config: JsonObject) -> HyperConnectionsSpec:
    """Under the keys that begin with `hc_`."""
    return HyperConnectionsSpec(
        config.integer("hc_mult", maximum=_MOST_STREAMS),
        config.number("hc_eps"),
        config.integer("hc_sinkhorn_iters", maximum=_MOST_ITERATIONS),
        config.number("rms_norm_eps"),
    )


def _names(config: JsonObject) -> TensorNames:
    names = with_kimi_delta(shared_expert_names(0)(config))
    first = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    extra = range(first, first + config.integer("num_nextn_predict_layers", default=1, minimum=0, maximum=16))
    return replace(names, ignored=(*names.ignored, *(f"*.layers.{index}.*" for index in extra)))


GLM_NEXT = Family(
    "GLM 5.3 Flash",
    _glm_next,
    _names,
    {
        **SIZES,
        "qk_rope_head_dim": 0,
        "qk_nope_head_dim": 256,
        "v_head_dim": 256,
        "linear_head_dim": 128,
        "linear_num_heads": 64,
        "linear_conv_kernel_dim": 4,
        "linear_lower_bound": -5.0,
        "rms_norm_eps": 1e-5,
        "first_k_dense_replace": 3,
        "n_routed_experts": 288,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5,
        "swiglu_limit": 10.0,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_topk": 2048,
        "index_kpool": 16,
        "max_position_embeddings": 1048576,
    },
    older={"n_routed_experts": "num_local_experts"},
    unread=("mlp_bias", "partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta"),
)
