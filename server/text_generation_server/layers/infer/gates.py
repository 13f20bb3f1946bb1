"""Gates of what attention heads read."""

from typing import Literal

from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels

from ..weights import each_alone


def gate_heads(
    heads: Tensor, gates: Tensor, count: int, opening: Literal["sigmoid", "softplus"], block: int | None
) -> None:
    """Multiplies what `count` heads read [N, count * size] by gates [N, count * size], or by those of whole heads
    [N, count], in place. `block` has the meaning of `Linear.apply`.
    """
    for part, its_gates in each_alone(block, heads, gates):
        if opening == "sigmoid" and its_gates.shape == part.shape:
            kernels.sigmoid_gate(part, its_gates, part)
            continue
        wide = its_gates.float()
        opened = (functional.softplus(wide) if opening == "softplus" else wide.sigmoid()).to(gates.dtype)
        part.view(len(part), count, -1).mul_(opened.view(len(part), count, -1))
