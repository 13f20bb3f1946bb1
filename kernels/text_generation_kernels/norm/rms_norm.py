"""RMSNorm (Zhang and Sennrich, 2019), with optional W8A8 quantisation of the result.

    out = x / sqrt(mean(x ** 2) + eps) * weight

Layouts: `x`, `out` `[tokens, hidden]`, unit stride in the last dimension, any stride between tokens; `weight`
`[hidden]`. `out` may be `x`. One floating type for all three, but `weight` may be float32 beside 16-bit `x`.
Statistics are float32; the normalised value is rounded to the type of `weight` before their multiplication, as in
Transformers: where the weight is 1 + w (Gemma), or multiplies before the rounding (OLMo), it is float32.
`out` is also quantised where `quantised` (`quantise.py`) says so.

Called once a forward pass: for the first layer, which has no residual yet. Raises ValueError for layouts that the
kernel does not read. Bytes floor: 2 * tokens * hidden * element size (read x, write out). On an H200 in bfloat16 at
4,096 tokens: 92 % of copy bandwidth with hidden 4,096. Measurements: docs/lab/2026-11-norms-and-activations.md.
"""

# pyright: basic
import functools

import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton
from .quantise import NOT_QUANTISED, Quantised, quantise_torch, store_quantised


@triton.jit
def normalise_row(
    row,  # [BLOCK] float32, zero from hidden on
    weight,  # [BLOCK] float32
    hidden,
    eps,
    WEIGHT: tl.constexpr,  # type of the weight, to which the normalised value is rounded first
):
    """The formula above for one token in registers, float32."""
    scale = tl.rsqrt(tl.sum(row * row, axis=0) / hidden + eps)
    normalised = (row * scale).to(WEIGHT).to(tl.float32)
    return normalised * weight


@triton.jit
def rms_norm_kernel(
    x_ptr,  # [tokens, hidden]
    weight_ptr,  # [hidden]
    out_ptr,  # [tokens, hidden]
    out8_ptr,  # [tokens, hidden] or None
    out_scale_ptr,  # [tokens] or [tokens, groups] or None
    static_ptr,  # [1] float32 or None
    hidden,
    stride_x_token,
    stride_out_token,
    stride_out8_token,
    stride_scale_token,
    stride_scale_group,
    eps,
    GROUP: tl.constexpr,
    BOUND: tl.constexpr,
    TINIEST: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least hidden and GROUP
    PDL: tl.constexpr,
):
    """One thread block normalises one token, held in registers."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    valid = columns < hidden
    weight = tl.load(weight_ptr + columns, mask=valid, other=0.0).to(tl.float32)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + token * stride_x_token + columns, mask=valid, other=0.0).to(tl.float32)
    out = normalise_row(x, weight, hidden, eps, weight_ptr.dtype.element_ty).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + token * stride_out_token + columns, out, mask=valid)
    if out8_ptr is not None:
        store_quantised(
            out.to(tl.float32), columns, hidden, out8_ptr + token * stride_out8_token,
            out_scale_ptr + token * stride_scale_token, stride_scale_group, static_ptr, GROUP, BOUND, TINIEST,
        )  # fmt: skip


_launch = Launcher(rms_norm_kernel, writes=("out", "out8", "out_scale"), reads_early=("weight",))


def rms_norm_triton(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    quantised: Quantised = NOT_QUANTISED,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    tokens, hidden = x.shape
    if out.shape != x.shape or weight.shape != (hidden,):
        shapes = [tuple(tensor.shape) for tensor in (x, weight, out)]
        raise ValueError(f"rms_norm: shapes of x, weight, out do not fit: {shapes}")
    if not x.stride(1) == out.stride(1) == weight.stride(0) == 1:
        raise ValueError("rms_norm: the last dimension of every tensor must have stride 1")
    quantised.check("rms_norm", tokens, hidden)
    if tokens == 0:
        return
    block = max(triton.next_power_of_2(hidden), quantised.group)
    _launch(
        (tokens,),
        (x, weight, out, *quantised.operands),
        (hidden, x.stride(0), out.stride(0), *quantised.strides),
        (eps,),
        BLOCK=block,
        **quantised.constants,
        **nearest("rms_norm", block=block),
    )


def normalise(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """The formula above in torch. `out` may be `x`."""
    wide = x.float()
    root, floor = _constants(x.shape[-1], eps, x.device)
    scale = root / torch.linalg.vector_norm(wide, dim=-1, keepdim=True).hypot_(floor)
    torch.mul((wide * scale).to(weight.dtype), weight, out=out)


@functools.lru_cache
def _constants(n: int, eps: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """sqrt(n) and sqrt(n * eps): 1 / sqrt(mean(x^2) + eps) = sqrt(n) / hypot(|x|, sqrt(n * eps)).

    As tensors: each number in an expression costs torch 10 us on a CPU.
    """
    return torch.tensor(n**0.5, device=device), torch.tensor((n * eps) ** 0.5, device=device)


def rms_norm_torch(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    quantised: Quantised = NOT_QUANTISED,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    normalise(x, weight, eps, out)
    quantise_torch(out, quantised)


rms_norm = register(rms_norm_torch, mutates=("out", "quantised_codes", "quantised_scale"), triton=rms_norm_triton)
