"""Gemma 4, as variants that its configurations can have, and what Gemma 3n has of them."""

from typing import Any

import torch
from transformers import PreTrainedModel

from support.families import SIZES, Case, Raw
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


GEMMA_CASES: dict[str, Case] = {
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
