"""DeciLM (Nemotron Super 49B and Ultra 253B): Llama whose layers differ in the number of key and value heads and in the
size of their network, and lack the one or the other.
"""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec
from .common import ACTIVATIONS, MOST_LAYERS, activation, attention, decoder, rms_norm
from .family import Family

_MULTIPLE = 256
"""A size that follows from `ffn_mult` is rounded up to one of it."""
_LARGEST_MULT = 1000.0
_OTHERS = {
    "attention": ("replace_with_linear", "window_length", "num_sink_tokens", "sparsify"),
    "ffn": ("replace_with_linear", "sparsify"),
}
"""What parts may be instead, which published models have none of."""


def _decilm(config: JsonObject) -> DecoderSpec:
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    mixer = attention(config)
    return decoder(config, tuple(_layer(config, block, mixer) for block in config.children("block_configs", count)))


def _layer(config: JsonObject, block: JsonObject, mixer: AttentionSpec) -> LayerSpec:
    norm = rms_norm(config)
    heads, network = _part(block, "attention"), _part(block, "ffn")
    return LayerSpec(
        None if heads is None else _attention(heads, mixer),
        None if network is None else _network(config, network),
        None if heads is None else norm,
        None if network is None else norm,
    )


def _part(block: JsonObject, key: str) -> JsonObject | None:
    part = block.child(key)
    for other in _OTHERS[key]:
        if part.plain().get(other):
            raise UnsupportedModel(f"`{other}` of `{key}` in `block_configs` of config.json is not implemented")
    return None if part.boolean("no_op", default=False) else part


def _attention(part: JsonObject, mixer: AttentionSpec) -> AttentionSpec:
    group = part.integer("n_heads_in_group")
    if mixer.num_heads % group:
        raise part.error("n_heads_in_group", f"a divisor of `num_attention_heads` ({mixer.num_heads})")
    return replace(mixer, num_kv_heads=mixer.num_heads // group)


def _network(config: JsonObject, part: JsonObject) -> DenseSpec:
    if "intermediate_size" in part:
        inner = part.integer("intermediate_size")
    else:
        mult = part.number("ffn_mult")
        if mult > _LARGEST_MULT:
            raise part.error("ffn_mult", f"at most {_LARGEST_MULT:g}")
        inner = int(2 * mult * config.integer("hidden_size") / 3)
        inner += -inner % _MULTIPLE
    bias = config.boolean("mlp_bias", default=False)
    act = activation(config) if "hidden_act" not in part else part.choice("hidden_act", ACTIVATIONS)
    return DenseSpec(inner, act, in_bias=bias, out_bias=bias)


DECILM = Family("DeciLM", _decilm, unread=("partial_rotary_factor",))
