"""Shrink of adapters: inputs of a linear layer times A of each token's adapter, for all parts of the layer at once.

    sum of v[:, w, part, m] over its first dimension = x[token] @ a[page, part].T * scale[page, part]

where work item w has a page and a tile, whose m-th token it is. With tiles of 64 tokens, the sum is v[0].

Layouts: `x` `[tokens, inputs]`, unit stride in the last dimension, any stride between tokens; `a`, `scale`: a site of
`rank_pages.py`; `order`, `tiles`, `work`: `adapter_tiles.py`; `v` `[splits, items of work, parts, tokens of a tile,
RANK_UNITS]` float32, contiguous, as `empty_shrunk` makes it. Rows of `v` that no token has are unspecified. `x` and `a`
have one floating type; sums are float32. ValueError for shapes that do not fit.

Inputs are split where their number says, and `lora_expand` adds the splits up in order: no atomics. In a prompt, each
of many thread blocks would add them up again, so a second kernel does it here, in the same order. A thread block has
matrix instructions for 16 tokens, in tiles of any size. So a token has the same bits whichever others are there, in a
batch of any size.

A site calls it once, beside the GEMM of the base. `a`, `scale` and the tables are read before the previous kernel has
finished, so no kernel of the step may write them. The grid follows from the capacity of `work`; thread blocks of empty
items end at once, so one captured graph serves any number of adapters.
Bytes floor: for each page in use parts * RANK_UNITS * inputs * element size, once, and for each token its inputs.
Lab: docs/lab/2026-11-adapters-on-a-card.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.prefetch import prefetch_l2
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton
from .adapter_tiles import TILE_TOKENS
from .rank_pages import RANK_UNITS, check_tables, each_matmul

_STEP = 128
"""Inputs of a 16-bit type in one step of the loop, of which splits have whole numbers."""
_FEWEST_STEPS, _MOST_SPLITS = 4, 8
"""Of a split, so that the loop has something to prefetch; of a layer, because expand reads the sums of each."""
_WARPS, _STAGES = 2, 3
"""Two warps: from four on, the compiler would take other matrix instructions for tiles of 64 tokens than for 16."""

_NUMBERS_OF_SUM = 512
"""Numbers of a thread block that adds up splits."""


@triton.jit(do_not_specialize=["items"], do_not_specialize_on_alignment=["order_ptr", "tiles_ptr", "work_ptr"])
def lora_shrink_kernel(
    x_ptr,  # [tokens, inputs]
    a_ptr,  # [pages, PARTS, UNITS, inputs]
    scale_ptr,  # [pages, PARTS] float32
    order_ptr,  # [tokens] int32
    tiles_ptr,  # [tiles, 4] int32
    work_ptr,  # [items, 2] int32
    v_ptr,  # [SPLITS, items, PARTS, BLOCK_M, UNITS] float32
    inputs,
    inputs_of_split,  # a multiple of BLOCK_K
    stride_x_token,
    stride_a_page,
    stride_scale_page,
    items,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    UNITS: tl.constexpr,
    MASK_K: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    BLOCK_M: tl.constexpr,  # tokens of a tile
    BLOCK_N: tl.constexpr,  # power of two, at least PARTS * UNITS
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes one split of a work item: the rank units of all parts, so that it reads x once."""
    item = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    page = tl.load(work_ptr + item * 2).to(tl.int64)
    tile = tl.load(work_ptr + item * 2 + 1)
    if tile < 0:
        wait_for_previous(PDL)
        return
    members = tl.arange(0, BLOCK_M)
    here = members < tl.load(tiles_ptr + tile * 4 + 1)
    tokens = tl.load(order_ptr + tl.load(tiles_ptr + tile * 4) + members, mask=here, other=0).to(tl.int64)
    begin = split * inputs_of_split
    end = tl.minimum(begin + inputs_of_split, inputs)
    units = tl.arange(0, BLOCK_N)
    there = units < PARTS * UNITS
    a_rows = a_ptr + page * stride_a_page + tl.minimum(units, PARTS * UNITS - 1)[:, None] * inputs
    scale = tl.load(scale_ptr + page * stride_scale_page + units // UNITS, mask=there, other=0.0)
    if PDL:
        LINE: tl.constexpr = 1024 // a_ptr.dtype.element_ty.primitive_bitwidth
        lines = tl.arange(0, BLOCK_K // LINE) * LINE
        for start in range(begin, end, BLOCK_K):
            prefetch_l2(a_rows + tl.minimum(start + lines, inputs - 1)[None, :])
    wait_for_previous(PDL)
    # Not earlier: the next kernel relies on all kernels before this one being finished.
    launch_dependents(PDL)

    columns = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + tokens[:, None] * stride_x_token + columns[None, :]
    a_ptrs = a_rows + columns[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(begin, end, BLOCK_K):
        x_mask, a_mask = here[:, None], there[:, None]
        if MASK_K:
            inside = (columns < inputs - start)[None, :]
            x_mask, a_mask = x_mask & inside, a_mask & inside
        x = tl.load(x_ptrs + start, mask=x_mask, other=0.0)
        a = tl.load(a_ptrs + start, mask=a_mask, other=0.0)
        acc = tl.dot(x, a.T, acc, input_precision="ieee")
    places = (item * PARTS + units // UNITS)[None, :] * (BLOCK_M * UNITS) + members[:, None] * UNITS
    split_ptr = v_ptr + split.to(tl.int64) * items * (PARTS * BLOCK_M * UNITS)
    v_ptrs = split_ptr + places + (units % UNITS)[None, :]
    tl.store(v_ptrs, acc * scale[None, :], mask=here[:, None] & there[None, :])


@triton.jit(do_not_specialize=["items"], do_not_specialize_on_alignment=["work_ptr"])
def sum_splits_kernel(
    v_ptr,  # [SPLITS, items, NUMBERS] float32
    work_ptr,  # [items, 2] int32
    items,
    SPLITS: tl.constexpr,
    NUMBERS: tl.constexpr,
    BLOCK: tl.constexpr,  # divides NUMBERS
    PDL: tl.constexpr,
):
    """One thread block adds up BLOCK numbers of a work item, into those of the first split."""
    item = tl.program_id(0) // (NUMBERS // BLOCK)
    unused = tl.load(work_ptr + item * 2 + 1) < 0
    wait_for_previous(PDL)
    launch_dependents(PDL)
    if unused:
        return
    v_ptrs = v_ptr + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.load(v_ptrs)
    for split in tl.static_range(1, SPLITS):
        sums += tl.load(v_ptrs + split * items.to(tl.int64) * NUMBERS)
    tl.store(v_ptrs, sums)


_EARLY = ("a", "scale", "order", "tiles", "work")
_launch = Launcher(lora_shrink_kernel, writes=("v",), reads_early=_EARLY, dependents="after the wait")
_launch_sum = Launcher(sum_splits_kernel, writes=("v",), reads_early=("work",), dependents="after the wait")


def shrink_splits(inputs: int) -> int:
    """The number of splits of a layer's inputs, none of them empty. It depends on nothing else, so that bits do not."""
    steps = -(-inputs // _STEP)
    return -(-steps // _steps_of_split(inputs))


def empty_shrunk(x: Tensor, a: Tensor, work: Tensor, tile_tokens: int = TILE_TOKENS) -> Tensor:
    """Memory for the `v` of a site, for tiles of so many tokens."""
    shape = (shrink_splits(x.shape[1]), len(work), a.shape[1], tile_tokens, RANK_UNITS)
    return x.new_empty(shape, dtype=torch.float32)


def _steps_of_split(inputs: int) -> int:
    steps = -(-inputs // _STEP)
    return -(-steps // min(_MOST_SPLITS, -(-steps // _FEWEST_STEPS)))


def _check(x: Tensor, a: Tensor, scale: Tensor, order: Tensor, tiles: Tensor, work: Tensor, v: Tensor) -> None:
    inputs = x.shape[1]
    if (
        a.dim() != 4
        or a.shape[2:] != (RANK_UNITS, inputs)
        or scale.shape != a.shape[:2]
        or len(order) != len(x)
        or len(v) != shrink_splits(inputs)
    ):
        raise shapes_error("lora_shrink", x=x, a=a, scale=scale, order=order, v=v)
    if x.dtype != a.dtype:
        raise ValueError(f"lora_shrink: x is {x.dtype} and a is {a.dtype}, but must have one type")
    if x.stride(1) != 1 or not (a[:1].is_contiguous() and scale[:1].is_contiguous()):
        raise ValueError("lora_shrink: tokens of x, and pages of a and scale must be contiguous")
    check_tables("lora_shrink", order, tiles, work, v, a.shape[1])


def lora_shrink_triton(
    x: Tensor, a: Tensor, scale: Tensor, order: Tensor, tiles: Tensor, work: Tensor, v: Tensor
) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit."""
    _check(x, a, scale, order, tiles, work, v)
    splits, items, parts, tile_tokens, _ = v.shape
    if items == 0 or len(x) == 0:
        return
    inputs = x.shape[1]
    block_k = _STEP if x.element_size() == 2 else _STEP // 4
    _launch(
        (items * splits,),
        (x, a, scale, order, tiles, work, v),
        (inputs, _steps_of_split(inputs) * _STEP, x.stride(0), a.stride(0), scale.stride(0)),
        (items,),
        SPLITS=splits,
        PARTS=parts,
        UNITS=RANK_UNITS,
        MASK_K=inputs % block_k != 0,
        BLOCK_M=tile_tokens,
        BLOCK_N=triton.next_power_of_2(parts * RANK_UNITS),
        BLOCK_K=block_k,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    if tile_tokens > TILE_TOKENS and splits > 1:
        numbers = parts * tile_tokens * RANK_UNITS
        grid = (items * (numbers // _NUMBERS_OF_SUM),)
        constants = {"SPLITS": splits, "NUMBERS": numbers, "BLOCK": _NUMBERS_OF_SUM}
        _launch_sum(grid, (v, work), (), (items,), **constants, num_warps=_WARPS)


def lora_shrink_torch(
    x: Tensor, a: Tensor, scale: Tensor, order: Tensor, tiles: Tensor, work: Tensor, v: Tensor
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Everything is in the first split.

    Each work item is a GEMM of one size, whose rows past the end of the tile are those of some token.
    """
    _check(x, a, scale, order, tiles, work, v)
    parts, tile_tokens = v.shape[2:4]
    if len(work) == 0 or len(x) == 0:
        return
    page, tile = work.long().clamp(min=0).unbind(1)
    members = torch.arange(tile_tokens, device=x.device)
    places = tiles.long()[tile, :1] + members
    rows = x[order.long()[places.clamp(max=len(order) - 1)]].float()
    products = each_matmul(rows, a[page].flatten(1, 2).float().transpose(1, 2))
    scaled = products.unflatten(2, (parts, RANK_UNITS)) * scale[page][:, None, :, None]
    v.zero_()
    v[0] = scaled.transpose(1, 2)


lora_shrink = register(lora_shrink_torch, mutates=("v",), triton=lora_shrink_triton)
