"""Transformers with keys and values that are stored with 8 bits, or with 4."""

from typing import Any

import torch
from kernel_support.reference import stored_in_4_bits, stored_in_8_bits
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

TYPES = {
    "fp8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "int4": torch.uint4,
}
"""By the name of the flag."""


class StoredCache(DynamicCache):
    """Gives keys and values back as they would be stored: a token's own too."""

    def __init__(self, dtype: torch.dtype, scales: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self._dtype = dtype
        self._scales = scales

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """[batch, kv_heads, tokens, head_dim]"""
        stored = []
        for place, heads in enumerate((key_states, value_states)):
            if self._dtype == torch.uint4:
                stored.append(stored_in_4_bits(heads))
                continue
            scale = None if self._scales is None else self._scales[place][layer_idx].view(1, -1, 1)
            stored.append(stored_in_8_bits(heads, self._dtype, scale))
        return super().update(*stored, layer_idx, *args, **kwargs)


@torch.inference_mode()
def said(model: PreTrainedModel, cache: StoredCache, ids: list[int]) -> Tensor:
    """Log-probabilities at all positions."""
    return model(torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0].log_softmax(-1)
