"""8-bit form of activations that no other operator quantises: what attention returns, and the input of a first layer.

The formula is in `_quantise.py`. Layouts: `x` `[tokens, inputs]` of 16 or 32 bits, `out8` alike of float8_e4m3fn or
int8, unit stride in the last dimension, any stride between tokens; `scale` float32 `[tokens]`, or
`[tokens, ceil(inputs / group)]` with any strides; `static` one float32 or None.

Bytes floor: tokens * inputs * (element size + 1).
"""

# pyright: basic, reportArgumentType=false
from torch import Tensor

from ._config import nearest
from ._launch import Launcher, let_next_start, wait_for_previous
from ._quantise import TINY, check_quantised, quantise_torch, store_quantised
from ._register import register
from ._triton import tl, triton


@triton.jit
def quantise_rows_kernel(
    x_ptr,  # [tokens, inputs]
    out8_ptr,  # [tokens, inputs]
    scale_ptr,  # [tokens] or [tokens, groups]
    static_ptr,  # [1] float32 or None
    inputs,
    stride_x_token,
    stride_out8_token,
    stride_scale_token,
    stride_scale_group,
    GROUP: tl.constexpr,
    BOUND: tl.constexpr,
    TINIEST: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least inputs and GROUP
    PDL: tl.constexpr,
):
    """One program quantises one token, held in registers."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    let_next_start(PDL)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + token * stride_x_token + columns, mask=columns < inputs, other=0.0).to(tl.float32)
    store_quantised(
        x, columns, inputs, out8_ptr + token * stride_out8_token, scale_ptr + token * stride_scale_token,
        stride_scale_group, static_ptr, GROUP, BOUND, TINIEST,
    )  # fmt: skip


_launch = Launcher(quantise_rows_kernel)


def quantise_rows_triton(
    x: Tensor, out8: Tensor, scale: Tensor, group: int = 0, static: Tensor | None = None, bound: float = 0.0
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    tokens, inputs = x.shape
    check_quantised("quantise_rows", tokens, inputs, out8, scale, group, static)
    if x.stride(1) != 1:
        raise ValueError("quantise_rows: the last dimension of every tensor must have stride 1")
    if x.numel() == 0:
        return
    block = max(triton.next_power_of_2(inputs), group)
    _launch(
        (tokens,),
        (x, out8, scale, static),
        (inputs, x.stride(0), out8.stride(0), scale.stride(0), scale.stride(-1)),
        GROUP=group,
        BOUND=bound,
        TINIEST=TINY,
        BLOCK=block,
        **nearest("quantise_rows", block=block),
    )


def quantise_rows_torch(
    x: Tensor, out8: Tensor, scale: Tensor, group: int = 0, static: Tensor | None = None, bound: float = 0.0
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    quantise_torch(x, out8, scale, group, static, bound)


quantise_rows = register(quantise_rows_torch, mutates=("out8", "scale"), triton=quantise_rows_triton)
