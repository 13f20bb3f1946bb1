"""Qwen 1: Qwen 2 with other names, a fused matrix, and the gate second. Qwen-VL (2023) is the same beside a tower."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, DenseSpec
from .common import attention, decoder, pre_norm_layer
from .family import Family


def _qwen1(config: JsonObject) -> DecoderSpec:
    if not config.boolean("no_bias", default=True):
        raise UnsupportedModel("`no_bias` in config.json must be true for this family")
    mixer = replace(attention(config), qkv_bias=True, out_bias=False)
    inner = config.integer("intermediate_size")
    if inner % 2:
        raise config.error("intermediate_size", "even: it counts gate and up rows together")
    return decoder(config, pre_norm_layer(config, mixer, DenseSpec(inner // 2, "silu")))


_TOWER = "visual"


def _names(config: JsonObject) -> TensorNames:
    of_tower = (f"*{_TOWER}*",) if _TOWER in config else ()
    return replace(_NAMES, ignored=(*_NAMES.ignored, *of_tower))


_NAMES = TensorNames(
    prefixes=("transformer.",),
    embedding="wte",
    final_norm="ln_f",
    layer="h.{}.",
    attention_norm="ln_1",
    ffn_norm="ln_2",
    qkv="attn.c_attn",
    out="attn.c_proj",
    gate="mlp.w2",
    up="mlp.w1",
    down="mlp.c_proj",
    ignored=("*rotary_emb.inv_freq",),
)
QWEN1 = Family(
    "Qwen 1",
    _qwen1,
    _names,
    # Ends of a text, and of a turn in a chat; configurations do not name them.
    {"eos_token_id": [151643, 151645], "layer_norm_epsilon": 1e-6, "seq_length": 8192, "tie_word_embeddings": False},
    aliases={
        "rms_norm_eps": "layer_norm_epsilon",
        "rope_theta": "rotary_emb_base",
        # Beyond it, scores are scaled by length, which is not done here.
        "max_position_embeddings": "seq_length",
        "head_dim": "kv_channels",
    },
    unread=("head_dim", "num_key_value_heads", "partial_rotary_factor", "rope_parameters", "rope_scaling"),
    tower=_TOWER,
)
