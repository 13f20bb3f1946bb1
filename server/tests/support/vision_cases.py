"""Tiny random models for images of every family of vision towers, here those that see one size, or tiles of it."""

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from support import qwen_vl, xcomposer
from support.author_layouts import internvl_chat, internvl_chat_internlm2, original_llava
from support.families import SIZES, Case
from support.media_cases import OVIS
from support.minicpm_v import published
from support.moe_cases import ARIA, LLAMA_4, STEP, beyond_bounds
from support.vision_case import (
    ANY,
    CLIP,
    LLAMA,
    ONE,
    PINPOINTS,
    PIXTRAL,
    SIGLIP,
    TOWER,
    VisionCase,
    case,
    expected,
    expected_logits,
    items,
    tiled,
    views_of,
)
from support.vision_cases_whole import WHOLE_CASES
from support.vision_inputs import (
    PROCESSOR,
    TOKEN,
    Item,
    as_clip,
    as_list,
    coarse,
    cut_into_tiles,
    filled_up,
    next_as_clip,
    same_size,
    tiles,
    whole_last,
    with_marks,
    with_sizes,
    with_tiles,
)


def _flat_features(model: PreTrainedModel, features: Tensor) -> Tensor:
    return model.multi_modal_projector(features.flatten(0, 1))[None]


def _calm(model: PreTrainedModel) -> None:
    """Hidden states are wide: with larger weights nothing but the largest scores would count."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and not name.startswith("llm."):
            parameter.data *= 0.3


def _minicpm_v(version: float, kind: str, drops_last: bool = False, **vision: Any) -> Case:
    """Heads of its queries have 128 elements."""
    values = {
        "text_config": {**SIZES, "model_type": kind, "hidden_size": 256},
        "vision_config": {**TOWER, "image_size": 40, **vision},
        "version": version,
        "query_num": 6,
        "image_size": 16,
        "image_token": TOKEN,
        "drop_vision_last_layer": drops_last,
    }
    return Case("", "minicpmv", values, published, prepare=_calm, sizes={})


def _qwen_vl() -> Case:
    """Heads of its queries have 128 elements, and its table of positions 16 rows and columns."""
    vision = {"image_size": 16, "patch_size": 4, "width": 16, "layers": 3, "heads": 2, "mlp_ratio": 1.55}
    values = {
        "text_config": {**SIZES, "model_type": "qwen2", "hidden_size": 256, "num_key_value_heads": 4},
        "vision_config": {**vision, "n_queries": 9, "output_dim": 256},
        "image_token": TOKEN,
    }
    return Case("", "qwen_vl_of_2023", values, qwen_vl.published, prepare=qwen_vl.calm, sizes={})


def _xcomposer2() -> Case:
    values = {"text_config": {**SIZES, **LLAMA}, "vision_config": TOWER, "image_token": TOKEN}
    return Case("", "xcomposer2_of_tests", values, xcomposer.published, prepare=xcomposer.calm, sizes={})


def _llava(vision: dict[str, Any], **whole: Any) -> Case:
    return case("llava", LLAMA, vision, image_token_index=TOKEN, **whole)


LLAMA4_TOWER = {
    **TOWER,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "projector_input_dim": 24,
    "projector_output_dim": 24,
    "vision_output_dim": 24,
}
STEP_TOWER = {"width": 16, "layers": 3, "heads": 2, "image_size": 24, "patch_size": 4}
TILED = {**TOWER, "image_size": [16, 16], "patch_size": [4, 4]}

VISION_CASES: dict[str, VisionCase] = {
    **WHOLE_CASES,
    "llava": VisionCase(_llava(CLIP), ONE, [(16, 20), (8, 8), (0, 0)], same_size),
    "llava full": VisionCase(
        _llava(CLIP, vision_feature_layer=[-2, 1], vision_feature_select_strategy="full", projector_hidden_act="relu"),
        ONE,
        [(32, 32)],
        same_size,
    ),
    "llava siglip": VisionCase(
        _llava(SIGLIP, vision_feature_layer=-1, vision_feature_select_strategy="full"), ONE, [(12, 16)], same_size
    ),
    "pixtral": VisionCase(
        _llava(PIXTRAL, vision_feature_layer=-1, vision_feature_select_strategy="full"),
        ANY,
        [(16, 18), (2, 16)],
        with_sizes,
    ),
    "mistral3": VisionCase(
        case(
            "mistral3",
            {"model_type": "mistral", "head_dim": 8},
            {**PIXTRAL, "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}},
            image_token_index=TOKEN,
        ),
        ANY,
        [(16, 20), (4, 16)],
        with_sizes,
    ),
    "internvl": VisionCase(
        case("internvl", {"model_type": "qwen2"}, TILED, image_token_id=TOKEN), ONE, [(8, 8)], same_size
    ),
    "internvl qk norm": VisionCase(
        case(
            "internvl",
            {"model_type": "qwen2"},
            {**TILED, "norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": True, "use_mean_pooling": False},
            image_token_id=TOKEN,
        ),
        ONE,
        [(8, 8)],
        same_size,
    ),
    "internvl chat": VisionCase(
        case("internvl", {"model_type": "qwen2"}, TILED, image_token_id=TOKEN, relayout=internvl_chat),
        ONE,
        [(8, 8)],
        same_size,
        placeholder="<IMG_CONTEXT>",
    ),
    "internvl chat internlm2": VisionCase(
        case("internvl", {"model_type": "llama"}, TILED, image_token_id=TOKEN, relayout=internvl_chat_internlm2),
        ONE,
        [(8, 8)],
        same_size,
        placeholder="<IMG_CONTEXT>",
    ),
    "internvl chat qk norm": VisionCase(
        case(
            "internvl",
            {"model_type": "qwen3", "head_dim": 8},
            {**TILED, "norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": True},
            image_token_id=TOKEN,
            vision_feature_layer=-2,
            relayout=internvl_chat,
        ),
        ONE,
        [(8, 8)],
        same_size,
        placeholder="<IMG_CONTEXT>",
    ),
    "llama4": VisionCase(
        case("llama4", {"model_type": "llama4_text", **LLAMA_4}, LLAMA4_TOWER, image_token_index=TOKEN),
        ONE,
        [(8, 8)],
        coarse,
        project=_flat_features,
        spliced=True,
    ),
    "llava next": VisionCase(
        case("llava_next", LLAMA, CLIP, image_token_index=TOKEN, image_grid_pinpoints=PINPOINTS),
        tiled((30, 60), (16, 16), (100, 11), (45, 60), (7, 90)),
        [(16, 20)],
        with_tiles,
    ),
    "granite vision": VisionCase(
        case(
            "llava_next",
            {"model_type": "granite", "embedding_multiplier": 3.0},
            {**SIGLIP, "image_size": 17},
            image_token_index=TOKEN,
            image_grid_pinpoints=[[17, 34], [34, 34]],
            vision_feature_layer=[0, 2, -1],
            vision_feature_select_strategy="full",
        ),
        tiled((30, 60), (40, 40), pinpoints=[[17, 34], [34, 34]], side=17),
        [(17, 20)],
        with_tiles,
        scale=3.0,
    ),
    "llava original": VisionCase(_llava(CLIP, relayout=original_llava), ONE, [(16, 20)], as_clip, placeholder="<unk>"),
    "llava original tiles": VisionCase(
        case(
            "llava_next",
            LLAMA,
            CLIP,
            image_token_index=TOKEN,
            image_grid_pinpoints=PINPOINTS,
            relayout=original_llava,
        ),
        tiled((30, 60), (16, 16), (100, 11), (45, 60), (7, 90)),
        [(16, 20)],
        next_as_clip,
        placeholder="<unk>",
    ),
    "llava onevision": VisionCase(
        case(
            "llava_onevision",
            {"model_type": "qwen2"},
            SIGLIP,
            image_token_index=TOKEN,
            image_grid_pinpoints=PINPOINTS,
            vision_aspect_ratio="anyres_max_3",
        ),
        [*tiled((30, 60), (45, 60), (100, 100)), Item([(16, 16)])],
        [(16, 20)],
        with_tiles,
    ),
    "ovis2": VisionCase(
        case(
            "ovis2",
            {"model_type": "qwen2"},
            {**TOWER, "vocab_size": 20, "hidden_stride": 2, "qkv_bias": True, "mlp_bias": True},
            image_token_id=TOKEN,
            **OVIS,
        ),
        [Item([(16, 16)]), Item([(16, 16), (16, 32)]), Item([(16, 16), (48, 32)])],
        [(16, 20)],
        cut_into_tiles,
        pack=with_marks,
        spliced=True,
    ),
    "idefics3": VisionCase(case("idefics3", LLAMA, TOWER, image_token_id=TOKEN), ONE, [(16, 20)], tiles),
    "smolvlm with a rest": VisionCase(
        case("smolvlm", LLAMA, {**TOWER, "image_size": 27}, scale_factor=3, image_token_id=TOKEN),
        items([(27, 27)], [(26, 25)] * 2),
        [(16, 18)],
        tiles,
    ),
    "aria": VisionCase(
        case(
            "aria",
            ARIA,
            {**TOWER, "image_size": 24},
            image_token_index=TOKEN,
            projector_patch_to_query_dict={"16": 3, "36": 5},
        ),
        items([(16, 16)], [(12, 24)], [(24, 20), (24, 24)]),
        [(20, 20), (16, 2)],
        filled_up,
    ),
    "minicpm-v 2.6": VisionCase(
        _minicpm_v(2.6, "qwen2"), ANY, [(16, 18), (2, 16)], as_list, {"hidden": 256}, placeholder="<unk>"
    ),
    "minicpm-v 4": VisionCase(
        _minicpm_v(4.0, "llama", drops_last=True, hidden_size=256),
        ANY,
        [(16, 18)],
        as_list,
        {"hidden": 256},
        placeholder="<unk>",
    ),
    "minicpm-v 4.5": VisionCase(
        _minicpm_v(4.5, "qwen3"), ANY, [(16, 18)], as_list, {"hidden": 256}, placeholder="<unk>"
    ),
    "qwen-vl": VisionCase(_qwen_vl(), ONE, [(16, 8), (8, 8), (20, 20)], as_clip, {"hidden": 256}),
    "xcomposer2": VisionCase(
        _xcomposer2(), ONE, [(16, 8), (20, 20)], as_clip, {"own_matrices": True}, placeholder="<unk>"
    ),
    "step3.7": VisionCase(
        Case(
            "",
            "step3p7",
            {"text_config": STEP, "vision_config": STEP_TOWER, "image_token_id": TOKEN},
            prepare=beyond_bounds,
            sizes={},
        ),
        items([(16, 16)], [(16, 16), (32, 48)], [*[(32, 32)] * 2, (48, 48)]),
        [(16, 20), (0, 16)],
        whole_last,
    ),
    "smolvlm": VisionCase(
        case("smolvlm", LLAMA, {**TOWER, "image_size": 52}, scale_factor=2, image_token_id=TOKEN),
        items([(56, 56)], [(24, 24)] * 2),
        [(16, 20)],
        tiles,
    ),
}
__all__ = ["PROCESSOR", "TOKEN", "VISION_CASES", "Item", "VisionCase", "expected", "expected_logits", "views_of"]
