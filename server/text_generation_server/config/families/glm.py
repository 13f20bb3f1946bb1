"""GLM-4 in its three layouts, and ChatGLM 2 and 3: half of each head is rotated, in interleaved pairs."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..rotary import RopeSpec
from ..spec import AttentionSpec, DecoderSpec, DenseSpec
from .common import Heads, attention, decoder, gated, pre_norm_layer, rms_norm, sandwich_layer
from .family import Family

_DEFAULTS = {
    "attention_bias": True,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-07,
    "eos_token_id": [151329, 151336, 151338],
}
_CHATGLM_NAMES = TensorNames(
    prefixes=("transformer.",),
    embedding="embedding.word_embeddings",
    final_norm="encoder.final_layernorm",
    head="transformer.output_layer",
    layer="encoder.layers.{}.",
    qkv="self_attention.query_key_value",
    out="self_attention.dense",
    gate_up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ignored=("*rotary_pos_emb.inv_freq",),
)
_CHATGLM_IS = (
    ("rmsnorm", True),
    ("post_layer_norm", True),
    ("multi_query_attention", True),
    ("apply_residual_connection_post_layernorm", False),
)
_VOCABULARY_OF_2_AND_3 = 65024
_CHATGLM_KEYS = {
    "vocab_size": "padded_vocab_size",
    "intermediate_size": "ffn_hidden_size",
    "num_hidden_layers": "num_layers",
    "head_dim": "kv_channels",
    "num_key_value_heads": "multi_query_group_num",
    "rms_norm_eps": "layernorm_epsilon",
    "max_position_embeddings": "seq_length",
}


def _mixer(config: JsonObject) -> AttentionSpec:
    rope = parse_rope(config, Heads.of(config).size, interleaved=True)
    return replace(attention(config), rope=rope, out_bias=False)


def _glm(config: JsonObject) -> DecoderSpec:
    return decoder(config, pre_norm_layer(config, _mixer(config), gated(config)))


def _glm4(config: JsonObject) -> DecoderSpec:
    return decoder(config, sandwich_layer(_mixer(config), gated(config), rms_norm(config)))


def _chatglm(config: JsonObject) -> DecoderSpec:
    if "position_encoding_2d" in config:
        raise UnsupportedModel("`position_encoding_2d` in config.json: ChatGLM 1 is not supported, ChatGLM 2 and 3 are")
    for key, needed in _CHATGLM_IS:
        if config.boolean(key, default=needed) != needed:
            raise UnsupportedModel(f"`{key}` in config.json must be {str(needed).lower()} for this family")
    mixer = _mixer(config)
    bias = config.boolean("add_bias_linear", default=False)
    rope = _stretched(config, parse_rope(config, mixer.head_dim, interleaved=True))
    qkv_bias = bias or config.boolean("add_qkv_bias", default=True)
    mixer = replace(mixer, rope=rope, qkv_bias=qkv_bias, out_bias=bias)
    ffn = DenseSpec(config.integer("intermediate_size"), "silu", in_bias=bias, out_bias=bias)
    return decoder(config, pre_norm_layer(config, mixer, ffn))


def _stretched(config: JsonObject, rope: RopeSpec) -> RopeSpec:
    """`rope_ratio` divides positions in ChatGLM 2, and multiplies the base in ChatGLM 3 and GLM-4."""
    ratio, name = config.number("rope_ratio", default=1.0), config.string("_name_or_path", default="").lower()
    if ratio == 1.0:
        return rope
    if "chatglm2" in name:
        original = max(1, int(config.integer("max_position_embeddings") / ratio))
        return replace(rope, rope_type="linear", factor=ratio, original_max_position_embeddings=original)
    if "chatglm3" not in name and config.integer("vocab_size") == _VOCABULARY_OF_2_AND_3:
        raise UnsupportedModel(
            "`rope_ratio` in config.json: ChatGLM 2 and 3 mean different things by it; let `_name_or_path` there name "
            "the model that this one comes from, such as THUDM/chatglm3-6b-32k"
        )
    return replace(rope, theta=rope.theta * ratio)


_FUSED = TensorNames(gate_up="mlp.gate_up_proj")
GLM = Family("GLM-4 (2024)", _glm, _FUSED, _DEFAULTS, unread=("mlp_bias",))
GLM4 = Family(
    "GLM-4 (0414)",
    _glm4,
    replace(_FUSED, attention_output_norm="post_self_attn_layernorm", ffn_output_norm="post_mlp_layernorm"),
    _DEFAULTS,
    unread=("mlp_bias",),
)
CHATGLM = Family(
    "ChatGLM 2 and 3",
    _chatglm,
    _CHATGLM_NAMES,
    {"partial_rotary_factor": 0.5, "layernorm_epsilon": 1e-5, "seq_length": 2048, "tie_word_embeddings": False},
    aliases=_CHATGLM_KEYS,
    unread=("partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta"),
)
