"""Activation quantisation as an operator of its own: attention outputs and inputs of a first layer, for W8A8.

The formula and the layouts of what it writes are in `quantise.py`. `x` `[tokens, inputs]` of 16 or 32 bits, unit stride
in the last dimension, any stride between tokens. `largest`: float32 `[tokens, tiles]`, contiguous, or None: the amax of
each tile of a token, where the kernel that wrote `x` has measured it. A thread block then need not read a whole token
for a scale over all of it.

Raises ValueError for layouts that the kernel does not read. Bytes floor: tokens * inputs * (element size + 1).
"""

# pyright: basic, reportArgumentType=false
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton
from .quantise import TINY, Quantised, quantise_torch, round_to, scale_of, store_quantised


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
    quantised: Quantised,
    largest: Tensor | None = None,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    tokens, inputs = x.shape
    quantised.check("quantise_rows", tokens, inputs)
    if x.stride(1) != 1:
        raise ValueError("quantise_rows: the last dimension of every tensor must have stride 1")
    if x.numel() == 0 or not quantised.is_wanted:
        return
    if largest is not None and quantised.is_measured_by_token:
        _by_amax(x, quantised, largest)
        return
    block = max(triton.next_power_of_2(inputs), quantised.group)
    _launch(
        (tokens,),
        (x, *quantised.operands),
        (inputs, x.stride(0), *quantised.strides),
        **quantised.constants,
        BLOCK=block,
        **nearest("quantise_rows", block=block),
    )


def _by_amax(x: Tensor, quantised: Quantised, largest: Tensor) -> None:
    tokens, inputs = x.shape
    tiles = largest.shape[1]
    _launch_by_amax(
        (tokens, triton.cdiv(inputs, WIDTH)),
        (x, largest, quantised.codes, quantised.scale),
        (inputs, x.stride(0), *quantised.strides[:2]),
        TILES=tiles,
        BOUND=quantised.bound,
        TINIEST=TINY,
        BLOCK=WIDTH,
        BLOCK_P=triton.next_power_of_2(tiles),
        num_warps=4,
    )


def quantise_rows_torch(
    x: Tensor,
    quantised: Quantised,
    largest: Tensor | None = None,  # noqa: ARG001 - it is faster only on a device
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    quantise_torch(x, quantised)


quantise_rows = register(
    quantise_rows_torch, mutates=("quantised_codes", "quantised_scale"), triton=quantise_rows_triton
)
