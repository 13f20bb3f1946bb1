"""Residual add + RMSNorm, fused, with optional W8A8 quantisation of the result.

    x = x / sqrt(mean(x ** 2) + eps) * x_weight            (where there is an x_weight: sandwich norms, as in Gemma 2)
    residual = residual + x_scale * x                      (x_scale is 1 except for Granite and MiniCPM)
    out = residual / sqrt(mean(residual ** 2) + eps) * weight

Layouts: `x`, `residual`, `out` `[tokens, hidden]`, unit stride in the last dimension, any stride between tokens;
`weight`, `x_weight` `[hidden]`. `residual` is updated in place, `out` may be `x`. One floating type for all, but
weights may be float32 beside 16-bit `x`. Statistics are float32. The residual is rounded to the storage type before its
statistics are taken, and so is `x` after its norm; the normalised value is rounded to the type of its weight before
their multiplication, as in `rms_norm` and Transformers.

`x` may also be float32 split-K partials `[partials, tokens, hidden]` (`w8a8_split_k`): they are added up in their order
and rounded to the type of `residual`, which is then prefetched before the wait for the GEMM. So neither that GEMM nor a
later kernel may have written `residual`. `out` is also quantised where `quantised` (`quantise.py`) says so.

Called twice a layer and once before the logits. Raises ValueError for layouts that the kernel does not read.
Bytes floor: 4 * tokens * hidden * element size (read x and residual, write residual and out). On an H200 in bfloat16 at
4,096 tokens: 93 % of copy bandwidth with hidden 4,096. Measurements: docs/lab/2026-11-norms-and-activations.md.
"""

# pyright: basic
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton
from .quantise import NOT_QUANTISED, Quantised, quantise_torch, store_quantised
from .rms_norm import normalise, normalise_row


@triton.jit
def add_rms_norm_kernel(
    x_ptr,  # [tokens, hidden], or [PARTIALS, tokens, hidden] float32
    residual_ptr,  # [tokens, hidden], updated in place
    weight_ptr,  # [hidden]
    x_weight_ptr,  # [hidden] or None
    out_ptr,  # [tokens, hidden]
    out8_ptr,  # [tokens, hidden] or None
    out_scale_ptr,  # [tokens] or [tokens, groups] or None
    static_ptr,  # [1] float32 or None
    hidden,
    stride_x_partial,
    stride_x_token,
    stride_residual_token,
    stride_out_token,
    stride_out8_token,
    stride_scale_token,
    stride_scale_group,
    eps,
    PARTIALS: tl.constexpr,  # split-K partials; 0: x is the result
    X_SCALE: tl.constexpr,
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
    residual_row = residual_ptr + token * stride_residual_token + columns
    if PARTIALS:
        # All kernels before the GEMM, the previous norm among them, have finished by now. L1 may hold stale lines.
        residual = tl.load(residual_row, mask=valid, other=0.0, cache_modifier=".cg")
    launch_dependents(PDL)
    wait_for_previous(PDL)
    x_row = x_ptr + token * stride_x_token + columns
    x = tl.load(x_row, mask=valid, other=0.0).to(tl.float32)
    for partial in tl.static_range(1, PARTIALS):
        x += tl.load(x_row + partial * stride_x_partial, mask=valid, other=0.0)
    if not PARTIALS:
        residual = tl.load(residual_row, mask=valid, other=0.0)
    residual = residual.to(tl.float32)

    TYPE: tl.constexpr = residual_ptr.dtype.element_ty
    if PARTIALS:
        x = x.to(TYPE).to(tl.float32)
    if x_weight_ptr is not None:
        x_weight = tl.load(x_weight_ptr + columns, mask=valid, other=0.0).to(tl.float32)
        x = normalise_row(x, x_weight, hidden, eps, x_weight_ptr.dtype.element_ty)
        x = x.to(TYPE).to(tl.float32)
    if X_SCALE != 1.0:
        x = x * X_SCALE
    total = (x + residual).to(TYPE)
    tl.store(residual_row, total, mask=valid)
    out = normalise_row(total.to(tl.float32), weight, hidden, eps, weight_ptr.dtype.element_ty)
    out = out.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + token * stride_out_token + columns, out, mask=valid)
    if out8_ptr is not None:
        store_quantised(
            out.to(tl.float32), columns, hidden, out8_ptr + token * stride_out8_token,
            out_scale_ptr + token * stride_scale_token, stride_scale_group, static_ptr, GROUP, BOUND, TINIEST,
        )  # fmt: skip


_launch = Launcher(
    add_rms_norm_kernel, writes=("out", "residual", "out8", "out_scale"), reads_early=("residual", "weight")
)


def add_rms_norm_triton(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    x_scale: float = 1.0,
    x_weight: Tensor | None = None,
    quantised: Quantised = NOT_QUANTISED,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    tokens, hidden = x.shape[-2:]
    has_partials = x.dim() == 3
    weights = (weight,) if x_weight is None else (weight, x_weight)
    if (
        residual.shape != x.shape[-2:]
        or out.shape != residual.shape
        or any(each.shape != (hidden,) for each in weights)
    ):
        shapes = [tuple(tensor.shape) for tensor in (x, residual, out, *weights)]
        raise ValueError(f"add_rms_norm: shapes of x, residual, out, weights do not fit: {shapes}")
    if any(tensor.stride(-1) != 1 for tensor in (x, residual, out, *weights)):
        raise ValueError("add_rms_norm: the last dimension of every tensor must have stride 1")
    quantised.check("add_rms_norm", tokens, hidden)
    if tokens == 0:
        return
    block = max(triton.next_power_of_2(hidden), quantised.group)
    _launch(
        (tokens,),
        (x, residual, weight, x_weight, out, *quantised.operands),
        (
            hidden,
            x.stride(0) if has_partials else 0,
            x.stride(-2),
            residual.stride(0),
            out.stride(0),
            *quantised.strides,
        ),
        (eps,),
        PARTIALS=len(x) if has_partials else 0,
        X_SCALE=x_scale,
        BLOCK=block,
        **quantised.constants,
        **nearest("add_rms_norm", block=block),
    )


def add_rms_norm_torch(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    x_scale: float = 1.0,
    x_weight: Tensor | None = None,
    quantised: Quantised = NOT_QUANTISED,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    if x.dim() == 3:
        x = x.sum(0).to(residual.dtype)
    if x_weight is not None:
        normalised = torch.empty_like(x)
        normalise(x, x_weight, eps, normalised)
        x = normalised
    residual.add_(x, alpha=x_scale)
    normalise(residual, weight, eps, out)
    quantise_torch(out, quantised)


add_rms_norm = register(
    add_rms_norm_torch, mutates=("residual", "out", "quantised_codes", "quantised_scale"), triton=add_rms_norm_triton
)
