"""Activation quantisation as an operator of its own: attention outputs and inputs of a first layer, for W8A8.

The formula is in `quantise.py`. Layouts: `x` `[tokens, inputs]` of 16 or 32 bits, `out8` alike of float8_e4m3fn or
int8, unit stride in the last dimension, any stride between tokens; `scale` float32 `[tokens]`, or
`[tokens, ceil(inputs / group)]` with any strides; `static` one float32 or None. `largest`: float32 `[tokens, tiles]`,
contiguous, or None: the amax of each tile of a token, where the kernel that wrote `x` has measured it. A thread block
then need not read a whole token for a scale over all of it.

Raises ValueError for layouts that the kernel does not read. Bytes floor: tokens * inputs * (element size + 1).
"""

# pyright: basic, reportArgumentType=false
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton
from .quantise import TINY, check_quantised, quantise_torch, round_to, scale_of, store_quantised


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
    """One thread block quantises one token, held in registers."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + token * stride_x_token + columns, mask=columns < inputs, other=0.0).to(tl.float32)
    store_quantised(
        x, columns, inputs, out8_ptr + token * stride_out8_token, scale_ptr + token * stride_scale_token,
        stride_scale_group, static_ptr, GROUP, BOUND, TINIEST,
    )  # fmt: skip


@triton.jit
def quantise_by_amax_kernel(
    x_ptr,  # [tokens, inputs]
    largest_ptr,  # [tokens, TILES] float32
    out8_ptr,  # [tokens, inputs]
    scale_ptr,  # [tokens]
    inputs,
    stride_x_token,
    stride_out8_token,
    stride_scale_token,
    TILES: tl.constexpr,
    BOUND: tl.constexpr,
    TINIEST: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two
    BLOCK_P: tl.constexpr,  # power of two, at least TILES
    PDL: tl.constexpr,
):
    """One thread block quantises BLOCK inputs of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tiles = tl.arange(0, BLOCK_P)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + token * stride_x_token + columns, mask=columns < inputs, other=0.0).to(tl.float32)
    largest = tl.load(largest_ptr + token * TILES + tiles, mask=tiles < TILES, other=0.0)
    LIMIT: tl.constexpr = 127.0 if out8_ptr.dtype.element_ty == tl.int8 else 448.0
    scale = scale_of(largest, 0, BOUND, LIMIT, TINIEST)
    if tl.program_id(1) == 0:
        tl.store(scale_ptr + token * stride_scale_token, scale)
    eight = round_to(x * tl.div_rn(1.0, scale), out8_ptr, LIMIT)
    tl.store(out8_ptr + token * stride_out8_token + columns, eight, mask=columns < inputs)


_launch = Launcher(quantise_rows_kernel, writes=("out8", "scale"))
_launch_by_amax = Launcher(quantise_by_amax_kernel, writes=("out8", "scale"))
WIDTH = 2048
"""Inputs of a thread block where the amax of tiles is given."""


def quantise_rows_triton(
    x: Tensor,
    out8: Tensor,
    scale: Tensor,
    group: int = 0,
    static: Tensor | None = None,
    bound: float = 0.0,
    largest: Tensor | None = None,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    tokens, inputs = x.shape
    check_quantised("quantise_rows", tokens, inputs, out8, scale, group, static)
    if x.stride(1) != 1:
        raise ValueError("quantise_rows: the last dimension of every tensor must have stride 1")
    if x.numel() == 0:
        return
    if largest is not None and group == 0 and static is None:
        _by_amax(x, out8, scale, bound, largest)
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


def _by_amax(x: Tensor, out8: Tensor, scale: Tensor, bound: float, largest: Tensor) -> None:
    tokens, inputs = x.shape
    tiles = largest.shape[1]
    _launch_by_amax(
        (tokens, triton.cdiv(inputs, WIDTH)),
        (x, largest, out8, scale),
        (inputs, x.stride(0), out8.stride(0), scale.stride(0)),
        TILES=tiles,
        BOUND=bound,
        TINIEST=TINY,
        BLOCK=WIDTH,
        BLOCK_P=triton.next_power_of_2(tiles),
        num_warps=4,
    )


def quantise_rows_torch(
    x: Tensor,
    out8: Tensor,
    scale: Tensor,
    group: int = 0,
    static: Tensor | None = None,
    bound: float = 0.0,
    largest: Tensor | None = None,  # noqa: ARG001 - it is faster only on a device
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    quantise_torch(x, out8, scale, group, static, bound)


quantise_rows = register(quantise_rows_torch, mutates=("out8", "scale"), triton=quantise_rows_triton)
