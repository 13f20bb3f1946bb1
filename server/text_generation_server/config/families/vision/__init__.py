"""Families of vision towers: from `config.json` and `preprocessor_config.json` to a `VisionSpec`."""

from collections.abc import Mapping
from pathlib import Path

from ....errors import UnsupportedModel
from ...json_object import JsonObject
from ...pixels import read_pixels
from ...vision import VisionSpec
from .aria import ARIA_VISION
from .family import VisionFamily, Whole
from .gemma import GEMMA3_VISION
from .gemma4 import GEMMA4_VISION
from .glm import GLM4V, GLM4V_MOE
from .kimi import KIMI_K25, KIMI_VL
from .llama4 import LLAMA4_VISION
from .llava import LLAVA
from .llava_next import LLAVA_NEXT, LLAVA_ONEVISION
from .llava_original import LLAVA_ORIGINAL
from .minicpm import MINICPM_V
from .minimax_m3 import MINIMAX_M3_VISION
from .ovis import OVIS2
from .pixtral import MISTRAL3
from .qwen import QWEN2_5_VL, QWEN2_VL, QWEN3_5_VISION, QWEN3_VL
from .qwen_original import QWEN_VL
from .shuffled import IDEFICS3, INTERNVL, INTERNVL_CHAT
from .step import STEP3P7_VISION
from .xcomposer import XCOMPOSER2_VISION

TOWERS: Mapping[str, VisionFamily] = {
    "AriaForConditionalGeneration": ARIA_VISION,
    "Gemma3ForConditionalGeneration": GEMMA3_VISION,
    "Gemma4ForConditionalGeneration": GEMMA4_VISION,
    "Glm46VForConditionalGeneration": GLM4V,
    "Glm4vForConditionalGeneration": GLM4V,
    "Glm4vMoeForConditionalGeneration": GLM4V_MOE,
    "Idefics3ForConditionalGeneration": IDEFICS3,
    "InternLMXComposer2ForCausalLM": XCOMPOSER2_VISION,
    "InternVLChatModel": INTERNVL_CHAT,
    "InternVLForConditionalGeneration": INTERNVL,
    "KimiK25ForConditionalGeneration": KIMI_K25,
    "Kimi_K25ForConditionalGeneration": KIMI_K25,
    "KimiVLForConditionalGeneration": KIMI_VL,
    "Llama4ForConditionalGeneration": LLAMA4_VISION,
    "LlavaForConditionalGeneration": LLAVA,
    "LlavaLlamaForCausalLM": LLAVA_ORIGINAL,
    "LlavaMistralForCausalLM": LLAVA_ORIGINAL,
    "LlavaNextForConditionalGeneration": LLAVA_NEXT,
    "LlavaOnevisionForConditionalGeneration": LLAVA_ONEVISION,
    "MiniCPMV": MINICPM_V,
    "MiniMaxM3SparseForConditionalGeneration": MINIMAX_M3_VISION,
    "Mistral3ForConditionalGeneration": MISTRAL3,
    "Ovis2ForConditionalGeneration": OVIS2,
    "QWenLMHeadModel": QWEN_VL,
    "Qwen2VLForConditionalGeneration": QWEN2_VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN2_5_VL,
    "Qwen3VLForConditionalGeneration": QWEN3_VL,
    "Qwen3VLMoeForConditionalGeneration": QWEN3_VL,
    "Qwen3_5ForConditionalGeneration": QWEN3_5_VISION,
    "Qwen3_5MoeForConditionalGeneration": QWEN3_5_VISION,
    "SmolVLMForConditionalGeneration": IDEFICS3,
    "Step3p7ForConditionalGeneration": STEP3P7_VISION,
}
"""By the class that `architectures` names. Other models of images are served with text alone."""


def read_vision(architecture: str, config: JsonObject, text: JsonObject, folder: Path | None) -> VisionSpec:
    """Reads the encoder of images of a model. `config` is all of its `config.json`, `text` the part that is a model of
    text, with the defaults of that family.

    Raises UnsupportedModel where images cannot be served, ModelFilesError or ConfigurationError for wrong files.
    """
    family = TOWERS.get(architecture)
    if family is None:
        raise UnsupportedModel(f"the vision tower of {architecture} is not supported")
    whole = config.for_family(family.of_whole, {})
    vision = whole.child(family.part).for_family(family.defaults, {}, family.older)
    read = Whole(whole, vision, text, family.pixels or read_pixels(folder), folder)
    spec = family.read(read)
    if spec.hidden != read.hidden:
        raise vision.error("out_hidden_size", f"{read.hidden}, the hidden size of the decoder")
    return spec


__all__ = ["TOWERS", "VisionFamily", "read_vision"]
