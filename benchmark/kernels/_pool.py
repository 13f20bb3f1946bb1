"""Keys and values as the engine lays them out (`LayerCache`), for the bars of the operators that read or write them."""

import torch
from _timing import Plan

from text_generation_kernels.attention.kv_quantisation import quantise
from text_generation_server.layers.infer.state import CacheShape, LayerCache


def filled(plan: Plan, slots: int, kv_heads: int, head_dim: int, codes: torch.dtype | None = None) -> LayerCache:
    """One layer full of random numbers, or of `codes` that stand for some."""
    cache = CacheShape(kv_heads, head_dim, head_dim, codes).allocate(slots, plan.dtype, plan.device)
    for place, each in enumerate((cache.k, cache.v)):
        numbers = torch.randn(each.shape, dtype=plan.dtype, device=plan.device)
        if codes is None or cache.scales is None:
            each.copy_(numbers)
            continue
        coded, cache.scales[..., place] = quantise(numbers, codes)
        each.view(torch.uint8).copy_(coded.view(torch.uint8))
    return cache
