"""OLMo Hybrid: gated delta nets between norms of their inputs, and every few layers attention of OLMo 3, whose outputs
are normalised.
"""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import GatedDeltaSpec
from ..rope import parse_rope
from ..rotary import RopeSpec
from ..spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, NormSpec, QkNormSpec
from .common import (
    MOST_HEADS,
    MOST_KERNEL,
    MOST_STATE,
    Heads,
    attention,
    decoder,
    gated,
    layer_types,
    rms_norm,
    silu_alone,
)
from .family import Family

_FULL, _LINEAR = "full_attention", "linear_attention"
_INTERVAL, _OUTPUT_EPS = 4, 1e-5
"""Every so many-th layer has attention where the file does not say, and what the class adds to the mean square of a
head's output."""


def _olmo_hybrid(config: JsonObject) -> DecoderSpec:
    norm = replace(rms_norm(config), wide=True)
    network = gated(config)
    kinds = {_FULL: _full(config, network, norm), _LINEAR: LayerSpec(_gated_delta(config), network, norm, norm)}
    names = layer_types(config, kinds, lambda index: _LINEAR if (index + 1) % _INTERVAL else _FULL)
    if "layer_types" not in config and _FULL not in names:
        names = (*names[:-1], _FULL)
    return decoder(config, tuple(kinds[name] for name in names), norm)


def _full(config: JsonObject, network: DenseSpec, norm: NormSpec) -> LayerSpec:
    mixer: AttentionSpec = replace(attention(config), rope=_rope(config), qk_norm=QkNormSpec(norm, over="width"))
    return LayerSpec(mixer, network, None, None, norm, norm)


def _rope(config: JsonObject) -> RopeSpec | None:
    """None where the base is null, as in published files: attention then knows no positions."""
    inside = config.child("rope_parameters").plain()
    stored = inside if "rope_theta" in inside else config.plain()
    if "rope_theta" in stored and stored["rope_theta"] is None:
        return None
    return parse_rope(config, Heads.of(config).size)


def _gated_delta(config: JsonObject) -> GatedDeltaSpec:
    silu_alone(config, "hidden_act")
    count = config.integer("num_attention_heads", maximum=MOST_HEADS)
    heads = config.integer("linear_num_value_heads", default=count, maximum=MOST_HEADS)
    key_heads = config.integer("linear_num_key_heads", default=count)
    if heads % key_heads:
        raise config.error("linear_num_key_heads", f"a divisor of `linear_num_value_heads` ({heads})")
    keys = config.integer(
        "linear_key_head_dim", default=int(0.75 * config.integer("hidden_size") / key_heads), maximum=MOST_STATE
    )
    return GatedDeltaSpec(
        heads,
        key_heads,
        keys,
        config.integer("linear_value_head_dim", default=2 * keys, maximum=MOST_STATE),
        config.integer("linear_conv_kernel_dim", default=4, minimum=2, maximum=MOST_KERNEL),
        _OUTPUT_EPS,
        most_beta=2 if config.boolean("linear_allow_neg_eigval", default=True) else 1,
    )


OLMO_HYBRID = Family(
    "OLMo Hybrid",
    _olmo_hybrid,
    TensorNames(
        attention_norm="attention_layer_norm",
        ffn_norm="feedforward_layer_norm",
        # Names of the class, and what Transformers calls the output norm of attention in files that it writes.
        instead={
            "attention_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "attention_output_norm": "feedforward_layer_norm",
        },
        delta_apart=("linear_attn.q_proj", "linear_attn.k_proj", "linear_attn.v_proj"),
        delta_convs=("linear_attn.q_conv1d", "linear_attn.k_conv1d", "linear_attn.v_conv1d"),
        delta_z="linear_attn.g_proj",
        delta_a="linear_attn.a_proj",
        delta_b="linear_attn.b_proj",
        delta_norm="linear_attn.o_norm",
        delta_out="linear_attn.o_proj",
    ),
    {"max_position_embeddings": 65536, "rms_norm_eps": 1e-6},
    unread=("mlp_bias", "partial_rotary_factor"),
)
