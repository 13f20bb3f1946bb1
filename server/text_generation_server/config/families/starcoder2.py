"""StarCoder 2: layer norms, a feed-forward network without a gate, and sliding-window attention with RoPE."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, LayerSpec
from .common import attention, decoder, layer_norm, plain, window
from .family import Family


def _starcoder2(config: JsonObject) -> DecoderSpec:
    norm, bias = layer_norm(config), config.boolean("use_bias", default=True)
    mixer = replace(attention(config), qkv_bias=bias, out_bias=bias, window=window(config))
    return decoder(config, LayerSpec(mixer, plain(config, "intermediate_size", bias=bias), norm, norm), norm)


STARCODER2 = Family(
    "StarCoder 2",
    _starcoder2,
    TensorNames(up="mlp.c_fc", down="mlp.c_proj"),
    {
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "use_bias": True,
    },
    unread=("layer_norm_eps", "layer_norm_epsilon", "partial_rotary_factor"),
)
