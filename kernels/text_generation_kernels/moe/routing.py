"""Which experts compute each token of a mixture, and with which weights."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """The experts of T tokens: `moe_route` writes them, and `moe_experts` reads them. The caller owns both tensors."""

    ids: Tensor
    """[T, slots] int32, contiguous. Ids outside 0 .. experts - 1 are those of experts of other ranks."""
    weights: Tensor
    """[T, slots] float32, contiguous."""

    @classmethod
    def empty(cls, tokens: int, slots: int, device: torch.device | str | None = None) -> "Routing":
        """Room for the routing of so many tokens to `slots` experts each."""
        shape = tokens, slots
        ids = torch.empty(shape, dtype=torch.int32, device=device)
        return cls(ids, torch.empty(shape, dtype=torch.float32, device=device))
