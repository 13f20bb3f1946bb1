"""Product of one token with a matrix, together with what stands before and behind it in a layer.

    y = x, or with `norm`: x / sqrt(mean(x ** 2) + eps) * norm, which is left in `normalised`
    out = y @ weight.T + bias
    out = activation(gate) * up, with `activation`, where gate and up are the halves of y @ weight.T + bias
    out = out before + that, with `adds`

A layer of a small model waits for its kernels as long as for its bytes, so what can be part of a product is no kernel.

Layouts: `x`, `normalised` `[1, inputs]`, `out` `[1, outputs]` or, with `activation`, `[1, outputs / 2]`, `weight`
`[outputs, inputs]`, unit stride in the last dimension, any stride between rows; `bias` `[outputs]` or None; `norm`
`[inputs]`, which may be float32 beside 16 bits. One floating type otherwise. `normalised` is what `rms_norm` makes, to
the bit; the product reads it before it is rounded, from the 16 bits of `x`. The rest is rounded as by `skinny_linear`,
`act_and_mul` and `add_rms_norm` one after the other.

Called four times a layer in a step of one token, and for the logits. Bytes floor: outputs * inputs * element size.
"""

# pyright: basic, reportArgumentType=false
from collections.abc import Callable

import torch
from torch import Tensor

from ..collectives.exchange import MOST_VALUES, Exchange
from ..norm.act_and_mul import act_and_mul_torch, act_and_mul_triton
from ..norm.rms_norm import rms_norm_torch, rms_norm_triton
from ..runtime.register import register
from ..runtime.triton import triton
from .bf16_gemv import bf16_gemv
from .gemv_blocks import LONGEST
from .skinny_linear import by_library, reads


def token_linear_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    normalised: Tensor | None = None,
    adds: bool = False,
) -> None:
    """Triton implementation. What the kernel does not take goes to the library, in several operators."""
    if not reads(x, weight, out, 8):
        _unfused(x, weight, bias, out, activation, norm, eps, normalised, adds, rms_norm_triton, act_and_mul_triton)
        return
    if norm is not None and normalised is not None and x.shape[1] > LONGEST:
        rms_norm_triton(x, norm, eps, normalised)
        x, norm = normalised, None
    bf16_gemv(x, weight, bias, out, activation, norm=norm, eps=eps, normalised=normalised, adds=adds)


def send_linear(x: Tensor, weight: Tensor, bias: Tensor | None, exchange: Exchange) -> bool:
    """The product of one token, [1, outputs], into memory of all ranks, from where `allreduce_add_norm_receive` is to
    take the sum. False for what the kernel does not take; nothing has happened then. Triton alone computes it.
    """
    row = triton.next_power_of_2(exchange.world_size) * triton.next_power_of_2(weight.shape[0])
    if x.shape[0] != 1 or not reads(x, weight, x, 8) or row > MOST_VALUES:
        return False
    bf16_gemv(x, weight, bias, exchange, None)
    return True


def token_linear_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    normalised: Tensor | None = None,
    adds: bool = False,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    _unfused(x, weight, bias, out, activation, norm, eps, normalised, adds, rms_norm_torch, act_and_mul_torch)


def _unfused(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None,
    norm: Tensor | None,
    eps: float,
    normalised: Tensor | None,
    adds: bool,
    rms_norm: Callable[[Tensor, Tensor, float, Tensor], None],
    act_and_mul: Callable[[Tensor, str, Tensor], None],
) -> None:
    """One operator after the other."""
    if norm is not None and normalised is not None:
        rms_norm(x, norm, eps, normalised)
        x = normalised
    result = torch.empty_like(out) if adds else out
    by_library(x, weight, bias, result, activation, act_and_mul)
    if adds:
        out.add_(result)


token_linear = register(token_linear_torch, mutates=("out", "normalised"), triton=token_linear_triton)
