"""The check of `out` that GEMMs share which leave split-K partials for the next kernel to reduce."""

import torch
from torch import Tensor


def check_partials(name: str, out: Tensor, splits: int, tokens: int, outputs: int) -> None:
    """Raises ValueError where `out` does not hold one partial for each split of the operator `name`."""
    shape = (splits, tokens, outputs)
    if out.shape != shape or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(f"{name}: out is {tuple(out.shape)} of {out.dtype}, and must be float32 {shape}")
