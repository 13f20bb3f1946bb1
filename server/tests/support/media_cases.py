"""Models for images beside text, whose text part is served, as variants that their files can have."""

from typing import Any

import torch

from support.author_layouts import (
    KIMI_CLASS,
    internvl_chat,
    internvl_chat_internlm2,
    kimi,
    kimi_vl,
    layers,
    original_llava,
    original_mistral,
)
from support.families import SIZES, Case, Raw, State
from support.latent_cases import EXPERTS as LATENT_EXPERTS
from support.latent_cases import GROWING
from support.minicpm_v import inside
from support.moe_cases import ARIA, LLAMA_4, MINIMAX_M3, STEP, STEP_IMAGES, beyond_bounds, with_corrections
from support.recurrent_cases import DELTA, EXPERTS, stacked_experts

IMAGES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
CLIP = {**IMAGES, "model_type": "clip_vision_model"}
QWEN_IMAGES: dict[str, Any] = {"depth": 1, "hidden_size": 16, "out_hidden_size": 32, "num_heads": 2}


def _case(family: str, model_type: str, text: dict[str, Any], images: dict[str, Any], **options: Any) -> Case:
    values = {"text_config": {**SIZES, **text}, "vision_config": images}
    return Case(family, model_type, values, sizes={}, **options)


def _m_rope(*section: int) -> dict[str, Any]:
    """Rotary embedding of positions in time, height and width, which share the pairs of a head."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": section}}


def _flat(state: State, raw: Raw) -> tuple[State, Raw]:
    """The published files of Qwen 2 and 2.5 VL, which have the keys of text among those of the whole."""
    text = raw.pop("text_config")
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    return state, {**text, "rope_theta": rope["rope_theta"], "rope_scaling": scaling, **raw}


def _authors_of_m3(state: State, raw: Raw) -> tuple[State, Raw]:
    """The keys of the published files of MiniMax M3."""
    text = {**raw["text_config"], "hidden_act": "swigluoai"}
    text["moe_layer_freq"] = [int(kind == "sparse") for kind in text.pop("mlp_layer_types")]
    names = {"index_n_heads": "num_index_heads", "index_head_dim": "index_dim", "index_block_size": "block_size"}
    names |= {"index_topk_blocks": "topk_blocks", "index_local_blocks": "local_block"}
    sparse = {f"sparse_{name}": text.pop(key) for key, name in names.items()}
    sparse["sparse_attention_freq"] = [int(kind != "full_attention") for kind in text.pop("layer_types")]
    return state, {**raw, "text_config": {**text, "sparse_attention_config": sparse}}


def _newer(state: State, raw: Raw) -> tuple[State, Raw]:
    """The names that some versions of Transformers wrote."""
    rules = ("language_model.model.", "model.language_model."), ("language_model.lm_head", "lm_head")
    for old, new in rules:
        state = {name.replace(old, new, 1) if name.startswith(old) else name: each for name, each in state.items()}
    return state, raw


def _of_part(state: State, raw: Raw) -> tuple[State, Raw]:
    """Nothing is said of the head by the whole: the part decides."""
    del raw["tie_word_embeddings"]
    return state, raw


def _inputs_first(state: State, raw: Raw) -> tuple[State, Raw]:
    """The published files of Qwen 3 VL MoE."""
    return {name: each.transpose(1, 2) if ".mlp.experts." in name else each for name, each in state.items()}, raw


def _inside_llama4(state: State, raw: Raw) -> tuple[State, Raw]:
    """The published files, of which the model of text is a part."""
    inside = {f"language_model.{name}": tensor for name, tensor in state.items()}
    whole = {key: raw.pop(key) for key in ("eos_token_id", "dtype", "tie_word_embeddings") if key in raw}
    others = {"vision_model.class_embedding": torch.zeros(2), "multi_modal_projector.linear_1.weight": torch.zeros(2)}
    return {**inside, **others}, {**whole, "architectures": [LLAMA4_CLASS], "model_type": "llama4", "text_config": raw}


MINICPM_V = "MiniCPM-V 2.6, 4 and 4.5"
LLAMA4_CLASS = "Llama4ForConditionalGeneration"
KIMI = {**LATENT_EXPERTS, "model_type": "deepseek_v3", "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0}
KIMI_IMAGES = {key: IMAGES[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "patch_size")}
KIMI_IMAGES |= {"num_attention_heads": 2, "pos_emb_height": 4, "pos_emb_width": 4}
M_ROPE = _m_rope(1, 1, 0)
M_ROPE["rope_parameters"] |= {"mrope_interleaved": True, "partial_rotary_factor": 0.25}
GEMMA = {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 12}

GLM_ROPE = {**_m_rope(1, 0, 1)["rope_parameters"], "partial_rotary_factor": 0.5}
GLM_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "rope_parameters": GLM_ROPE,
}
QWEN_EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
OVIS: dict[str, Any] = {
    "hidden_size": SIZES["hidden_size"],
    "vocab_size": SIZES["vocab_size"],
    "visual_indicator_token_ids": [91, 92, 93, 94, 95],
}
GLM_IMAGES = {**QWEN_IMAGES, "intermediate_size": 16, "image_size": 8, "patch_size": 4}

MEDIA_CASES: dict[str, Case] = {
    "gemma3 images": _case("Gemma 3 (4B to 27B)", "gemma3", GEMMA, IMAGES),
    "gemma3 images newer": _case("Gemma 3 (4B to 27B)", "gemma3", GEMMA, IMAGES, relayout=_newer),
    "glm4v": _case("GLM 4.1V", "glm4v", {"rope_parameters": GLM_ROPE}, GLM_IMAGES),
    "glm4v moe": _case("GLM 4.5V", "glm4v_moe", GLM_EXPERTS, GLM_IMAGES, prepare=with_corrections),
    "glm4.6v": _case(
        "GLM 4.6V",
        "glm46v",
        {"model_type": "glm4v_text", "rope_parameters": GLM_ROPE},
        {"model_type": "glm4v_vision", **GLM_IMAGES},
    ),
    "idefics3": _case("Idefics 3", "idefics3", {"model_type": "llama"}, IMAGES),
    "internvl": _case(
        "InternVL 3", "internvl", {"model_type": "qwen2"}, {**IMAGES, "image_size": [8, 8], "patch_size": [4, 4]}
    ),
    "internvl qwen3": _case(
        "InternVL 3",
        "internvl",
        {"model_type": "qwen3", "head_dim": 16},
        {**IMAGES, "image_size": [8, 8], "patch_size": [4, 4]},
    ),
    "internvl chat": _case(
        "InternVL 2.5 to 3.5 (remote code)",
        "internvl",
        {"model_type": "qwen2"},
        {**IMAGES, "image_size": [8, 8], "patch_size": [4, 4]},
        relayout=internvl_chat,
        architecture="InternVLChatModel",
    ),
    "internvl chat internlm2": _case(
        "InternVL 2.5 to 3.5 (remote code)",
        "internvl",
        {"model_type": "llama"},
        {**IMAGES, "image_size": [8, 8], "patch_size": [4, 4]},
        relayout=internvl_chat_internlm2,
        architecture="InternVLChatModel",
    ),
    "aria": _case("Aria", "aria", ARIA, {**IMAGES, "model_type": "idefics3_vision"}),
    "llava": _case("LLaVA 1.5", "llava", {"model_type": "llama"}, CLIP),
    "llava original": _case(
        "LLaVA 1.5 and 1.6 (original)",
        "llava",
        {"model_type": "llama"},
        CLIP,
        relayout=original_llava,
        architecture="LlavaLlamaForCausalLM",
    ),
    "llava original mistral": _case(
        "LLaVA 1.5 and 1.6 (original)",
        "llava_next",
        {"model_type": "mistral", "sliding_window": None},
        CLIP,
        relayout=original_mistral,
        architecture="LlavaMistralForCausalLM",
    ),
    "llava newer": _case("LLaVA 1.5", "llava", {"model_type": "llama"}, CLIP, relayout=_newer),
    "llava next": _case(
        "LLaVA 1.6, Granite Vision 3", "llava_next", {"model_type": "mistral", "sliding_window": None}, CLIP
    ),
    "llava onevision": _case(
        "LLaVA-OneVision", "llava_onevision", {"model_type": "qwen2"}, {**IMAGES, "model_type": "siglip_vision_model"}
    ),
    "granite vision": _case(
        "LLaVA 1.6, Granite Vision 3",
        "llava_next",
        {"model_type": "granite", "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5},
        {**IMAGES, "model_type": "siglip_vision_model"},
    ),
    "kimi k2.5": _case(
        "Kimi K2.5 to K2.7",
        "kimi_k25",
        KIMI,
        KIMI_IMAGES,
        relayout=kimi,
        prepare=with_corrections,
        architecture=KIMI_CLASS,
    ),
    "kimi k2.5 with a head": Case(
        "Kimi K2.5 to K2.7",
        "kimi_k25",
        {"text_config": {**SIZES, **KIMI}, "vision_config": KIMI_IMAGES, "tie_word_embeddings": False},
        layers,
        prepare=with_corrections,
        sizes={},
    ),
    "kimi vl": _case(
        "Kimi VL",
        "kimi_k25",
        KIMI,
        KIMI_IMAGES,
        relayout=kimi_vl,
        prepare=with_corrections,
        architecture="KimiVLForConditionalGeneration",
    ),
    "minimax m3 images": _case(
        "MiniMax M3",
        "minimax_m3_vl",
        {**MINIMAX_M3, "model_type": "minimax_m3_vl_text"},
        {**IMAGES, "image_size": 8, "spatial_merge_size": 1},
        relayout=_authors_of_m3,
        prepare=with_corrections,
    ),
    "step images": Case(
        "Step 3.7",
        "step3p7",
        {"text_config": STEP, "vision_config": STEP_IMAGES},
        prepare=beyond_bounds,
        sizes={},
    ),
    "minicpm-v 2.6": Case(MINICPM_V, "qwen2", relayout=inside(2.6), architecture="MiniCPMV"),
    "minicpm-v 4": Case(MINICPM_V, "llama", {"head_dim": 12}, inside(4.0), architecture="MiniCPMV"),
    "minicpm-v 4.5": Case(MINICPM_V, "qwen3", {"head_dim": 12}, inside(4.5), architecture="MiniCPMV"),
    "ministral 3 images": _case(
        "Mistral Small 3.1 to 4, Ministral 3",
        "mistral3",
        {"model_type": "ministral3", "head_dim": 8, "rope_parameters": GROWING},
        {**IMAGES, "model_type": "pixtral"},
    ),
    "mistral 4 images": _case(
        "Mistral Small 3.1 to 4, Ministral 3",
        "mistral3",
        {**LATENT_EXPERTS, "model_type": "mistral4", "rope_parameters": GROWING},
        {**IMAGES, "model_type": "pixtral"},
    ),
    "mistral3": _case(
        "Mistral Small 3.1 to 4, Ministral 3",
        "mistral3",
        {"model_type": "mistral", "sliding_window": None, "head_dim": 12},
        {**IMAGES, "model_type": "pixtral"},
    ),
    "ovis2": Case(
        "Ovis 2",
        "ovis2",
        {**OVIS, "text_config": {**SIZES, "model_type": "qwen2"}, "vision_config": {**IMAGES, "vocab_size": 20}},
        sizes={},
    ),
    "qwen2 vl": _case(
        "Qwen 2 VL", "qwen2_vl", _m_rope(1, 1, 2), {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2}
    ),
    "qwen2.5 vl": _case(
        "Qwen 2.5 VL",
        "qwen2_5_vl",
        _m_rope(1, 1, 2),
        {**QWEN_IMAGES, "intermediate_size": 16},
        relayout=_flat,
    ),
    "qwen3 vl": _case(
        "Qwen 3 VL",
        "qwen3_vl",
        {"head_dim": 8, **_m_rope(2, 1, 1)},
        {**QWEN_IMAGES, "intermediate_size": 16, "deepstack_visual_indexes": [0]},
        relayout=_of_part,
    ),
    "qwen3 vl moe": _case(
        "Qwen 3 VL MoE",
        "qwen3_vl_moe",
        {"head_dim": 8, **QWEN_EXPERTS, **_m_rope(2, 1, 1)},
        {**QWEN_IMAGES, "intermediate_size": 16, "deepstack_visual_indexes": [0]},
    ),
    "qwen3 vl moe published": _case(
        "Qwen 3 VL MoE",
        "qwen3_vl_moe",
        {"head_dim": 8, **QWEN_EXPERTS, "moe_intermediate_size": 16, **_m_rope(2, 1, 1)},
        {**QWEN_IMAGES, "intermediate_size": 16, "deepstack_visual_indexes": [0]},
        relayout=_inputs_first,
    ),
    "qwen3.5 images": _case(
        "Qwen 3.5 and 3.6", "qwen3_5", {**DELTA, **M_ROPE}, {**QWEN_IMAGES, "intermediate_size": 16}
    ),
    "qwen3.5 moe images": _case(
        "Qwen 3.5 and 3.6 MoE",
        "qwen3_5_moe",
        {**DELTA, **EXPERTS, **M_ROPE, "linear_num_key_heads": 4},
        {**QWEN_IMAGES, "intermediate_size": 16},
        relayout=stacked_experts,
    ),
    # Transformers 5.24 cannot compute its class without images.
    "llama4 images": Case("Llama 4", "llama4_text", LLAMA_4, _inside_llama4, architecture=LLAMA4_CLASS),
    "smolvlm": _case("SmolVLM", "smolvlm", {"model_type": "llama"}, IMAGES),
}
