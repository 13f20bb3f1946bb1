"""What products share that leave their results in parts, for the operator behind them to add up."""

import torch
from torch import Tensor


def check_partials(name: str, out: Tensor, splits: int, tokens: int, outputs: int) -> None:
    """Raises ValueError where the operator `name` has not this room for its parts in `out`."""
    shape = (splits, tokens, outputs)
    if out.shape != shape or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(f"{name}: out is {tuple(out.shape)} of {out.dtype}, and must be float32 {shape}")
