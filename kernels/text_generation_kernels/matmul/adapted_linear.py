"""16-bit linear layer of a few tokens, with what `lora_delta` made added before the activation.

    out = x @ weight.T + delta + bias
    out = activation(gate) * up, with `activation`, where gate and up are the halves of x @ weight.T + delta + bias

`delta` `[tokens, outputs]` float32, contiguous; all else as of `linear`, by the same kernels. Sums are rounded once,
and once more after the activation. Where a library computes the GEMM, its result is rounded before delta is added.

A site whose outputs nobody adds up, as gate and up, calls it right after `lora_delta`, which made `delta`: its kernels
read `x` while that runs, and wait for it at their end.
Bytes floor: outputs * inputs * element size + 4 * tokens * outputs.
"""

# pyright: basic
import torch
from torch import Tensor

from ..norm.act_and_mul import act_and_mul_torch, act_and_mul_triton
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from .bf16_ladder import BF16, BF16_SMALL_HOPPER, SKINNY_GEMM, Bf16Problem


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, delta: Tensor, out: Tensor, activation: str | None) -> None:
    written = len(weight) if activation is None else len(weight) // 2
    if delta.shape != (len(x), len(weight)) or out.shape != (len(x), written) or weight.shape[1] != x.shape[1]:
        raise shapes_error("adapted_linear", x=x, weight=weight, bias=bias, delta=delta, out=out)
    if delta.dtype != torch.float32 or not delta.is_contiguous():
        raise ValueError("adapted_linear: delta must be contiguous, and float32")


def adapted_linear_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, delta: Tensor, out: Tensor, activation: str | None = None
) -> None:
    """Triton implementation. Raises ValueError for shapes that do not fit."""
    _check(x, weight, bias, delta, out, activation)
    choice = BF16.pick(Bf16Problem.of(x, weight, out, activation))
    if choice.kernel in (BF16_SMALL_HOPPER, SKINNY_GEMM):
        choice.kernel.launch(x, weight, bias, out, activation, choice.settings, delta)
        return
    sums = torch.nn.functional.linear(x, weight, bias)
    sums.add_(delta)
    if activation is None:
        out.copy_(sums)
    else:
        act_and_mul_triton(sums, activation, out)


def adapted_linear_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, delta: Tensor, out: Tensor, activation: str | None = None
) -> None:
    """Torch implementation: the reference of the tests."""
    _check(x, weight, bias, delta, out, activation)
    sums = x.float() @ weight.float().t() + delta
    result = (sums if bias is None else sums + bias.float()).to(out.dtype)
    if activation is None:
        out.copy_(result)
    else:
        act_and_mul_torch(result, activation, out)


adapted_linear = register(adapted_linear_torch, mutates=("out",), triton=adapted_linear_triton)
