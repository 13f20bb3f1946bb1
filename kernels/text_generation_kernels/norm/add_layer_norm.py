"""Residual add + LayerNorm, fused.

    residual = residual + x
    out = (residual - mean(residual)) / sqrt(mean((residual - mean(residual)) ** 2) + eps) * weight + bias

Layouts: `x`, `residual`, `out` `[tokens, hidden]`, unit stride in the last dimension, any stride between tokens;
`weight`, and `bias` where there is one, `[hidden]`. `residual` is updated in place, `out` may be `x`. One floating type
for all, but `weight` and `bias` may be float32 beside 16-bit `x`. The residual is rounded to the storage type before
its statistics are taken; these and everything after are float32, rounded once.

Called twice a layer and once before the logits. Raises ValueError for layouts that the kernel does not read.
Bytes floor: 4 * tokens * hidden * element size (read x and residual, write residual and out). It takes the launch
settings of `add_rms_norm`; not measured on a device yet.
"""

# pyright: basic, reportGeneralTypeIssues=false
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton
from .layer_norm import check_layouts, load_weights, normalise, normalise_row


@triton.jit
def add_layer_norm_kernel(
    x_ptr,  # [tokens, hidden]
    residual_ptr,  # [tokens, hidden], updated in place
    weight_ptr,  # [hidden]
    bias_ptr,  # [hidden] or None
    out_ptr,  # [tokens, hidden]
    hidden,
    stride_x_token,
    stride_residual_token,
    stride_out_token,
    eps,
    BLOCK: tl.constexpr,  # power of two, at least hidden
    PDL: tl.constexpr,
):
    """One thread block normalises one token, held in registers."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    valid = columns < hidden
    weight, bias = load_weights(weight_ptr, bias_ptr, columns, valid)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + token * stride_x_token + columns, mask=valid, other=0.0).to(tl.float32)
    residual_row = residual_ptr + token * stride_residual_token + columns
    residual = tl.load(residual_row, mask=valid, other=0.0).to(tl.float32)
    total = (x + residual).to(residual_ptr.dtype.element_ty)
    tl.store(residual_row, total, mask=valid)
    out = normalise_row(total.to(tl.float32), weight, bias, valid, hidden, eps)
    tl.store(out_ptr + token * stride_out_token + columns, out.to(out_ptr.dtype.element_ty), mask=valid)


_launch = Launcher(add_layer_norm_kernel, writes=("out", "residual"), reads_early=("weight", "bias"))


def add_layer_norm_triton(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    check_layouts("add_layer_norm", (x, residual, out), weight, bias)
    tokens, hidden = x.shape
    if tokens == 0:
        return
    block = triton.next_power_of_2(hidden)
    _launch(
        (tokens,),
        (x, residual, weight, bias, out),
        (hidden, x.stride(0), residual.stride(0), out.stride(0)),
        (eps,),
        BLOCK=block,
        **nearest("add_rms_norm", block=block),
    )


def add_layer_norm_torch(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    residual.add_(x)
    normalise(residual, weight, bias, eps, out)


add_layer_norm = register(add_layer_norm_torch, mutates=("residual", "out"), triton=add_layer_norm_triton)
