"""Gated norm over the channels of all ranks together, of recurrent layers whose heads the ranks share."""

from typing import Literal

from torch import Tensor
from torch.nn import functional

from ...distributed import TensorParallelGroup
from ..weights import in_blocks


def whole_norm(
    x: Tensor,
    gate: Tensor,
    norm: tuple[Tensor, float, int],
    group: TensorParallelGroup,
    block: int | None,
    gate_first: bool,
    opening: Literal["silu", "sigmoid"],
) -> Tensor:
    """Computes `gated_norm` of `x` and `gate`, [T, channels of this rank] each. `norm` has the weights of these
    channels, epsilon, and the number of all channels. The ranks all-reduce one number per token.
    """
    weight, eps, channels = norm
    wide, opened = x.float(), gate.float().sigmoid() if opening == "sigmoid" else functional.silu(gate.float())
    if gate_first:
        wide = wide * opened
    squares = in_blocks((wide,), block, _sum_of_squares)
    group.all_reduce(squares)
    scale = (squares / channels + eps).rsqrt_()
    out = (wide * scale[:, None]).to(weight.dtype) * weight
    return (out if gate_first else out * opened).to(x.dtype)


def _sum_of_squares(x: Tensor) -> Tensor:
    """[T, channels] to [T]"""
    return x.square().sum(1)
