"""Families that run through their class of transformers."""

from typing import Any

from support.families import Case
from support.moe_cases import with_corrections

MOE: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2}
GROUPS: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_key_value_heads": 4,
}


FALLBACK_CASES: dict[str, Case] = {
    "apertus": Case("Apertus", "apertus"),
    "arcee": Case("Arcee AFM", "arcee"),
    "cwm": Case(
        "Code World Model", "cwm", {"sliding_window": 4, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
    ),
    "dots1": Case("dots.llm1", "dots1", GROUPS, prepare=with_corrections),
    "flex_olmo": Case("FlexOlmo", "flex_olmo", MOE),
    "helium": Case("Helium", "helium", {"head_dim": 8}),
    "olmo": Case("OLMo 1", "olmo", {"clip_qkv": 2.0}),
    "olmoe": Case("OLMoE", "olmoe", MOE),
    "persimmon": Case("Persimmon", "persimmon", {"num_key_value_heads": ...}),
}
"""Tensor names, sizes and prompts are as for the families of our own decoder."""

FORCED = (
    *("qwen3", "gemma2", "mixtral", "gemma3n", "gemma3n images", "gemma4 small", "gemma4 large", "gemma4 experts"),
    *("ernie", "ernie moe", "nemotron"),
)
"""Families of our own decoder that are compared with their class inside of our engine."""

WHOLE_HEADS = ("flex_olmo", "olmoe", "persimmon")
"""Those of which each shard has all heads."""
