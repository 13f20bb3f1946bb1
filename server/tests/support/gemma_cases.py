"""Gemma 3n and 4, as variants that their configurations can have."""

from typing import Any

import torch
from transformers import PreTrainedModel

from support.families import SIZES, Case, Raw, State
from support.media_cases import IMAGES


def with_scalars(model: PreTrainedModel) -> None:
    """Scales of layers, which are buffers that files have."""
    generator = torch.Generator().manual_seed(2)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.normal_(mean=1.0, std=0.3, generator=generator)


GEMMA: dict[str, Any] = {
    "num_hidden_layers": 5,
    "head_dim": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "vocab_size_per_layer_input": 99,
    "pad_token_id": 0,
}
GEMMA_3N: dict[str, Any] = {
    **GEMMA,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
    "activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.95, 0.0],
    "laurel_rank": 4,
}
GEMMA_3N_OTHER: dict[str, Any] = {
    **GEMMA_3N,
    "intermediate_size": [48, 40, 48, 40, 48],
    "vocab_size_per_layer_input": 60,
    "num_kv_shared_layers": 0,
    "altup_num_inputs": 3,
    "altup_active_idx": 1,
    "altup_correct_scale": False,
    "layer_types": ...,
}
"""Ids beyond the table of vectors, and another active stream."""
GEMMA_4: dict[str, Any] = {**GEMMA, "global_head_dim": 16, "hidden_size_per_layer_input": 0}
GEMMA_4_SMALL: dict[str, Any] = {
    **GEMMA_4,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
GEMMA_4_LARGE: dict[str, Any] = {
    **GEMMA_4,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 30.0,
}
GEMMA_4_EXPERTS: dict[str, Any] = {
    **GEMMA_4_LARGE,
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 20,
}

GEMMA_IMAGES: dict[str, Any] = {**IMAGES, "head_dim": 8, "num_key_value_heads": 2}


def _of_images(family: str, model_type: str, text: Raw, images: Raw = IMAGES, **options: Any) -> Case:
    """A model for images beside text."""
    values = {"text_config": {**SIZES, **text}, "vision_config": images}
    return Case(family, model_type, values, sizes={}, **options)


def _inside_gemma3n(state: State, raw: Raw) -> tuple[State, Raw]:
    """The published files, with towers for images and sound, whose classes need further packages."""
    names = {name: name.replace("model.", "model.language_model.", 1) for name in state}
    others = {
        f"model.{name}.weight": torch.zeros(2) for name in ("vision_tower.conv", "audio_tower.conv", "embed_audio")
    }
    keys = {key: raw.pop(key) for key in ("eos_token_id", "dtype")}
    whole = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "text_config": raw}
    return {**{names[name]: tensor for name, tensor in state.items()}, **others}, {**whole, **keys}


GEMMA_CASES: dict[str, Case] = {
    "gemma3n": Case("Gemma 3n (text)", "gemma3n_text", GEMMA_3N),
    "gemma3n other": Case("Gemma 3n (text)", "gemma3n_text", GEMMA_3N_OTHER),
    "gemma3n images": Case(
        "Gemma 3n",
        "gemma3n_text",
        GEMMA_3N,
        relayout=_inside_gemma3n,
        architecture="Gemma3nForConditionalGeneration",
    ),
    "gemma4 small": Case("Gemma 4 (text)", "gemma4_text", GEMMA_4_SMALL, prepare=with_scalars),
    "gemma4 large": Case("Gemma 4 (text)", "gemma4_text", GEMMA_4_LARGE, prepare=with_scalars),
    "gemma4 experts": Case("Gemma 4 (text)", "gemma4_text", GEMMA_4_EXPERTS, prepare=with_scalars),
    "gemma4 images": _of_images(
        "Gemma 4", "gemma4", {"model_type": "gemma4_text", **GEMMA_4_SMALL}, GEMMA_IMAGES, prepare=with_scalars
    ),
    "gemma4 images large": _of_images(
        "Gemma 4",
        "gemma4",
        {"model_type": "gemma4_text", **GEMMA_4_EXPERTS, "use_bidirectional_attention": "vision"},
        GEMMA_IMAGES,
        prepare=with_scalars,
    ),
}
