"""RecurrentGemma (Griffin): gated linear recurrent units, and attention with a window among them."""

import math
from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import GatedLruSpec
from ..spec import DecoderSpec, DenseSpec, EmbeddingSpec, HeadSpec, LayerSpec
from .common import ACTIVATIONS, MOST_HEADS, MOST_KERNEL, MOST_LAYERS, attention, decoder, rms_norm, window
from .family import Family
from .mamba import LONGEST

_ACTIVATION = "gelu_tanh"


def _recurrent_gemma(config: JsonObject) -> DecoderSpec:
    if config.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh") != _ACTIVATION:
        raise UnsupportedModel("`hidden_activation` in config.json must be 'gelu_pytorch_tanh' for this family")
    mixers = {
        "recurrent": _unit(config),
        "attention": replace(attention(config), window=window(config), out_bias=True),
    }
    # What the file gives is the size of gates and of what they gate together.
    dense = DenseSpec(config.integer("intermediate_size") // 2, _ACTIVATION, in_bias=True, out_bias=True)
    norm = replace(rms_norm(config), one_plus=True)
    layers = {name: LayerSpec(mixer, dense, norm, norm) for name, mixer in mixers.items()}
    pattern, count = config.strings("block_types"), config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    if not pattern or any(name not in layers for name in pattern):
        raise config.error("block_types", f"a list of names out of {', '.join(layers)}")
    return decoder(
        config,
        tuple(layers[pattern[index % len(pattern)]] for index in range(count)),
        norm,
        EmbeddingSpec(scale=_bfloat16(config.integer("hidden_size") ** 0.5)),
        HeadSpec(tied=config.boolean("tie_word_embeddings", default=True), softcap=config.number("logits_soft_cap")),
    )


def _unit(config: JsonObject) -> GatedLruSpec:
    channels = config.integer("lru_width", default=config.integer("hidden_size"))
    blocks = config.integer("num_attention_heads", maximum=MOST_HEADS)
    if channels % blocks:
        raise config.error("num_attention_heads", f"a divisor of `lru_width` ({channels})")
    return GatedLruSpec(channels, blocks, config.integer("conv1d_width", minimum=2, maximum=MOST_KERNEL))


def _bfloat16(value: float) -> float:
    """The nearest number of 8 bits: the model multiplies by that one, whatever the type of its weights."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, 8)), exponent - 8)


RECURRENT_GEMMA = Family(
    "RecurrentGemma",
    _recurrent_gemma,
    TensorNames(
        final_norm="final_norm",
        attention_norm="temporal_pre_norm",
        ffn_norm="channel_pre_norm",
        q="temporal_block.q_proj",
        k="temporal_block.k_proj",
        v="temporal_block.v_proj",
        out="temporal_block.o_proj",
        gate="mlp_block.gate_proj",
        up="mlp_block.up_proj",
        down="mlp_block.down_proj",
    ),
    {
        "attention_window_size": 2048,
        "block_types": ["recurrent", "recurrent", "attention"],
        "conv1d_width": 4,
        "eos_token_id": 1,
        "logits_soft_cap": 30.0,
        "max_position_embeddings": LONGEST,
        "partial_rotary_factor": 0.5,
    },
    aliases={"sliding_window": "attention_window_size"},
    unread=("hidden_act", "layer_types", "mlp_bias"),
)
