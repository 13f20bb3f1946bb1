"""Nemotron-H and Nemotron Nano 2: layers are one part each, a state space (Mamba 2), attention, or a network."""

from collections.abc import Mapping

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import Mamba2Spec
from ..spec import AttentionSpec, DecoderSpec, LayerSpec, NormSpec
from .common import MOST_HEADS, MOST_KERNEL, MOST_LAYERS, MOST_STATE, Heads, decoder, plain, silu_alone
from .family import Family

_LETTERS: Mapping[str, str] = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Of `hybrid_override_pattern`."""
_OLDER: Mapping[str, str] = {"mamba": "linear_attention", "attention": "full_attention"}
"""Names in `layers_block_type` of older files."""


def _nemotron_h(config: JsonObject) -> DecoderSpec:
    norm = NormSpec(config.number("layer_norm_epsilon", default=1e-5))
    network = plain(config, "intermediate_size", "mlp_hidden_act", _bias(config, "mlp_bias"))
    parts = {
        "linear_attention": LayerSpec(_state_space(config, norm.eps), None, norm, None),
        "full_attention": LayerSpec(_attention(config), None, norm, None),
        "mlp": LayerSpec(None, network, None, norm),
    }
    kinds = _kinds(config)
    if "moe" in kinds:
        raise UnsupportedModel("layers of type 'moe' in config.json: experts without a gate are not implemented")
    if not kinds or any(kind not in parts for kind in kinds):
        raise config.error("layers_block_type", f"a list of names out of {', '.join(parts)}")
    layers = tuple(parts[kind] for kind in kinds)
    return decoder(config.with_values({"num_hidden_layers": len(layers)}), layers, norm)


def _kinds(config: JsonObject) -> list[str]:
    if "hybrid_override_pattern" in config:
        pattern = config.string("hybrid_override_pattern")
        if not 0 < len(pattern) <= MOST_LAYERS or any(letter not in _LETTERS for letter in pattern):
            raise config.error("hybrid_override_pattern", f"made of the letters {' '.join(_LETTERS)}")
        return [_LETTERS[letter] for letter in pattern]
    names = config.strings("layers_block_type" if "layers_block_type" in config else "layer_types")
    return [_OLDER.get(name, name) for name in names]


def _attention(config: JsonObject) -> AttentionSpec:
    heads = Heads.of(config)
    return AttentionSpec(heads.count, heads.kv, heads.size, scale=heads.size**-0.5, rope=None)


def _state_space(config: JsonObject, eps: float) -> Mamba2Spec:
    silu_alone(config, "mamba_hidden_act")
    heads = config.integer("mamba_num_heads", maximum=MOST_HEADS)
    groups = config.integer("n_groups")
    if heads % groups:
        raise config.error("n_groups", f"a divisor of `mamba_num_heads` ({heads})")
    return Mamba2Spec(
        heads,
        config.integer("mamba_head_dim", maximum=MOST_STATE),
        groups,
        config.integer("ssm_state_size", maximum=MOST_STATE),
        config.integer("conv_kernel", minimum=2, maximum=MOST_KERNEL),
        eps,
        bias=_bias(config, "use_bias"),
        conv_bias=config.boolean("use_conv_bias", default=True),
        least_step=config.number("time_step_min", default=0.001),
    )


def _bias(config: JsonObject, key: str) -> bool:
    return config.boolean(key, default=False)


NEMOTRON_H = Family(
    "Nemotron-H and Nano 2",
    _nemotron_h,
    TensorNames(
        prefixes=("backbone.", "model."),
        embedding="embeddings",
        final_norm="norm_f",
        attention_norm="norm",
        ffn_norm="norm",
        q="mixer.q_proj",
        k="mixer.k_proj",
        v="mixer.v_proj",
        out="mixer.o_proj",
        up="mixer.up_proj",
        down="mixer.down_proj",
    ),
    {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "mlp_hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "eos_token_id": 2,
    },
    aliases={
        "head_dim": "attention_head_dim",
        "n_groups": "mamba_n_groups",
        "conv_kernel": "mamba_d_conv",
        "layer_norm_epsilon": "rms_norm_eps",
    },
)
