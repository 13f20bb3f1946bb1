"""GEMV of one token with its neighbours fused: RMSNorm as prologue, activation and residual addition as epilogue.

    y = x, or with `norm`: x / sqrt(mean(x ** 2) + eps) * norm, which is written to `normalised`
    out = y @ weight.T + bias
    out = activation(gate) * up, with `activation`, where gate and up are the halves of y @ weight.T + bias
    out = out before + that, with `adds`

A layer of a small model waits for its kernels as long as for its bytes, so fewer kernels make it faster.

Layouts: `x`, `normalised` `[1, inputs]`, `out` `[1, outputs]` or, with `activation`, `[1, outputs / 2]`, `weight`
`[outputs, inputs]`, unit stride in the last dimension, any stride between rows; `bias` `[outputs]` or None; `norm`
`[inputs]`, which may be float32 beside 16 bits. One floating type otherwise. `normalised` is what `rms_norm` writes, to
the bit; the GEMV reads the values before that rounding. The rest is rounded as `linear`, `act_and_mul` and
`add_rms_norm` round one after the other. Those operators compute what `bf16_gemv.py` does not take (`bf16_ladder.py`).

A layer calls it in a step of one token, where a norm or the residual add is fused.
Bytes floor: outputs * inputs * element size.
Lab: docs/lab/2026-11-single-token-decode.md.
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
from .bf16_ladder import BF16, BF16_GEMV, Bf16Problem, cublas_linear
from .gemv_blocks import LONGEST


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
    """Triton implementation. What the kernel does not take goes to several operators and cuBLAS."""
    if BF16.pick(Bf16Problem.of(x, weight, out, activation)).kernel is not BF16_GEMV:
        _unfused(x, weight, bias, out, activation, norm, eps, normalised, adds, rms_norm_triton, act_and_mul_triton)
        return
    if norm is not None and normalised is not None and x.shape[1] > LONGEST:
        rms_norm_triton(x, norm, eps, normalised)
        x, norm = normalised, None
    bf16_gemv(x, weight, bias, out, activation, norm=norm, eps=eps, normalised=normalised, adds=adds)


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
    """One operator after another."""
    if norm is not None and normalised is not None:
        rms_norm(x, norm, eps, normalised)
        x = normalised
    result = torch.empty_like(out) if adds else out
    cublas_linear(x, weight, bias, result, activation, act_and_mul)
    if adds:
        out.add_(result)


token_linear = register(token_linear_torch, mutates=("out", "normalised"), triton=token_linear_triton)
