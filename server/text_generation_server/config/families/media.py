"""Models for images or sound beside text: the model of text that they have as a part, which is served alone.

Positions of such a model count along several axes (M-RoPE of Qwen) or look ahead (within an image of Gemma 3) only
where there are images. Of text alone they are those of the text model's family.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from ...errors import UnsupportedModel
from ..facts import architecture_of
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import with_axes
from ..spec import AttentionSpec, DecoderSpec, LayerSpec
from .aria import ARIA
from .deepseek import DEEPSEEK_V3, MISTRAL4
from .family import Family
from .gemma import GEMMA3
from .gemma3n import GEMMA3N
from .gemma4 import GEMMA4
from .glm import GLM4
from .glm_moe import GLM4_MOE
from .glm_next import GLM_NEXT
from .granite import GRANITE
from .internlm import INTERNLM2
from .llama import LLAMA
from .llama4 import LLAMA4
from .minimax_m3 import MINIMAX_M3
from .mistral import MINISTRAL3, MISTRAL
from .qwen2 import QWEN2, QWEN3
from .qwen3_next import QWEN3_5, QWEN3_5_MOE
from .qwen_moe import QWEN3_MOE
from .step import STEP

WITH_MEDIA: Mapping[str, str] = {
    "AriaForConditionalGeneration": "Aria",
    "Gemma3ForConditionalGeneration": "Gemma 3 (4B to 27B)",
    "Gemma3nForConditionalGeneration": "Gemma 3n",
    "Gemma4ForConditionalGeneration": "Gemma 4",
    "Glm46VForConditionalGeneration": "GLM 4.6V",
    "Glm5NextForConditionalGeneration": "GLM 5.3 Flash",
    "Glm4vForConditionalGeneration": "GLM 4.1V",
    "Glm4vMoeForConditionalGeneration": "GLM 4.5V",
    "Idefics3ForConditionalGeneration": "Idefics 3",
    "InternVLChatModel": "InternVL 2.5 to 3.5 (remote code)",
    "InternVLForConditionalGeneration": "InternVL 3",
    "KimiK25ForConditionalGeneration": "Kimi K2.5 to K2.7",
    "Kimi_K25ForConditionalGeneration": "Kimi K2.5 to K2.7",
    "KimiVLForConditionalGeneration": "Kimi VL",
    "Llama4ForConditionalGeneration": "Llama 4",
    "LlavaForConditionalGeneration": "LLaVA 1.5",
    "LlavaLlamaForCausalLM": "LLaVA 1.5 and 1.6 (original)",
    "LlavaMistralForCausalLM": "LLaVA 1.5 and 1.6 (original)",
    "LlavaNextForConditionalGeneration": "LLaVA 1.6, Granite Vision 3",
    "LlavaOnevisionForConditionalGeneration": "LLaVA-OneVision",
    "MiniCPMV": "MiniCPM-V 2.6, 4 and 4.5",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMax M3",
    "Mistral3ForConditionalGeneration": "Mistral Small 3.1 to 4, Ministral 3",
    "Ovis2ForConditionalGeneration": "Ovis 2",
    "Qwen2VLForConditionalGeneration": "Qwen 2 VL",
    "Qwen2_5_VLForConditionalGeneration": "Qwen 2.5 VL",
    "Qwen3VLForConditionalGeneration": "Qwen 3 VL",
    "Qwen3VLMoeForConditionalGeneration": "Qwen 3 VL MoE",
    "Qwen3_5ForConditionalGeneration": "Qwen 3.5 and 3.6",
    "Qwen3_5MoeForConditionalGeneration": "Qwen 3.5 and 3.6 MoE",
    "SmolVLMForConditionalGeneration": "SmolVLM",
    "Step3p7ForConditionalGeneration": "Step 3.7",
}
"""By the class that `architectures` names: a title for people."""
_PARTS_OF_WHOLE = ("text_config", "llm_config")
"""Keys of the part: that of Transformers, and that of InternVL's own code."""
_OF_THE_WHOLE = (
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
    "dtype",
    "torch_dtype",
    "quantization_config",
    "compression_config",
    "quantization",
)
"""Keys of the whole model that count before those of its part."""

TEXT_PREFIXES: Mapping[str, str] = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.text_model.": "model.",
    "llm.model.": "model.",
    "llm.lm_head.": "lm_head.",
}
"""How names of the part begin in files of the whole, and without it: in newer files of Transformers, in older ones and
those of most authors, in those of Idefics and SmolVLM, and of MiniCPM-V. Others add to a model of text, whose names
stay.
"""
_PREFIXES = (*(before for before, alone in TEXT_PREFIXES.items() if alone == "model."), "model.")
VISION_PARTS = (
    "*vision*",
    "*visual*",
    "*projector*",
    "*connector*",
    "*image_newline",
    "*patch_merge_mlp*",
    "mlp1.*",
    "vpm.*",
    "resampler.*",
)
"""Patterns of the tensors of an encoder of images."""
OTHER_PARTS = (*VISION_PARTS, "*audio*")
"""Patterns of all tensors of the whole that are no part of the model of text."""


def _sizes(vocabulary: int, hidden: int, inner: int, layers: int, heads: int) -> dict[str, object]:
    """Files of these models leave out what is as in their class, sizes too."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def _part(family: Family, sizes: dict[str, object], **others: object) -> Family:
    """The family as a part of another model."""

    def names(config: JsonObject) -> TensorNames:
        alone = family.tensor_names(config)
        ignored = (f"*{each}" for each in alone.ignored)
        heads = {f"{whole}.model.": f"{whole}.{alone.head}" for whole in ("language_model", "llm")}
        return replace(alone, prefixes=_PREFIXES, heads=heads, ignored=(*ignored, *OTHER_PARTS))

    return replace(family, names=names, defaults={**family.defaults, **sizes, **others})


def _along_axes(family: Family, interleaved: bool) -> Family:
    """The family where positions of images count along axes."""

    def decoder(config: JsonObject) -> DecoderSpec:
        alone = family.decoder(config)

        def along_axes(layer: LayerSpec) -> LayerSpec:
            mixer = layer.mixer
            if not isinstance(mixer, AttentionSpec) or mixer.rope is None:
                return layer
            rope = with_axes(config, mixer.rope, mixer.head_dim, interleaved)
            return replace(layer, mixer=replace(mixer, rope=rope))

        return replace(alone, layers=tuple(along_axes(layer) for layer in alone.layers))

    return replace(family, decoder=decoder)


def _stacked(family: Family) -> Family:
    """The family where files have the experts of a layer in two tensors: published ones with inputs before outputs,
    those of Transformers 5 the other way.
    """

    def names(config: JsonObject) -> TensorNames:
        stack = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
        return replace(family.tensor_names(config), experts_stack=stack, stack_layout="as shaped")

    return replace(family, names=names)


_QWEN_VL = _part(
    _along_axes(QWEN2, interleaved=False),
    _sizes(152064, 8192, 29568, 80, 64),
    num_key_value_heads=8,
    rms_norm_eps=1e-5,
    rope_theta=1e6,
    max_window_layers=80,
)
_DEEPSEEK_V3 = _part(DEEPSEEK_V3, _sizes(129280, 7168, 18432, 61, 128))
_PARTS: Mapping[str, Family] = {
    "aria_text": _part(ARIA, _sizes(32000, 4096, 4096, 32, 32)),
    "deepseek_v3": _DEEPSEEK_V3,
    "gemma3_text": _part(GEMMA3, _sizes(262208, 2304, 9216, 26, 8)),
    "gemma3n_text": _part(GEMMA3N, _sizes(262400, 2048, 16384, 35, 8)),
    "gemma4_text": _part(GEMMA4, _sizes(262144, 2304, 9216, 30, 8)),
    "glm4v_moe_text": _part(
        _along_axes(GLM4_MOE, interleaved=False),
        _sizes(151424, 4096, 10944, 46, 96),
        attention_bias=True,
        max_position_embeddings=65536,
    ),
    "glm4v_text": _part(
        _along_axes(GLM4, interleaved=False),
        _sizes(151552, 4096, 13696, 40, 32),
        head_dim=None,
        partial_rotary_factor=1.0,
        rms_norm_eps=1e-5,
        max_position_embeddings=32768,
    ),
    "glm5_next_text": _part(GLM_NEXT, _sizes(154880, 4096, 12288, 45, 64)),
    "granite": _part(replace(GRANITE, unread=(*GRANITE.unread, "logits_scaling")), _sizes(32000, 4096, 11008, 32, 32)),
    "internlm2": _part(INTERNLM2, _sizes(103168, 4096, 11008, 32, 32)),
    "kimi_k2": _DEEPSEEK_V3,
    "llama": _part(LLAMA, _sizes(32000, 4096, 11008, 32, 32)),
    "llama4_text": _part(LLAMA4, _sizes(202048, 5120, 8192, 48, 40)),
    "minimax_m3_vl_text": _part(MINIMAX_M3, _sizes(200064, 6144, 3072, 60, 64)),
    "ministral3": _part(MINISTRAL3, _sizes(131072, 4096, 14336, 34, 32)),
    "mistral": _part(MISTRAL, _sizes(32000, 4096, 14336, 32, 32)),
    "mistral4": _part(MISTRAL4, _sizes(131072, 4096, 12288, 36, 32)),
    "qwen2": _part(QWEN2, _sizes(151936, 4096, 22016, 32, 32)),
    "qwen2_5_vl_text": _QWEN_VL,
    "qwen2_vl_text": _QWEN_VL,
    "qwen3": _part(QWEN3, _sizes(151936, 4096, 22016, 32, 32)),
    "qwen3_5_moe_text": _part(_along_axes(QWEN3_5_MOE, True), _sizes(248320, 2048, 512, 40, 16)),
    "qwen3_5_text": _part(_along_axes(QWEN3_5, True), _sizes(248320, 4096, 12288, 32, 16)),
    "qwen3_vl_moe_text": _part(
        _along_axes(_stacked(QWEN3_MOE), interleaved=True),
        _sizes(151936, 2048, 5632, 24, 16),
        num_key_value_heads=16,
        num_experts=60,
        num_experts_per_tok=4,
        moe_intermediate_size=1408,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        rope_theta=5e5,
        max_position_embeddings=128000,
    ),
    "qwen3_vl_text": _part(
        _along_axes(QWEN3, interleaved=True),
        _sizes(151936, 4096, 22016, 32, 32),
        rope_theta=5e5,
        max_position_embeddings=128000,
    ),
    "step3p5": _part(STEP, _sizes(128815, 4096, 11264, 45, 64)),
}
"""By the `model_type` of the part. The head is that of the whole, which knows no `logits_scaling`."""

_CLASSES: Mapping[str, str] = {
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Classes of Transformers for the part, by its `model_type`."""

_FLAT_CLASSES = {"LlavaLlamaForCausalLM": "llama", "LlavaMistralForCausalLM": "mistral"}
"""The same by the class, where types are not told apart."""
_VERSIONS = {2.6: "qwen2", 4.0: "llama", 4.5: "qwen3"}
"""Types by the `version` of MiniCPM-V, whose files have the keys of the part among those of the whole."""
_UNNAMED = {"kimi_vl": "deepseek_v3"}
"""Types of models whose files may leave out the type of their part."""
_FLAT = {"glm5_next": "glm5_next_text", "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Types of models whose files have the keys of the part among those of the whole, and the type of their part."""


def text_part(config: JsonObject) -> tuple[Family, JsonObject]:
    """Family and configuration of the model of text in a model of `WITH_MEDIA`.

    Raises UnsupportedModel where it is of a family that is not read so, ConfigurationError for wrong values.
    """
    kind = _kind(config)
    if kind not in _PARTS:
        raise _unknown(config, kind, _PARTS)
    return _PARTS[kind], _alone(config, {})


def class_of_part(config: JsonObject) -> JsonObject:
    """What `config.json` of that model of text would be, with its class of Transformers.

    Raises UnsupportedModel where the library has none, ConfigurationError for wrong values.
    """
    kind = _kind(config)
    if kind not in _CLASSES:
        raise _unknown(config, kind, _CLASSES)
    return _alone(config, {"architectures": [_CLASSES[kind]]})


def _kind(config: JsonObject) -> str:
    """The `model_type` of the part."""
    if (part := _part_of(config)) is not None:
        return part.string("model_type", default=_UNNAMED.get(config.string("model_type", default="")))
    if (kind := _FLAT_CLASSES.get(architecture_of(config))) is not None:
        return kind
    if architecture_of(config) == "MiniCPMV":
        return _of_version(config)
    kind = config.string("model_type")
    return _FLAT.get(kind, kind)


def _of_version(config: JsonObject) -> str:
    version = config.optional_number("version")
    if version not in _VERSIONS:
        known = ", ".join(str(each) for each in _VERSIONS)
        raise UnsupportedModel(f"MiniCPM-V with `version` {version} is not supported; known are {known}")
    return _VERSIONS[version]


def _part_of(config: JsonObject) -> JsonObject | None:
    """The part, where its keys stand apart."""
    return next((config.child(key) for key in _PARTS_OF_WHOLE if key in config), None)


def _unknown(config: JsonObject, kind: str, known: Collection[str]) -> UnsupportedModel:
    how = " through Transformers" if known is _CLASSES else ""
    return UnsupportedModel(
        f"{architecture_of(config)} with text of type {kind!r} is not supported{how}; of models for images or sound "
        f"beside text, those with text of type {', '.join(sorted(known))} run{how}"
    )


def _alone(config: JsonObject, values: Mapping[str, object]) -> JsonObject:
    """The part, with what the whole says about it."""
    part = _part_of(config) or config
    whole = config.plain()
    ours = {key: whole[key] for key in _OF_THE_WHOLE if whole.get(key) is not None}
    return part.with_values({**ours, **_plain_rope(part), **values})


def _plain_rope(part: JsonObject) -> dict[str, object]:
    """What M-RoPE is for text, whose positions are the same in all dimensions."""
    key = "rope_scaling"
    scaling = part.child(key)
    names = [name for name in ("type", "rope_type") if name in scaling and scaling.string(name) == "mrope"]
    return {key: {**scaling.plain(), **dict.fromkeys(names, "default")}} if names else {}
