"""GEMV of one token with its neighbours fused: RMSNorm as prologue, activation and residual addition as epilogue.

    y = x, or with `norm`: x / sqrt(mean(x ** 2) + eps) * norm.weight, which is written to `norm.normalised`
    out = y @ weight.T + bias
    out = activation(gate) * up, with `activation`, where gate and up are the halves of y @ weight.T + bias
    out = out before + that, with `adds`

A layer of a small model waits for its kernels as long as for its bytes, so fewer kernels make it faster.

Layouts: `x` `[1, inputs]`, `out` `[1, outputs]` or, with `activation`, `[1, outputs / 2]`, `weight`
`[outputs, inputs]`, unit stride in the last dimension, any stride between rows; `bias` `[outputs]` or None. One
floating type, but for the weight of a norm. The GEMV reads normalised values before they are rounded. The rest is
rounded as `linear`, `act_and_mul` and `add_rms_norm` round one after the other. Those operators compute what
`bf16_gemv.py` does not take (`bf16_ladder.py`).

A layer calls it in a step of one token, where a norm or the residual add is fused.
Bytes floor: outputs * inputs * element size.
Lab: docs/lab/2026-11-single-token-decode.md.
"""

# pyright: basic, reportArgumentType=false
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..collectives.exchange import MOST_VALUES, Exchange
from ..norm.act_and_mul import act_and_mul_torch, act_and_mul_triton
from ..norm.rms_norm import rms_norm_torch, rms_norm_triton
from ..runtime.register import register
from ..runtime.triton import triton
from .bf16_gemv import bf16_gemv
from .bf16_ladder import BF16, BF16_GEMV, Bf16Problem, cublas_linear
from .gemv_blocks import LONGEST


@dataclass(frozen=True, slots=True, eq=False)
class NormPrologue:
    """The RMSNorm that the token has yet to pass. `NormPrologue()`: none."""

    weight: Tensor | None = None
    """[inputs], which may be float32 beside 16 bits."""
    eps: float = 0.0
    normalised: Tensor | None = None
    """[1, inputs], which is written: what `rms_norm` gives, to the bit."""

    def apply(self, x: Tensor, rms_norm: Callable[[Tensor, Tensor, float, Tensor], None]) -> Tensor:
        """`x`, normalised by an operator of its own."""
        if self.weight is None or self.normalised is None:
            return x
        rms_norm(x, self.weight, self.eps, self.normalised)
        return self.normalised


NO_NORM = NormPrologue()


def token_linear_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None = None,
    norm: NormPrologue = NO_NORM,
    adds: bool = False,
) -> None:
    """Triton implementation. What the kernel does not take goes to several operators and cuBLAS."""
    if BF16.pick(Bf16Problem.of(x, weight, out, activation)).kernel is not BF16_GEMV:
        result = torch.empty_like(out) if adds else out
        cublas_linear(norm.apply(x, rms_norm_triton), weight, bias, result, activation, act_and_mul_triton)
        if adds:
            out.add_(result)
        return
    if x.shape[1] > LONGEST:
        x, norm = norm.apply(x, rms_norm_triton), NO_NORM
    bf16_gemv(x, weight, bias, out, activation, norm.weight, norm.eps, norm.normalised, adds)


def send_linear(x: Tensor, weight: Tensor, bias: Tensor | None, exchange: Exchange) -> bool:
    """Sends the GEMV of one token, [1, outputs], to the memory of all ranks, where `allreduce_add_norm_receive` is to
    reduce it. False, with nothing done, for what the kernel does not take. There is no torch implementation.
    """
    row = triton.next_power_of_2(exchange.world_size) * triton.next_power_of_2(weight.shape[0])
    if row > MOST_VALUES or BF16.pick(Bf16Problem.of(x, weight, x)).kernel is not BF16_GEMV:
        return False
    bf16_gemv(x, weight, bias, exchange, None)
    return True


def token_linear_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None = None,
    norm: NormPrologue = NO_NORM,
    adds: bool = False,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    result = torch.empty_like(out) if adds else out
    cublas_linear(norm.apply(x, rms_norm_torch), weight, bias, result, activation, act_and_mul_torch)
    if adds:
        out.add_(result)


token_linear = register(token_linear_torch, mutates=("out", "norm_normalised"), triton=token_linear_triton)
