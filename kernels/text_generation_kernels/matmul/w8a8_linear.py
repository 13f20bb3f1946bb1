"""W8A8 linear layer: 8-bit activations by an 8-bit weight, with quantisation, bias and activation fused where it pays.

    out = (x8 * x_scale) @ (weight8 * weight_scale).T + bias
    out = activation(gate) * up, with `activation`, where gate and up are the halves of that

Layouts: `x8` `[tokens, inputs]`, `weight8` `[outputs, inputs]`, both float8_e4m3fn or both int8, `out`
`[tokens, outputs]` of 16 bits (or 32), or `[tokens, outputs / 2]` with `activation`; unit stride in the last dimension,
any stride between rows. `x_scale` float32 `[tokens]`, or `[tokens, ceil(inputs / 128)]`: one for each 128 inputs.
`weight_scale` float32 `[outputs]`, or `[outputs, ceil(inputs / 128)]`, or
`[ceil(outputs / 128), ceil(inputs / 128)]`; any strides. `bias` `[outputs]` or None, in the type of `out`.

Instead of `x8`, `x` may have 16 or 32 bits: it is quantised by token as `quantise_rows` does it, with `bound`;
`x_scale` is [1] then, one for all, or None: scales are measured. The activations are those of `act_and_mul`. ValueError
for an unknown activation and for shapes that do not fit.

`w8a8_ladder.py` chooses the kernel, or the library's algorithm for more than 64 tokens. Batches that are padded to one
size (2 to 16, 17 to 32 or 33 to 64) give a token the same result to the bit, whichever others are there. Cards without
float8 tensor cores compute float8 as the torch implementation does, which is right and slow: a server keeps activations
in 16 bits on them.

A layer calls it for QKV, and for all GEMMs of a single token or of more than 64; `w8a8_gated` and `w8a8_split_k` are
for the others. Settings of cards with less than 227 KiB of shared memory are not measured.
Bytes floor: outputs * inputs. On an H200 57344 x 8192 with 16 tokens takes 114 us in float8.
Lab: docs/lab/2026-11-w8a8-small-batches.md.
"""

# pyright: basic, reportArgumentType=false
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ..norm.act_and_mul import act_and_mul_torch, act_and_mul_triton
from ..norm.activations import GATED
from ..norm.quantise import LIMITS, Quantised, quantise_torch
from ..norm.quantise_rows import quantise_rows_triton
from ..runtime.device import has_fp8_gemms
from ..runtime.register import register
from .ladder import launches
from .w8a8_gemm import BLOCK
from .w8a8_gemv import MOST_QUANTISED, w8a8_gemv
from .w8a8_ladder import W8A8, W8A8_GEMV, W8A8Problem


def w8a8_linear_triton(
    x: Tensor,
    x_scale: Tensor | None,
    weight8: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None = None,
    bound: float = 0.0,
) -> None:
    """Triton implementation, and the libraries'. Raises ValueError for an unknown activation and for shapes that do not
    fit.

    It runs on one stream at a time, as `w8a8_gemm`, and once before a capture.
    """
    _check(x, x_scale, weight8, weight_scale, bias, out, activation)
    if len(x) == 0:
        return
    if weight8.dtype == torch.float8_e4m3fn and not has_fp8_gemms(weight8.device):
        w8a8_linear_torch(x, x_scale, weight8, weight_scale, bias, out, activation, bound)
        return
    problem = W8A8Problem.of(x, x_scale, weight8, weight_scale)
    if W8A8.pick(problem).kernel is W8A8_GEMV:
        if x.shape[1] > MOST_QUANTISED or weight8.dtype == torch.int8:
            x, x_scale = _codes(x, x_scale, weight8.dtype, bound, quantise_rows_triton)
        w8a8_gemv(x, x_scale, weight8, weight_scale, bias, out, activation, bound)
        return
    x8, scale = _codes(x, x_scale, weight8.dtype, bound, quantise_rows_triton)
    result = out if activation is None else out.new_empty(len(x), len(weight8))
    for choice in launches(W8A8, problem):
        choice.kernel.launch(x8, scale, weight8, weight_scale, bias, result, choice.settings)
    if activation is not None:
        act_and_mul_triton(result, activation, out)


def _codes(
    x: Tensor, x_scale: Tensor | None, dtype: torch.dtype, bound: float, quantise: Callable[[Tensor, Quantised], None]
) -> tuple[Tensor, Tensor]:
    """`x` and its scales, quantised by `quantise` where it is not yet."""
    if x.dtype in LIMITS and x_scale is not None:
        return x, x_scale
    x8, scale = x.new_empty(x.shape, dtype=dtype), x.new_empty(len(x), dtype=torch.float32)
    quantise(x, Quantised(x8, scale, 0, x_scale, bound))
    return x8, scale


def _check(
    x: Tensor,
    x_scale: Tensor | None,
    weight8: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None,
) -> None:
    tokens, inputs = x.shape
    outputs, blocks = len(weight8), -(-inputs // BLOCK)
    written = outputs if activation is None else outputs / 2
    scales = ((tokens,), (tokens, blocks)) if x.dtype in LIMITS else ((1,),)
    fits = (
        weight8.shape[1] == inputs
        and out.shape == (tokens, written)
        and (x_scale is None or x_scale.shape in scales)
        and weight_scale.shape in ((outputs,), (outputs, blocks), (-(-outputs // BLOCK), blocks))
        and (bias is None or bias.shape == (outputs,))
    )
    if not fits:
        tensors = (x, x_scale, weight8, weight_scale, bias, out)
        shapes = [tuple(tensor.shape) for tensor in tensors if tensor is not None]
        raise ValueError(f"w8a8_linear: shapes of x, x_scale, weight8, weight_scale, bias, out do not fit: {shapes}")
    if activation is not None and activation not in GATED:
        raise ValueError(f"w8a8_linear: unknown activation {activation!r}, use one of {', '.join(GATED)}")
    is_codes = x.dtype == weight8.dtype and x_scale is not None
    if weight8.dtype not in LIMITS or not (is_codes or (x.is_floating_point() and x.dtype not in LIMITS)):
        raise ValueError(
            f"w8a8_linear: x is {x.dtype} and weight8 {weight8.dtype}; both must be one 8-bit type, or x of 16 bits"
        )
    if weight_scale.dtype != torch.float32 or (x_scale is not None and x_scale.dtype != torch.float32):
        raise ValueError("w8a8_linear: scales must be float32")
    if not x.stride(1) == weight8.stride(1) == out.stride(1) == 1:
        raise ValueError("w8a8_linear: the last dimension of every matrix must have stride 1")


def w8a8_linear_torch(
    x: Tensor,
    x_scale: Tensor | None,
    weight8: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None = None,
    bound: float = 0.0,
) -> None:
    """Torch implementation, in float32: the CPU path and the reference of the tests."""
    x8, scale = _codes(x, x_scale, weight8.dtype, bound, quantise_torch)
    result = functional.linear(dequantise(x8, scale), dequantise(weight8, weight_scale))
    result = result if bias is None else result + bias
    if activation is None:
        out.copy_(result)
    else:
        act_and_mul_torch(result.to(out.dtype), activation, out)


def dequantise(values: Tensor, scale: Tensor) -> Tensor:
    """`values` times their scales, in float32."""
    if scale.dim() == 1:
        return values.float() * scale[:, None]
    rows, inputs = values.shape
    if len(scale) != rows:
        scale = scale.repeat_interleave(BLOCK, 0)[:rows]
    return values.float() * scale.repeat_interleave(BLOCK, 1)[:, :inputs]


w8a8_linear = register(w8a8_linear_torch, mutates=("out",), triton=w8a8_linear_triton)
