"""Mamba and Falcon Mamba, whose layers are mixers alone, and Jamba, which has attention and experts among them."""

import math
from collections.abc import Callable

from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import MambaSpec
from ..spec import AttentionSpec, DecoderSpec, LayerSpec, NormSpec
from .common import MOST_KERNEL, MOST_LAYERS, MOST_STATE, Heads, decoder, gated, pre_norm_layer, rms_norm, silu_alone
from .experts import mixture
from .family import Family


def _mamba(config: JsonObject) -> DecoderSpec:
    silu_alone(config, "hidden_act")
    hidden = config.integer("hidden_size")
    mixer = MambaSpec(
        config.integer("intermediate_size", default=int(config.number("expand", default=2.0) * hidden)),
        config.integer("state_size", default=16, maximum=MOST_STATE),
        config.integer("conv_kernel", default=4, minimum=2, maximum=MOST_KERNEL),
        _rank(config, "time_step_rank"),
        bias=config.boolean("use_bias", default=False),
        conv_bias=config.boolean("use_conv_bias", default=True),
        norm_eps=config.optional_number("mixer_rms_eps"),
        norm_weights=False,
    )
    norm = NormSpec(config.number("layer_norm_epsilon", default=1e-5))
    return decoder(config, LayerSpec(mixer, None, norm, None), norm)


def _jamba(config: JsonObject) -> DecoderSpec:
    silu_alone(config, "hidden_act")
    heads = Heads.of(config)
    full = AttentionSpec(heads.count, heads.kv, heads.size, scale=heads.size**-0.5, rope=None)
    norm, dense = rms_norm(config), gated(config)
    recurrent = MambaSpec(
        config.integer("mamba_expand", default=2, maximum=64) * config.integer("hidden_size"),
        config.integer("mamba_d_state", default=16, maximum=MOST_STATE),
        config.integer("mamba_d_conv", default=4, minimum=2, maximum=MOST_KERNEL),
        _rank(config, "mamba_dt_rank"),
        bias=config.boolean("mamba_proj_bias", default=False),
        conv_bias=config.boolean("mamba_conv_bias", default=True),
        norm_eps=norm.eps,
    )
    # Where there is one expert, nothing is chosen, and it is stored as a dense network.
    is_mixture = config.integer("num_experts") > 1
    experts = mixture(config, "num_experts", "intermediate_size", norm=0) if is_mixture else dense
    has_attention, has_experts = _every(config, "attn_layer", 8, 4), _every(config, "expert_layer", 2, 1)
    layers = (
        pre_norm_layer(config, full if has_attention(index) else recurrent, experts if has_experts(index) else dense)
        for index in range(config.integer("num_hidden_layers", maximum=MOST_LAYERS))
    )
    return decoder(config, tuple(layers), norm)


def _rank(config: JsonObject, key: str) -> int:
    """A number, or "auto"."""
    least = math.ceil(config.integer("hidden_size") / 16)
    return least if config.plain().get(key, "auto") == "auto" else config.integer(key)


def _every(config: JsonObject, name: str, period: int, offset: int) -> Callable[[int], bool]:
    """Which layers are meant by two keys that begin with `name`. Numbers: where these are absent."""
    period = config.integer(f"{name}_period", default=period)
    offset = config.integer(f"{name}_offset", default=offset, minimum=0)
    return lambda index: index % period == offset


NAMES = TensorNames(prefixes=("backbone.",), embedding="embeddings", final_norm="norm_f", attention_norm="norm")
LONGEST = 1 << 17
"""The file names no longest context, and nothing in the model has one."""
_DEFAULTS: dict[str, object] = {"tie_word_embeddings": True, "eos_token_id": 0, "max_position_embeddings": LONGEST}
MAMBA = Family("Mamba", _mamba, NAMES, _DEFAULTS, unread=("mixer_rms_eps",))
FALCON_MAMBA = Family("Falcon Mamba", _mamba, NAMES, {**_DEFAULTS, "mixer_rms_eps": 1e-6})
JAMBA = Family(
    "Jamba",
    _jamba,
    TensorNames(
        final_norm="final_layernorm",
        ffn_norm="pre_ff_layernorm",
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
        router="feed_forward.router",
        expert_gate="feed_forward.experts.{expert}.gate_proj",
        expert_up="feed_forward.experts.{expert}.up_proj",
        expert_down="feed_forward.experts.{expert}.down_proj",
        mamba_in="mamba.in_proj",
        mamba_conv="mamba.conv1d",
        mamba_x="mamba.x_proj",
        mamba_dt="mamba.dt_proj",
        mamba_norms=("mamba.dt_layernorm", "mamba.b_layernorm", "mamba.c_layernorm"),
        mamba_rate="mamba.A_log",
        mamba_skip="mamba.D",
        mamba_out="mamba.out_proj",
    ),
    {
        "num_key_value_heads": 8,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 262144,
        "eos_token_id": 2,
    },
    unread=("mlp_bias",),
)
