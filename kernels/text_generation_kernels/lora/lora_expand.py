"""Expand of adapters: what shrink made times B of each token's adapter, as a split-K partial or added to the outputs.

    out[token] (or, with `add`, out[token] + ...) = sum over the pages of the token's adapter of v[:, w, part, m] @ b.T

where w is the work item of the tile and the page, m the token's place in the tile, and each output row of b meets the
part to which it belongs. Tokens without adapter get zeros, or, with `add`, nothing.

Layouts: `v` as `lora_shrink` makes it; `b` `[pages, outputs, RANK_UNITS]` (`rank_pages.py`); `part_of_block` as
`part_of_blocks` makes it, None where there is one part; from each multiple of `run` on so many outputs are of one part
(`run_of`), which large thread blocks make use of; `order`, `tiles`, `work`: `adapter_tiles.py`; `out` `[tokens,
outputs]`, unit stride in the last dimension, any stride between tokens: float32, as one of the partials `[n, tokens,
outputs]` that the next kernel adds up, or of the model's type, rounded once. ValueError for shapes that do not fit.

Splits, where shrink has left them, then pages are added up in order. `v` is never rounded to 16 bits: matrix
instructions take it as three TF32 numbers (3xTF32, Ootomo and Yokota, 2022). A token has the same bits whichever others
are there, in a batch of any size.

A site calls it once, behind `lora_shrink`. With `add` it must run after the GEMM of the base. `b`, `part_of_block` and
the tables are read before the previous kernel has finished, so no kernel of the step may write them. The grid follows
from the capacity of `tiles`; thread blocks of empty tiles end at once.
Bytes floor: for each page in use outputs * RANK_UNITS * element size, once, and for each token its outputs, written, or
with `add` read and written. Lab: docs/lab/2026-11-adapters-on-a-card.md.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..norm.activations import gated_activation
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.prefetch import prefetch_l2
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton
from .adapter_tiles import TILE_TOKENS
from .rank_pages import OUTPUT_BLOCK, RANK_UNITS, check_tables, each_matmul

_MOST_TOKENS = 32
"""Tokens of a thread block: from 64 on, the compiler would take other matrix instructions for tall tiles than for
others.
"""
_SETTINGS = {16: (128, 2), 64: (64, 4)}
"""Outputs of a thread block, and its warps, by tokens of a tile."""
_STAGES = 1
"""Most adapters have one page, so there is nothing to prefetch while another is computed."""


@triton.jit
def _sum_of_splits(v_ptrs, here, stride_split, SPLITS: tl.constexpr):
    """[BLOCK_M, UNITS]: the result of shrink. All loads are in flight at once."""
    v = tl.load(v_ptrs, mask=here, other=0.0)
    for split in tl.static_range(1, SPLITS):
        v += tl.load(v_ptrs + split * stride_split, mask=here, other=0.0)
    return v


@triton.jit
def _prefetch(
    first_row, outputs, b_ptr, work_ptr, stride_b_page, first_item, end_item,
    UNITS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Fetches BLOCK_N rows of B into L2."""
    LINE: tl.constexpr = 1024 // b_ptr.dtype.element_ty.primitive_bitwidth
    lines = first_row * UNITS + tl.arange(0, BLOCK_N * UNITS // LINE) * LINE
    for item in range(first_item, end_item):
        page = tl.load(work_ptr + item * 2).to(tl.int64)
        prefetch_l2(b_ptr + page * stride_b_page + tl.minimum(lines, outputs * UNITS - 1))


@triton.jit
def _parts_of(
    first_row, rows, outputs, part_of_block_ptr,
    OUTPUT_BLOCK: tl.constexpr, PARTS: tl.constexpr, ONE_PART: tl.constexpr,
):  # fmt: skip
    """The part of each row, where they have several, the first and the last of them."""
    if PARTS == 1:
        return 0, 0, 0
    elif ONE_PART:
        part = tl.load(part_of_block_ptr + first_row // OUTPUT_BLOCK)
        return part, part, part
    else:
        parts = tl.load(part_of_block_ptr + tl.minimum(rows, outputs - 1) // OUTPUT_BLOCK)
        return parts, tl.min(parts, axis=0), tl.max(parts, axis=0)


@triton.jit
def _delta(
    rows, there, parts, first_part, last_part, v_ptrs, here, b_ptr, work_ptr,
    stride_b_page, stride_split, first_item, end_item,
    SPLITS: tl.constexpr, PARTS: tl.constexpr, UNITS: tl.constexpr, BLOCK_M: tl.constexpr, ONE_PART: tl.constexpr,
):  # fmt: skip
    """[tokens, rows]: what the pages add to these outputs."""
    b_offsets = rows[:, None] * UNITS + tl.arange(0, UNITS)[None, :]
    acc = tl.zeros([v_ptrs.shape[0], rows.shape[0]], dtype=tl.float32)
    for item in range(first_item, end_item):
        page = tl.load(work_ptr + item * 2).to(tl.int64)
        b = tl.load(b_ptr + page * stride_b_page + b_offsets, mask=there[:, None], other=0.0).to(tl.float32)
        if ONE_PART:
            v = _sum_of_splits(v_ptrs + (item * PARTS + first_part) * (BLOCK_M * UNITS), here, stride_split, SPLITS)
            acc = tl.dot(v, b.T, acc, input_precision="tf32x3")
        else:
            for part in range(first_part, last_part + 1):
                v = _sum_of_splits(v_ptrs + (item * PARTS + part) * (BLOCK_M * UNITS), here, stride_split, SPLITS)
                sums = tl.dot(v, b.T, acc, input_precision="tf32x3")
                acc = tl.where((parts == part)[None, :], sums, acc)
    return acc


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
    base_ptr,  # [tokens, outputs], None where `out` is the sum of the pages alone
    out_ptr,  # [tokens, outputs or, with ACTIVATION, outputs / 2]
    outputs,
    stride_b_page,
    stride_base_token,
    stride_out_token,
    items,
    ACTIVATION: tl.constexpr,  # key of GATED, or None
    IN_PLACE: tl.constexpr,  # whether `out` is `base`
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    UNITS: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,  # tokens of a tile
    TOKENS: tl.constexpr,  # of a thread block, which divide those of a tile
    BLOCK_N: tl.constexpr,
    ONE_PART: tl.constexpr,  # whether the outputs of every thread block are of one part
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs of TOKENS tokens of one tile."""
    width = outputs if ACTIVATION is None else outputs // 2
    blocks = tl.cdiv(width, BLOCK_N)
    first_row = tl.program_id(0) % blocks * BLOCK_N
    tile = tl.program_id(0) // blocks // (BLOCK_M // TOKENS)
    member = tl.program_id(0) // blocks % (BLOCK_M // TOKENS) * TOKENS
    first = tl.load(tiles_ptr + tile * 4)
    count = tl.load(tiles_ptr + tile * 4 + 1)
    first_item = tl.load(tiles_ptr + tile * 4 + 2)
    end_item = first_item + tl.load(tiles_ptr + tile * 4 + 3)
    # In place, outputs of a tile without pages are there already.
    if (count <= member) | (IN_PLACE & (first_item == end_item)):
        wait_for_previous(PDL)
        return
    members = member + tl.arange(0, TOKENS)
    here = (members < count)[:, None]
    tokens = tl.load(order_ptr + first + members, mask=members < count, other=0).to(tl.int64)
    rows = first_row + tl.arange(0, BLOCK_N)
    there = rows < width
    parts, first_part, last_part = _parts_of(first_row, rows, outputs, part_of_block_ptr, OUTPUT_BLOCK, PARTS, ONE_PART)
    of_pages = b_ptr, work_ptr, stride_b_page
    if PDL:
        _prefetch(first_row, outputs, *of_pages, first_item, end_item, UNITS, BLOCK_N)
    if ACTIVATION is not None:
        up_parts, first_up, last_up = _parts_of(
            first_row + width, rows + width, outputs, part_of_block_ptr, OUTPUT_BLOCK, PARTS, ONE_PART
        )
        if PDL:
            _prefetch(first_row + width, outputs, *of_pages, first_item, end_item, UNITS, BLOCK_N)
    wait_for_previous(PDL)
    # Not earlier: the next kernel relies on all kernels before this one being finished.
    launch_dependents(PDL)

    stored = here & there[None, :]
    if base_ptr is not None:
        base_ptrs = base_ptr + tokens[:, None] * stride_base_token + rows[None, :]
        out = tl.load(base_ptrs, mask=stored, other=0.0)
        if ACTIVATION is not None:
            up = tl.load(base_ptrs + width, mask=stored, other=0.0)
    v_ptrs = v_ptr + members[:, None] * UNITS + tl.arange(0, UNITS)[None, :]
    stride_split = items * (PARTS * BLOCK_M * UNITS)
    acc = _delta(
        rows, there, parts, first_part, last_part, v_ptrs, here, *of_pages, stride_split, first_item, end_item,
        SPLITS, PARTS, UNITS, BLOCK_M, ONE_PART,
    )  # fmt: skip
    if base_ptr is not None:
        acc += out.to(tl.float32)
    if ACTIVATION is not None:
        up_acc = up.to(tl.float32) + _delta(
            rows + width, there, up_parts, first_up, last_up, v_ptrs, here, *of_pages, stride_split, first_item,
            end_item, SPLITS, PARTS, UNITS, BLOCK_M, ONE_PART,
        )  # fmt: skip
        of_type = base_ptr.dtype.element_ty
        acc = gated_activation(acc.to(of_type).to(tl.float32), up_acc.to(of_type).to(tl.float32), ACTIVATION)
    out_ptrs = out_ptr + tokens[:, None] * stride_out_token + rows[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=stored)


_launch = Launcher(
    lora_expand_kernel,
    writes=("out",),
    reads_early=("b", "part_of_block", "order", "tiles", "work"),
    dependents="after the wait",
)


def check_expand(
    name: str, v: Tensor, b: Tensor, part_of_block: Tensor | None, order: Tensor, tiles: Tensor, work: Tensor,
    sums: Tensor, run: int,
) -> None:  # fmt: skip
    """Raises ValueError where these do not fit; `sums` are as wide as the layer."""
    outputs, parts = sums.shape[1], v.shape[2] if v.dim() == 5 else 0
    blocks = None if part_of_block is None else part_of_block.numel()
    if (
        b.dim() != 3
        or b.shape[1:] != (outputs, RANK_UNITS)
        or len(order) != len(sums)
        or blocks != (None if parts == 1 else -(-outputs // OUTPUT_BLOCK))
    ):
        raise shapes_error(name, v=v, b=b, part_of_block=part_of_block, order=order, sums=sums)
    if sums.stride(1) != 1 or not b[:1].is_contiguous():
        raise ValueError(f"{name}: pages of b and tokens of the outputs must be contiguous")
    if run < OUTPUT_BLOCK or run % OUTPUT_BLOCK:
        raise ValueError(f"{name}: run must be a multiple of {OUTPUT_BLOCK}, not {run}")
    check_tables(name, order, tiles, work, v, parts)


def launch_expand(
    v: Tensor, b: Tensor, part_of_block: Tensor | None, order: Tensor, tiles: Tensor, work: Tensor,
    base: Tensor | None, activation: str | None, out: Tensor, run: int,
) -> None:  # fmt: skip
    """Launches the kernel: deltas into `out`, beside `base`, where there is one, and through an activation."""
    splits, items, parts, tile_tokens, _ = v.shape
    if out.numel() == 0:
        return
    tokens, (block_n, warps) = min(tile_tokens, _MOST_TOKENS), _SETTINGS[tile_tokens]
    _launch(
        (len(tiles) * (tile_tokens // tokens) * triton.cdiv(out.shape[1], block_n),),
        (v, b, part_of_block, order, tiles, work, base, out),
        (b.shape[1], b.stride(0), 0 if base is None else base.stride(0), out.stride(0)),
        (items,),
        ACTIVATION=activation,
        IN_PLACE=base is out,
        SPLITS=splits if tile_tokens == TILE_TOKENS else 1,
        PARTS=parts,
        UNITS=RANK_UNITS,
        OUTPUT_BLOCK=OUTPUT_BLOCK,
        BLOCK_M=tile_tokens,
        TOKENS=tokens,
        BLOCK_N=block_n,
        ONE_PART=parts == 1 or run % block_n == 0,
        num_warps=warps,
        num_stages=_STAGES,
    )


def lora_expand_triton(
    v: Tensor,
    b: Tensor,
    part_of_block: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    work: Tensor,
    out: Tensor,
    add: bool = False,
    run: int = OUTPUT_BLOCK,
) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit."""
    check_expand("lora_expand", v, b, part_of_block, order, tiles, work, out, run)
    launch_expand(v, b, part_of_block, order, tiles, work, out if add else None, None, out, run)


def lora_expand_torch(
    v: Tensor,
    b: Tensor,
    part_of_block: Tensor | None,
    order: Tensor,
    tiles: Tensor,
    work: Tensor,
    out: Tensor,
    add: bool = False,
    run: int = OUTPUT_BLOCK,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    check_expand("lora_expand", v, b, part_of_block, order, tiles, work, out, run)
    parts, tile_tokens = v.shape[2:4]
    tokens, outputs = out.shape
    page, tile = work.long().unbind(1)
    of_page = b[page.clamp(min=0)].float().transpose(1, 2)
    summed = v.sum(0)
    of_items = each_matmul(summed[:, 0], of_page)
    if part_of_block is not None:
        rows = part_of_block.repeat_interleave(OUTPUT_BLOCK)[:outputs]
        for part in range(1, parts):
            of_items = torch.where(rows == part, each_matmul(summed[:, part], of_page), of_items)
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
