"""Sorts the rows of a mixture of experts by expert, and cuts them into tiles of one expert each for the grouped GEMMs.

A row is one token computed by one expert: row `token * slots + j` of `[tokens, slots]` ids. `order` holds the rows by
expert, those of one expert in their own order. Tile t computes the rows `order[first:end]` with one expert, at most
`block_m` of them.

Layouts: `ids` `[tokens, slots]` int32, contiguous; rows with others than 0 .. experts - 1 are left out; `order`
`[tokens * slots]` int32; `tiles` `[capacity, 3]` int32: expert, first, end; `num_tiles` `[1]` int32, the number of
them. Nothing is written after them.

`moe_experts` calls it once a layer where there are more than a few tokens. Grid and buffers follow from the number of
tokens alone: the grouped GEMMs read the number of tiles on the device. There is a thread block for each expert; each
counts all ids, so that none waits for another and no atomic operation decides an order.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from torch import Tensor

from ..runtime.batches import tile_capacity
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._grouped_gemm_tiles import is_here

_SHORT, _LONG = 1024, 4096
"""Ids that a thread block counts at a time, for few and for many rows."""


@triton.jit(do_not_specialize=["rows", "block_m"])
def moe_align_kernel(
    ids_ptr,  # [rows] int32
    order_ptr,  # [rows] int32
    tiles_ptr,  # [capacity, 3] int32
    num_tiles_ptr,  # [1] int32
    rows,
    block_m,
    HELD: tl.constexpr,  # experts of this rank, where other ranks have some; else None
    BINS: tl.constexpr,  # power of two, at least the number of experts
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block finds the rows of one expert, and writes its tiles."""
    expert = tl.program_id(0)
    bins = tl.arange(0, BINS)
    members = tl.arange(0, BLOCK)
    wait_for_previous(PDL)
    counts = tl.zeros([BINS], tl.int32)
    for begin in range(0, rows, BLOCK):
        here = begin + members < rows
        ids = tl.load(ids_ptr + begin + members, mask=here, other=0)
        if HELD is not None:
            here = here & is_here(ids, HELD)
        counts += tl.histogram(ids, BINS, mask=here)
    launch_dependents(PDL)
    tiles = (counts + block_m - 1) // block_m
    first = tl.sum(tl.where(bins < expert, counts, 0), axis=0)
    end = first + tl.sum(tl.where(bins == expert, counts, 0), axis=0)
    first_tile = tl.sum(tl.where(bins < expert, tiles, 0), axis=0)
    if expert == 0:
        tl.store(num_tiles_ptr, tl.sum(tiles, axis=0))
    if first == end:
        return

    position = first
    for begin in range(0, rows, BLOCK):
        ids = tl.load(ids_ptr + begin + members, mask=begin + members < rows, other=-1)
        mine = (ids == expert).to(tl.int32)
        places = position + tl.cumsum(mine, axis=0) - 1
        tl.store(order_ptr + places, begin + members, mask=mine != 0)
        position += tl.sum(mine, axis=0)
    for begin in range(0, end - first, BLOCK * block_m):
        starts = first + begin + members * block_m
        tile_ptr = tiles_ptr + (first_tile + begin // block_m + members) * 3
        here = starts < end
        tl.store(tile_ptr, tl.full([BLOCK], 0, tl.int32) + expert, mask=here)
        tl.store(tile_ptr + 1, starts, mask=here)
        tl.store(tile_ptr + 2, tl.minimum(starts + block_m, end), mask=here)


_launch = Launcher(moe_align_kernel, writes=("order", "tiles", "num_tiles"), dependents="after the wait")


def moe_align_triton(ids: Tensor, experts: int, block_m: int, held: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """`order`, `tiles` and `num_tiles` of `ids`. `held`: how many experts this rank has, where others have some."""
    rows = ids.numel()
    order = ids.new_empty(rows)
    tiles = ids.new_empty(tile_capacity(rows, experts, block_m), 3)
    num_tiles = ids.new_empty(1)
    _launch(
        (experts,),
        (ids, order, tiles, num_tiles),
        (),
        (rows, block_m),
        HELD=held,
        BINS=max(32, triton.next_power_of_2(experts)),
        BLOCK=_SHORT if rows <= _SHORT else _LONG,
        num_warps=4 if rows <= _SHORT else 8,
    )
    return order, tiles, num_tiles
