"""GLM 5.3 Flash, as variants that its configurations can have. Transformers has its class with images alone."""

from typing import Any

import torch
from torch import nn

from support.families import SIZES, Case, Raw, State
from support.moe_cases import with_corrections

GLM_NEXT: dict[str, Any] = {
    **SIZES,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "index_head_dim": 16,
    "index_kpool": 2,
    "index_n_heads": 8,
    "index_topk": 4,
    "kv_lora_rank": 12,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
    "linear_conv_kernel_dim": 3,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "q_lora_rank": 10,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 0,
    "rms_norm_eps": 1e-3,
    "v_head_dim": 8,
}
"""Prompts are longer than the pools that are chosen. Few heads of an indexer would often have scores of 0, which are
equal. Large epsilons show where they belong."""
OTHER: dict[str, Any] = {
    **GLM_NEXT,
    "hc_eps": 1e-3,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 2,
    "index_kpool": 3,
    "index_topk": 3,
    "indexer_types": ["full", "full", "shared", "full"],
    "layer_types": ["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"],
    "linear_head_dim": 6,
    "linear_lower_bound": None,
    "linear_num_heads": 8,
    "n_group": 2,
    "n_shared_experts": 2,
    "topk_group": 1,
}
"""No lower bound of decays, another number of streams, and a layer that reads what the one before it has chosen."""
IMAGES: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "image_size": 28,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
    "projection_intermediate_size": 16,
}


def beyond_bounds(model: nn.Module) -> None:
    """Makes gates so large that bounds of activations count, and coefficients of streams that differ by token."""
    with_corrections(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight", "experts.gate_up_proj")):
                parameter.mul_(8)
            if name.endswith("_hc.scale"):
                parameter.add_(1)


def alone(state: State, raw: Raw) -> tuple[State, Raw]:
    """Its text, with a layer that guesses further tokens."""
    prefix = "model.language_model."
    text = {name.replace(prefix, "model.", 1): each for name, each in state.items() if "visual" not in name}
    guesses = {f"model.layers.{raw['text_config']['num_hidden_layers']}.eh_proj.weight": torch.ones(32, 64)}
    return {**text, **guesses}, {**raw["text_config"], "architectures": ["Glm5NextForCausalLM"]}


def _case(values: dict[str, Any], **others: Any) -> Case:
    whole = {"text_config": values, "vision_config": IMAGES}
    return Case("GLM 5.3 Flash", "glm5_next", whole, prepare=beyond_bounds, sizes={}, **others)


GLM_NEXT_CASES = {
    "glm 5.3": _case(GLM_NEXT, relayout=alone, architecture="Glm5NextForCausalLM"),
    "glm 5.3 other": _case(OTHER, relayout=alone, architecture="Glm5NextForCausalLM"),
    "glm 5.3 images": _case(GLM_NEXT),
}
