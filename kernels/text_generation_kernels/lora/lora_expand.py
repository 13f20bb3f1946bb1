"""Expand of adapters: what shrink made times B of each token's adapter, as a split-K partial or added to the outputs.

    out[token] (or, with `add`, out[token] + ...) = sum over the pages of the token's adapter of v[:, w, part, m] @ b.T

where w is the work item of the tile and the page, m the token's place in the tile, and each output row of b meets the
part to which it belongs. Tokens without adapter get zeros, or, with `add`, nothing.

Layouts: `v` as `lora_shrink` makes it; `b` `[pages, outputs, RANK_UNITS]` (`rank_pages.py`); `part_of_block` as
`part_of_blocks` makes it, None where there is one part; `order`, `tiles`, `work`: `adapter_tiles.py`; `out` `[tokens,
outputs]`, unit stride in the last dimension, any stride between tokens: float32, as one of the partials `[n, tokens,
outputs]` that the next kernel adds up, or of the model's type, rounded once. ValueError for shapes that do not fit.

Splits, then pages are added up in order. `v` is never rounded to 16 bits: matrix instructions take it as three TF32
numbers (3xTF32, Ootomo and Yokota, 2022). A token has the same bits whichever others are there, in a batch of any size.

A site calls it once, behind `lora_shrink`. With `add` it must run after the GEMM of the base. `b`, `part_of_block` and
the tables are read before the previous kernel has finished, so no kernel of the step may write them. The grid follows
from the capacity of `tiles`; thread blocks of empty tiles end at once.
Bytes floor: for each page in use outputs * RANK_UNITS * element size, once, and for each token its outputs, written, or
with `add` read and written. Lab: docs/lab/2026-11-adapters-on-a-card.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.prefetch import prefetch_l2
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton
from .rank_pages import OUTPUT_BLOCK, RANK_UNITS, check_tables

_BLOCK_N = {16: 128, 64: 64}
"""Outputs of a thread block by tokens of a tile: sums and operands fit into the registers."""
_WARPS, _STAGES = 2, 1
"""From four warps on, the compiler would take other matrix instructions for tiles of 64 tokens than for 16. Most
adapters have one page, so there is nothing to prefetch while another is computed.
"""


@triton.jit
def _sum_of_splits(v_ptrs, here, stride_split, SPLITS: tl.constexpr):
    """[BLOCK_M, UNITS]: the result of shrink. All loads are in flight at once."""
    v = tl.load(v_ptrs, mask=here, other=0.0)
    for split in tl.static_range(1, SPLITS):
        v += tl.load(v_ptrs + split * stride_split, mask=here, other=0.0)
    return v


@triton.jit(
    do_not_specialize=["items"],
    do_not_specialize_on_alignment=["order_ptr", "tiles_ptr", "work_ptr"],
)
def lora_expand_kernel(
    v_ptr,  # [SPLITS, items, PARTS, BLOCK_M, UNITS] float32
    b_ptr,  # [pages, outputs, UNITS]
    part_of_block_ptr,  # [blocks] int32, None where PARTS is 1
    order_ptr,  # [tokens] int32
    tiles_ptr,  # [tiles, 4] int32
    work_ptr,  # [items, 2] int32
    out_ptr,  # [tokens, outputs]
    outputs,
    stride_b_page,
    stride_out_token,
    items,
    ADD: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    UNITS: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,  # tokens of a tile
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs of the tokens of one tile."""
    blocks = tl.cdiv(outputs, BLOCK_N)
    tile = tl.program_id(0) // blocks
    first_row = tl.program_id(0) % blocks * BLOCK_N
    first = tl.load(tiles_ptr + tile * 4)
    count = tl.load(tiles_ptr + tile * 4 + 1)
    first_item = tl.load(tiles_ptr + tile * 4 + 2)
    end_item = first_item + tl.load(tiles_ptr + tile * 4 + 3)
    # With ADD, outputs of a tile without pages are there already.
    if (count == 0) | (ADD & (first_item == end_item)):
        wait_for_previous(PDL)
        return
    members = tl.arange(0, BLOCK_M)
    here = (members < count)[:, None]
    tokens = tl.load(order_ptr + first + members, mask=members < count, other=0).to(tl.int64)
    rows = first_row + tl.arange(0, BLOCK_N)
    there = rows < outputs
    units = tl.arange(0, UNITS)
    b_offsets = rows[:, None] * UNITS + units[None, :]
    first_part, last_part = 0, 0
    if PARTS > 1:
        parts = tl.load(part_of_block_ptr + tl.minimum(rows, outputs - 1) // OUTPUT_BLOCK)
        first_part, last_part = tl.min(parts, axis=0), tl.max(parts, axis=0)
    if PDL:
        LINE: tl.constexpr = 1024 // b_ptr.dtype.element_ty.primitive_bitwidth
        lines = first_row * UNITS + tl.arange(0, BLOCK_N * UNITS // LINE) * LINE
        for item in range(first_item, end_item):
            page = tl.load(work_ptr + item * 2).to(tl.int64)
            prefetch_l2(b_ptr + page * stride_b_page + tl.minimum(lines, outputs * UNITS - 1))
    wait_for_previous(PDL)
    # Not earlier: the next kernel relies on all kernels before this one being finished.
    launch_dependents(PDL)

    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for item in range(first_item, end_item):
        page = tl.load(work_ptr + item * 2).to(tl.int64)
        b = tl.load(b_ptr + page * stride_b_page + b_offsets, mask=there[:, None], other=0.0).to(tl.float32)
        for part in range(first_part, last_part + 1):
            places = (item * PARTS + part) * (BLOCK_M * UNITS) + members[:, None] * UNITS + units[None, :]
            v = _sum_of_splits(v_ptr + places, here, items * (PARTS * BLOCK_M * UNITS), SPLITS)
            sums = tl.dot(v, b.T, acc, input_precision="tf32x3")
            acc = tl.where((parts == part)[None, :], sums, acc) if PARTS > 1 else sums
    out_ptrs = out_ptr + tokens[:, None] * stride_out_token + rows[None, :]
    stored = here & there[None, :]
    if ADD:
        acc = tl.load(out_ptrs, mask=stored, other=0.0).to(tl.float32) + acc
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=stored)


_launch = Launcher(
    lora_expand_kernel,
    writes=("out",),
    reads_early=("b", "part_of_block", "order", "tiles", "work"),
    dependents="after the wait",
)


def _check(
    v: Tensor, b: Tensor, part_of_block: Tensor | None, order: Tensor, tiles: Tensor, work: Tensor, out: Tensor
) -> None:
    outputs, parts = out.shape[1], v.shape[2] if v.dim() == 5 else 0
    blocks = None if part_of_block is None else part_of_block.numel()
    if (
        b.dim() != 3
        or b.shape[1:] != (outputs, RANK_UNITS)
        or len(order) != len(out)
        or blocks != (None if parts == 1 else -(-outputs // OUTPUT_BLOCK))
    ):
        raise shapes_error("lora_expand", v=v, b=b, part_of_block=part_of_block, order=order, out=out)
    if out.stride(1) != 1 or not b[:1].is_contiguous():
        raise ValueError("lora_expand: pages of b and tokens of out must be contiguous")
    check_tables("lora_expand", order, tiles, work, v, parts)


def lora_expand_triton(
    v: Tensor,
    b: Tensor,
    part_of_block: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    work: Tensor,
    out: Tensor,
    add: bool = False,
) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit."""
    _check(v, b, part_of_block, order, tiles, work, out)
    splits, items, parts, tile_tokens, _ = v.shape
    outputs = out.shape[1]
    if out.numel() == 0:
        return
    block_n = _BLOCK_N[tile_tokens]
    _launch(
        (len(tiles) * triton.cdiv(outputs, block_n),),
        (v, b, part_of_block, order, tiles, work, out),
        (outputs, b.stride(0), out.stride(0)),
        (items,),
        ADD=add,
        SPLITS=splits,
        PARTS=parts,
        UNITS=RANK_UNITS,
        OUTPUT_BLOCK=OUTPUT_BLOCK,
        BLOCK_M=tile_tokens,
        BLOCK_N=block_n,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )


def lora_expand_torch(
    v: Tensor,
    b: Tensor,
    part_of_block: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    work: Tensor,
    out: Tensor,
    add: bool = False,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    _check(v, b, part_of_block, order, tiles, work, out)
    parts, tile_tokens = v.shape[2:4]
    tokens, outputs = out.shape
    page, tile = work.long().unbind(1)
    of_page = b[page.clamp(min=0)].float().transpose(1, 2)
    summed = v.sum(0)
    of_items = summed[:, 0] @ of_page
    if part_of_block is not None:
        rows = part_of_block.repeat_interleave(OUTPUT_BLOCK)[:outputs]
        for part in range(1, parts):
            of_items = torch.where(rows == part, summed[:, part] @ of_page, of_items)
    # What empty items have goes to one more tile, and what no token has to one more token.
    of_tiles = out.new_zeros(len(tiles) + 1, tile_tokens, outputs, dtype=torch.float32)
    of_tiles.index_add_(0, torch.where(tile < 0, len(tiles), tile), of_items)
    members = torch.arange(tile_tokens, device=out.device)
    places = (tiles[:, :1].long() + members).clamp(max=max(tokens - 1, 0))
    owner = torch.where(members < tiles[:, 1:2], order.long()[places], tokens)
    delta = out.new_zeros(tokens + 1, outputs, dtype=torch.float32)
    delta[owner] = of_tiles[:-1]
    out.copy_(out.float() + delta[:-1] if add else delta[:-1])


lora_expand = register(lora_expand_torch, mutates=("out",), triton=lora_expand_triton)
