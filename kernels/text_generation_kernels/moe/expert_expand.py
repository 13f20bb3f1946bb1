"""Expand of adapters of experts: what `expert_shrink` made, times B of each row's adapter and expert.

    delta[m] = sum over the pages of the row's adapter of v[:, m] @ b[page, expert].T

where m is the place of the row in the order of experts. Rows of tokens without adapter get zeros. A GEMM of experts
adds it before its epilogue (`_grouped_gemm_tiles.py`).

Layouts: those of `expert_shrink.py`; `delta` `[rows, outputs]`, contiguous, in the type of B, rounded once. Splits,
then pages are added up in order. `v` is never rounded to 16 bits: matrix instructions take it as three TF32 numbers.
A row has the same bits whichever others are in its tile; the height of tiles may change them.

It is called once before each GEMM of experts. Bytes floor: for each pair in use and each of its pages outputs *
RANK_UNITS * element size, and for each row its outputs. Not measured on a GPU yet.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from torch import Tensor

from ..lora.rank_pages import RANK_UNITS
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._grouped_gemm_tiles import rows_of_tile
from .expert_factors import ExpertFactors
from .expert_shrink import NO_ADAPTER, numbers_of_tile

_BLOCK_N = 64
_WARPS, _STAGES = 4, 1


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["numbers_ptr"])
def expert_expand_kernel(
    v_ptr,  # [SPLITS, rows, WIDTH] float32
    b_ptr,  # [pages, experts, outputs, UNITS]
    spans_ptr,  # [adapters + 1, 2] int32
    numbers_ptr,  # [tokens] int32
    order_ptr,  # [rows] int32
    tiles_ptr,  # [capacity, 3] int32
    num_tiles_ptr,  # [1] int32
    delta_ptr,  # [rows, outputs]
    outputs,
    experts,
    rows,
    SPLITS: tl.constexpr,
    SLOTS: tl.constexpr,  # rows of one token
    UNITS: tl.constexpr,
    WIDTH: tl.constexpr,  # units of all pages of an adapter
    BLOCK_M: tl.constexpr,  # at least the rows of a tile
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs of one tile."""
    blocks = tl.cdiv(outputs, BLOCK_N)
    tile = tl.program_id(0) // blocks
    columns = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    wait_for_previous(PDL)
    launch_dependents(PDL)
    if tile >= tl.load(num_tiles_ptr):
        return
    expert, members, here, own, _ = rows_of_tile(None, order_ptr, tiles_ptr, tile, SLOTS, True, False, BLOCK_M)
    numbers = numbers_of_tile(spans_ptr, numbers_ptr, own, here, SLOTS)
    there = columns < outputs
    units = tl.arange(0, UNITS)
    v_ptrs = v_ptr + members.to(tl.int64)[:, None] * WIDTH + units[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    number = tl.min(numbers, axis=0)
    while number < NO_ADAPTER:
        mine = numbers == number
        first = tl.load(spans_ptr + number * 2)
        for index in range(0, tl.load(spans_ptr + number * 2 + 1)):
            place = (first + index).to(tl.int64) * experts + expert
            b_ptrs = b_ptr + (place * outputs + columns)[:, None] * UNITS + units[None, :]
            b = tl.load(b_ptrs, mask=there[:, None], other=0.0).to(tl.float32)
            v = tl.load(v_ptrs + index * UNITS, mask=mine[:, None], other=0.0)
            for split in tl.static_range(1, SPLITS):
                split_ptrs = v_ptrs + index * UNITS + rows.to(tl.int64) * (split * WIDTH)
                v += tl.load(split_ptrs, mask=mine[:, None], other=0.0)
            # Rows of other adapters have zeros here.
            acc = tl.dot(v, b.T, acc, input_precision="tf32x3")
        numbers = tl.where(mine, NO_ADAPTER, numbers)
        number = tl.min(numbers, axis=0)
    delta_ptrs = delta_ptr + members.to(tl.int64)[:, None] * outputs + columns[None, :]
    tl.store(delta_ptrs, acc.to(delta_ptr.dtype.element_ty), mask=here[:, None] & there[None, :])


_launch = Launcher(expert_expand_kernel, writes=("delta",), dependents="after the wait")


def expert_expand_triton(
    v: Tensor,
    factors: ExpertFactors,
    numbers: Tensor,
    alignment: tuple[Tensor, Tensor, Tensor],
    slots: int,
    height: int,
) -> Tensor:
    """Returns `delta`, for tiles of `height` rows that `moe_align` made. `slots`: rows of a token."""
    order, tiles, num_tiles = alignment
    splits, rows, width = v.shape
    _, experts, outputs, _ = factors.b.shape
    delta = factors.b.new_empty(rows, outputs)
    _launch(
        (len(tiles) * triton.cdiv(outputs, _BLOCK_N),),
        (v, factors.b, factors.spans, numbers, order, tiles, num_tiles, delta),
        (outputs, experts),
        (rows,),
        SPLITS=splits,
        SLOTS=slots,
        UNITS=RANK_UNITS,
        WIDTH=width,
        BLOCK_M=max(16, height),
        BLOCK_N=_BLOCK_N,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    return delta
