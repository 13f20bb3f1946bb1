"""Models for images or sound beside text: the model of text that they have as a part, which is served alone.

Positions of such a model count more than one dimension (M-RoPE of Qwen) or look ahead (within an image of Gemma 3) only
where there are images. Of text alone they are those of the text model's family.
"""

from collections.abc import Mapping
from dataclasses import replace

from ...errors import UnsupportedModel
from ..facts import architecture_of
from ..json_object import JsonObject
from ..names import TensorNames
from .deepseek import DEEPSEEK_V3, MISTRAL4
from .family import Family
from .gemma import GEMMA3
from .llama import LLAMA
from .mistral import MINISTRAL3, MISTRAL
from .qwen2 import QWEN2, QWEN3
from .qwen3_next import QWEN3_5, QWEN3_5_MOE

WITH_MEDIA: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "Gemma 3 (4B to 27B)",
    "Idefics3ForConditionalGeneration": "Idefics 3",
    "InternVLForConditionalGeneration": "InternVL 3",
    "KimiK25ForConditionalGeneration": "Kimi K2.5 to K2.7",
    "Kimi_K25ForConditionalGeneration": "Kimi K2.5 to K2.7",
    "LlavaForConditionalGeneration": "LLaVA 1.5",
    "LlavaNextForConditionalGeneration": "LLaVA 1.6",
    "Mistral3ForConditionalGeneration": "Mistral Small 3.1 to 4, Ministral 3",
    "Qwen2VLForConditionalGeneration": "Qwen 2 VL",
    "Qwen2_5_VLForConditionalGeneration": "Qwen 2.5 VL",
    "Qwen3VLForConditionalGeneration": "Qwen 3 VL",
    "Qwen3_5ForConditionalGeneration": "Qwen 3.5 and 3.6",
    "Qwen3_5MoeForConditionalGeneration": "Qwen 3.5 and 3.6 MoE",
    "SmolVLMForConditionalGeneration": "SmolVLM",
}
"""By the class that `architectures` names: a title for people."""

_PART = "text_config"
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

_HEADS = {"language_model.model.": "language_model.lm_head"}
_PREFIXES = ("model.language_model.", *_HEADS, "model.text_model.", "model.")
"""Newer files of Transformers, older ones, those of Idefics and SmolVLM, and those that add to a model of text."""
_OTHER_PARTS = ("*vision*", "*visual*", "*projector*", "*connector*", "*image_newline")


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
        return replace(alone, prefixes=_PREFIXES, heads=_HEADS, ignored=(*alone.ignored, *_OTHER_PARTS))

    return replace(family, names=names, defaults={**family.defaults, **sizes, **others})


_QWEN_VL = _part(
    QWEN2,
    _sizes(152064, 8192, 29568, 80, 64),
    num_key_value_heads=8,
    rms_norm_eps=1e-5,
    rope_theta=1e6,
    max_window_layers=80,
)
_DEEPSEEK_V3 = _part(DEEPSEEK_V3, _sizes(129280, 7168, 18432, 61, 128))
_PARTS: Mapping[str, Family] = {
    "deepseek_v3": _DEEPSEEK_V3,
    "gemma3_text": _part(GEMMA3, _sizes(262208, 2304, 9216, 26, 8)),
    "kimi_k2": _DEEPSEEK_V3,
    "llama": _part(LLAMA, _sizes(32000, 4096, 11008, 32, 32)),
    "ministral3": _part(MINISTRAL3, _sizes(131072, 4096, 14336, 34, 32)),
    "mistral": _part(MISTRAL, _sizes(32000, 4096, 14336, 32, 32)),
    "mistral4": _part(MISTRAL4, _sizes(131072, 4096, 12288, 36, 32)),
    "qwen2": _part(QWEN2, _sizes(151936, 4096, 22016, 32, 32)),
    "qwen2_5_vl_text": _QWEN_VL,
    "qwen2_vl_text": _QWEN_VL,
    "qwen3": _part(QWEN3, _sizes(151936, 4096, 22016, 32, 32)),
    "qwen3_5_moe_text": _part(QWEN3_5_MOE, _sizes(248320, 2048, 512, 40, 16)),
    "qwen3_5_text": _part(QWEN3_5, _sizes(248320, 4096, 12288, 32, 16)),
    "qwen3_vl_text": _part(QWEN3, _sizes(151936, 4096, 22016, 32, 32), rope_theta=5e5, max_position_embeddings=128000),
}
"""By the `model_type` of the part."""

_FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Types of models whose files have the keys of the part among those of the whole, and the type of their part."""


def text_part(config: JsonObject) -> tuple[Family, JsonObject]:
    """Family and configuration of the model of text in a model of `WITH_MEDIA`.

    Raises UnsupportedModel where it is of a family that is not read so, ConfigurationError for wrong values.
    """
    whole = config.plain()
    flat = _PART not in config
    part = config if flat else config.child(_PART)
    kind = part.string("model_type")
    kind = _FLAT.get(kind, kind) if flat else kind
    if kind not in _PARTS:
        raise UnsupportedModel(
            f"{architecture_of(config)} with text of type {kind!r} is not supported; of models for images or sound "
            f"beside text, those with text of type {', '.join(sorted(_PARTS))} run, with text alone"
        )
    ours = {key: whole[key] for key in _OF_THE_WHOLE if whole.get(key) is not None}
    return _PARTS[kind], part.with_values({**ours, **_plain_rope(part)})


def _plain_rope(part: JsonObject) -> dict[str, object]:
    """What M-RoPE is for text, whose positions are the same in all dimensions."""
    key = "rope_scaling"
    scaling = part.child(key)
    names = [name for name in ("type", "rope_type") if name in scaling and scaling.string(name) == "mrope"]
    return {key: {**scaling.plain(), **dict.fromkeys(names, "default")}} if names else {}
