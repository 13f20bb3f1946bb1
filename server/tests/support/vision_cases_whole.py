"""The same for those that look at an image as a whole, in any size: Qwen, GLM, Gemma, MiniMax and Kimi."""

from typing import Any

import torch
from transformers import PreTrainedModel

from support.author_layouts import KIMI_CLASS, kimi, kimi_vl
from support.families import SIZES, Case, Raw, State
from support.gemma_cases import GEMMA_4_EXPERTS, GEMMA_4_SMALL, with_scalars
from support.media_cases import GLM_EXPERTS, GLM_ROPE, KIMI, QWEN_EXPERTS
from support.moe_cases import MINIMAX_M3, with_corrections
from support.recurrent_cases import DELTA, EXPERTS
from support.vision_case import OF_GEMMA4, OF_QWEN, ONE, SIGLIP, TOWER, VisionCase, case
from support.vision_inputs import TOKEN, gemma4_patches, kimi_patches, qwen, same_size


def _with_bounds(model: PreTrainedModel) -> None:
    """Bounds of matrices, factors of what is averaged, and scales of layers, which are buffers that files have."""
    with_scalars(model)
    for index, (name, buffer) in enumerate(model.named_buffers()):
        end = name.rpartition(".")[2]
        if end in ("input_min", "output_min", "input_max", "output_max"):
            buffer.fill_((1.0 if end.endswith("max") else -1.0) * (0.7 + index % 7 / 10))
        if end in ("std_bias", "std_scale"):
            generator = torch.Generator().manual_seed(3)
            buffer.normal_(mean=0.5, std=0.2, generator=generator)


def _gemma4_case(text: Raw, **vision: Any) -> Case:
    values = {
        "text_config": {**SIZES, "model_type": "gemma4_text", **text},
        "vision_config": {**GEMMA_TOWER, **vision},
        "image_token_id": TOKEN,
    }
    return Case("", "gemma4", values, sizes={}, prepare=_with_bounds)


def _published_kimi(state: State, raw: Raw) -> tuple[State, Raw]:
    """Transformers writes two names that the authors' files do not have."""
    state, raw = kimi(state, raw)
    names = {
        "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
        "model.mm_projector.pre_norm.": "mm_projector.pre_norm.",
    }
    for old, new in names.items():
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    return state, raw


ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}}
QWEN: dict[str, Any] = {
    "depth": 4,
    "hidden_size": 16,
    "out_hidden_size": 32,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 4,
}
GLM_TOWER = {**QWEN, "image_size": 24}
KIMI_TOWER = {
    **{key: TOWER[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "patch_size")},
    "num_attention_heads": 2,
    "pos_emb_height": 5,
    "pos_emb_width": 5,
}
GEMMA_TOWER = {
    **{key: TOWER[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "patch_size")},
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "pooling_kernel_size": 2,
    "position_embedding_size": 50,
}
GEMMA = {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 4}
ROPE_3_5 = {"rope_parameters": {**ROPE["rope_parameters"], "mrope_interleaved": True, "partial_rotary_factor": 0.25}}
ROPE_3_5["rope_parameters"]["mrope_section"] = [1, 1, 0]

WHOLE_CASES: dict[str, VisionCase] = {
    "qwen2 vl": VisionCase(
        case(
            "qwen2_vl",
            ROPE,
            {"depth": 3, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4},
            image_token_id=TOKEN,
        ),
        OF_QWEN,
        [(16, 20), (0, 8)],
        qwen,
        {"axes": True},
        token_types="mm_token_type_ids",
    ),
    "qwen2.5 vl": VisionCase(
        case(
            "qwen2_5_vl",
            ROPE,
            {**QWEN, "window_size": 16, "fullatt_block_indexes": [1, 3]},
            image_token_id=TOKEN,
        ),
        OF_QWEN,
        [(16, 20)],
        qwen,
        {"axes": True},
        token_types="mm_token_type_ids",
    ),
    "qwen3 vl": VisionCase(
        case(
            "qwen3_vl",
            {"head_dim": 8, **ROPE},
            {**QWEN, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2]},
            image_token_id=TOKEN,
        ),
        OF_QWEN,
        [(16, 20)],
        qwen,
        {"axes": True, "levels": 3},
        token_types="mm_token_type_ids",
    ),
    "qwen3 vl moe": VisionCase(
        case(
            "qwen3_vl_moe",
            {"head_dim": 8, **QWEN_EXPERTS, **ROPE},
            {**QWEN, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2]},
            image_token_id=TOKEN,
        ),
        OF_QWEN,
        [(16, 20)],
        qwen,
        {"axes": True, "levels": 3},
        token_types="mm_token_type_ids",
    ),
    "qwen3.5 moe": VisionCase(
        case(
            "qwen3_5_moe",
            {**DELTA, **EXPERTS, **ROPE_3_5, "moe_intermediate_size": 24},
            {**QWEN, "num_position_embeddings": 25},
            image_token_id=TOKEN,
        ),
        OF_QWEN,
        [(16, 20)],
        qwen,
        {"axes": True},
        token_types="mm_token_type_ids",
    ),
    "qwen3.5": VisionCase(
        case("qwen3_5", {**DELTA, **ROPE_3_5}, {**QWEN, "num_position_embeddings": 25}, image_token_id=TOKEN),
        OF_QWEN,
        [(16, 20)],
        qwen,
        {"axes": True},
        token_types="mm_token_type_ids",
    ),
    "gemma3": VisionCase(
        case("gemma3", GEMMA, SIGLIP, mm_tokens_per_image=4, image_token_index=TOKEN),
        ONE,
        [(16, 24)],
        same_size,
        {"whole_spans": True},
        token_types="token_type_ids",
    ),
    "gemma4": VisionCase(
        _gemma4_case({**GEMMA_4_EXPERTS, "use_bidirectional_attention": "vision"}, standardize=True),
        OF_GEMMA4,
        [(16, 20), (208, 8)],
        gemma4_patches,
        {"whole_spans": True},
        token_types="mm_token_type_ids",
    ),
    "gemma4 small": VisionCase(
        _gemma4_case({**GEMMA_4_SMALL, "pad_token_id": 7}, use_clipped_linears=True),
        OF_GEMMA4,
        [(16, 20)],
        gemma4_patches,
    ),
    "glm4v": VisionCase(
        case("glm4v", {"rope_parameters": GLM_ROPE}, GLM_TOWER, image_token_id=TOKEN),
        OF_QWEN,
        [(16, 20)],
        qwen,
        {"axes": True},
        token_types="mm_token_type_ids",
        rounding=0.1,
    ),
    "glm4v moe": VisionCase(
        Case(
            "",
            "glm4v_moe",
            {
                "text_config": {**SIZES, **GLM_EXPERTS},
                "vision_config": {**GLM_TOWER, "attention_bias": True},
                "image_token_id": TOKEN,
            },
            prepare=with_corrections,
            sizes={},
        ),
        OF_QWEN,
        [(16, 20)],
        qwen,
        {"axes": True},
        token_types="mm_token_type_ids",
    ),
    "minimax m3": VisionCase(
        Case(
            "",
            "minimax_m3_vl",
            {
                "text_config": {**SIZES, **MINIMAX_M3, "model_type": "minimax_m3_vl_text"},
                "vision_config": TOWER,
                "projector_hidden_size": 20,
                "image_token_index": TOKEN,
            },
            prepare=with_corrections,
            sizes={},
        ),
        OF_QWEN,
        [(16, 20)],
        qwen,
    ),
    "kimi k2.5": VisionCase(
        Case(
            "",
            "kimi_k25",
            {
                "text_config": {**SIZES, **KIMI},
                "vision_config": KIMI_TOWER,
                "projection_hidden_size": 16,
                "image_token_id": TOKEN,
            },
            _published_kimi,
            prepare=with_corrections,
            architecture=KIMI_CLASS,
            sizes={},
        ),
        OF_QWEN,
        [(16, 20)],
        kimi_patches,
    ),
    "kimi vl": VisionCase(
        Case(
            "",
            "kimi_k25",
            {
                "text_config": {**SIZES, **KIMI},
                "vision_config": KIMI_TOWER,
                "projection_hidden_size": 16,
                "image_token_id": TOKEN,
            },
            kimi_vl,
            prepare=with_corrections,
            architecture="KimiVLForConditionalGeneration",
            sizes={},
        ),
        OF_QWEN,
        [(16, 20)],
        kimi_patches,
    ),
}
