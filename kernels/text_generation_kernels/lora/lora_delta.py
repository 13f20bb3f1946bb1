"""What adapters add to the outputs of a layer, shrink and expand in one launch.

    out[token] = sum over the pages of the token's adapter of (scale * x[token] @ a.T) @ b.T, zeros without adapter

Layouts: `x` `[tokens, inputs]`, `out` `[tokens, outputs]` float32, as one of the split-K partials `[n, tokens,
outputs]` that the next kernel adds up; both with unit stride in the last dimension, any stride between tokens. The
pages of a site and the tables of a step, with tiles of TILE_TOKENS tokens: `site_adapters.py`. `x`, `a` and `b` have
one 16-bit type; sums are float32. ValueError for shapes that do not fit.

The first thread blocks shrink and pass the results to the others (`shrunk_words.py`), which expand some blocks of
outputs each. Their number does not depend on that of adapters: a graph has tables for as many adapters as tokens, and
thread blocks for all of them would take longer to start than those of one adapter to compute. Rows of B are loaded a
block of outputs ahead.

A site calls it in a step of few tokens, before the GEMM of the base, which dependents of this kernel launch early: it
prefetches its weight meanwhile. `a`, `b`, `part_of_block` and the tables are read before the previous kernel has
finished, so no kernel of the step may write them.
Bytes floor: for each page in use RANK_UNITS * (parts * inputs + outputs) * element size, and for each token its inputs
and 4 * outputs. Lab: docs/lab/2026-11-adapters-on-a-card.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.device import num_sms
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.prefetch import prefetch_l2
from ..runtime.register import register, triton_enabled
from ..runtime.triton import tl, triton
from .adapter_tiles import TILE_TOKENS
from .rank_pages import OUTPUT_BLOCK, RANK_UNITS
from .shrunk_words import turn_of, words_of
from .site_adapters import SiteAdapters

MOST_TOKENS = 64
"""Of a step: with more, the GEMM of the base takes so long that launches count for little."""
_STEP = 256
"""Inputs in one step of shrink's loop."""
_STEPS_OF_SPLIT, _MOST_SPLITS = 4, 8
"""Of a split, so that few steps follow each other; of a layer, because expand reads the sums of each."""
_BLOCK_N = 128
"""Outputs of a thread block at a time."""
_BLOCKS_PER_SM, _SHRINK_BLOCKS = 2, 96
"""The most thread blocks that expand, by SM, and the most that shrink."""
_WARPS, _STAGES = 4, 3


@triton.jit
def _shrink(
    unit, x_ptr, a_ptr, scale_ptr, order_ptr, tiles_ptr, work_ptr, words_ptr, turn,
    inputs, inputs_of_split, stride_x_token, stride_a_page, stride_scale_page, items,
    SPLITS: tl.constexpr, PARTS: tl.constexpr, UNITS: tl.constexpr,
    MASK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One split of a part of a work item."""
    split = unit % SPLITS
    part = unit // SPLITS % PARTS
    item = unit // (SPLITS * PARTS)
    page = tl.load(work_ptr + item * 2).to(tl.int64)
    tile = tl.load(work_ptr + item * 2 + 1)
    members = tl.arange(0, BLOCK_M)
    here = members < tl.load(tiles_ptr + tile * 4 + 1)
    tokens = tl.load(order_ptr + tl.load(tiles_ptr + tile * 4) + members, mask=here, other=0).to(tl.int64)
    units = tl.arange(0, UNITS)
    columns = tl.arange(0, BLOCK_K)
    begin = split * inputs_of_split
    end = tl.minimum(begin + inputs_of_split, inputs)
    x_ptrs = x_ptr + tokens[:, None] * stride_x_token + columns[None, :]
    a_ptrs = a_ptr + page * stride_a_page + (part * UNITS + units)[:, None] * inputs + columns[None, :]
    acc = tl.zeros([BLOCK_M, UNITS], dtype=tl.float32)
    for start in range(begin, end, BLOCK_K):
        if MASK_K:
            inside = (columns < inputs - start)[None, :]
            x = tl.load(x_ptrs + start, mask=here[:, None] & inside, other=0.0)
            a = tl.load(a_ptrs + start, mask=inside, other=0.0)
        else:
            x = tl.load(x_ptrs + start, mask=here[:, None], other=0.0)
            a = tl.load(a_ptrs + start)
        acc = tl.dot(x, a.T, acc)
    acc *= tl.load(scale_ptr + page * stride_scale_page + part)
    first = ((split * items + item) * PARTS + part) * (BLOCK_M * UNITS)
    places = first + members[:, None] * UNITS + units[None, :]
    tl.store(words_ptr + places, words_of(acc, turn), mask=here[:, None])


@triton.jit
def _shrunk(word_ptrs, here, turn):
    """[BLOCK_M, UNITS] float32, the sum of words [SPLITS, BLOCK_M, UNITS] once all have arrived."""
    words = tl.load(word_ptrs, mask=here, other=0, volatile=True)
    missing = tl.max((here & ((words >> 32) != turn)).to(tl.int32))
    while missing != 0:
        words = tl.load(word_ptrs, mask=here, other=0, volatile=True)
        missing = tl.max((here & ((words >> 32) != turn)).to(tl.int32))
    return tl.sum(words.to(tl.int32).to(tl.float32, bitcast=True), axis=0)


@triton.jit
def _rows_of_b(
    b_ptr, tiles_ptr, work_ptr, unit, blocks, outputs, stride_b_page, is_used,
    UNITS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Pointers to the rows of B of a unit, [BLOCK_N, UNITS], in the first page of its tile, and which of them exist."""
    tile = unit // blocks
    pages = tl.load(tiles_ptr + tile * 4 + 3, mask=is_used, other=0)
    item = tl.load(tiles_ptr + tile * 4 + 2, mask=is_used, other=0)
    page = tl.load(work_ptr + item * 2, mask=pages > 0, other=0).to(tl.int64)
    rows = unit % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    ptrs = b_ptr + page * stride_b_page + rows[:, None] * UNITS + tl.arange(0, UNITS)[None, :]
    return ptrs, (rows < outputs)[:, None] & (pages > 0)


@triton.jit(
    do_not_specialize=["items", "shrink_blocks", "launch"],
    do_not_specialize_on_alignment=["order_ptr", "tiles_ptr", "work_ptr", "counts_ptr"],
)
def lora_delta_kernel(
    x_ptr,  # [tokens, inputs]
    a_ptr,  # [pages, PARTS, UNITS, inputs]
    b_ptr,  # [pages, outputs, UNITS]
    scale_ptr,  # [pages, PARTS] float32
    part_of_block_ptr,  # [blocks] int32, None where PARTS is 1
    order_ptr,  # [tokens] int32
    tiles_ptr,  # [tiles, 4] int32
    work_ptr,  # [items, 2] int32
    counts_ptr,  # [3] int32: the step, tiles, items
    words_ptr,  # [SPLITS, items, PARTS, BLOCK_M, UNITS] int64
    out_ptr,  # [tokens, outputs] float32
    inputs,
    outputs,
    inputs_of_split,  # a multiple of BLOCK_K
    stride_x_token,
    stride_a_page,
    stride_b_page,
    stride_scale_page,
    stride_out_token,
    items,
    shrink_blocks,
    launch,
    SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr,  # power of two, at least SPLITS
    PARTS: tl.constexpr,
    UNITS: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr,
    MASK_K: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    BLOCK_M: tl.constexpr,  # tokens of a tile
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """Thread blocks below `shrink_blocks` shrink; each of the others expands its share of all outputs of all tiles."""
    # The next kernel is the GEMM of the base, which reads nothing early but its weight.
    launch_dependents(PDL)
    program = tl.program_id(0)
    turn = turn_of(counts_ptr, launch)
    if program < shrink_blocks:
        shrinks = tl.load(counts_ptr + 2) * (SPLITS * PARTS)
        if PDL:  # noqa: SIM102 - Triton evaluates this, and compiles the inner condition
            if program < shrinks:
                LINE: tl.constexpr = 1024 // a_ptr.dtype.element_ty.primitive_bitwidth
                item = program // (SPLITS * PARTS)
                a_ptrs = a_ptr + tl.load(work_ptr + item * 2).to(tl.int64) * stride_a_page
                rows = program // SPLITS % PARTS * UNITS + tl.arange(0, UNITS)[:, None]
                lines = tl.arange(0, BLOCK_K // LINE)[None, :] * LINE
                first = program % SPLITS * inputs_of_split
                for start in range(first, tl.minimum(first + inputs_of_split, inputs), BLOCK_K):
                    prefetch_l2(a_ptrs + rows * inputs + tl.minimum(start + lines, inputs - 1))
        wait_for_previous(PDL)
        for unit in range(program, shrinks, shrink_blocks):
            _shrink(
                unit, x_ptr, a_ptr, scale_ptr, order_ptr, tiles_ptr, work_ptr, words_ptr, turn,
                inputs, inputs_of_split, stride_x_token, stride_a_page, stride_scale_page, items,
                SPLITS, PARTS, UNITS, MASK_K, BLOCK_M, BLOCK_K,
            )  # fmt: skip
        return
    blocks = tl.cdiv(outputs, BLOCK_N)
    units_of_all = tl.load(counts_ptr + 1) * blocks
    share = tl.cdiv(units_of_all, tl.num_programs(0) - shrink_blocks)
    begin = (program - shrink_blocks) * share
    end = tl.minimum(begin + share, units_of_all)
    b_ptrs, exist = _rows_of_b(
        b_ptr, tiles_ptr, work_ptr, begin, blocks, outputs, stride_b_page, begin < end, UNITS, BLOCK_N
    )
    b = tl.load(b_ptrs, mask=exist, other=0.0)
    wait_for_previous(PDL)
    members = tl.arange(0, BLOCK_M)
    units = tl.arange(0, UNITS)
    splits = tl.arange(0, BLOCK_S)
    size = PARTS * BLOCK_M * UNITS
    members_ptrs = words_ptr + (splits.to(tl.int64) * items * size)[:, None, None] + members[None, :, None] * UNITS
    word_ptrs = members_ptrs + units[None, None, :]
    for unit in range(begin, end):
        next_ptrs, exist = _rows_of_b(
            b_ptr, tiles_ptr, work_ptr, unit + 1, blocks, outputs, stride_b_page, unit + 1 < end, UNITS, BLOCK_N
        )
        next_b = tl.load(next_ptrs, mask=exist, other=0.0)
        tile = unit // blocks
        first = tl.load(tiles_ptr + tile * 4)
        here = members < tl.load(tiles_ptr + tile * 4 + 1)
        item = tl.load(tiles_ptr + tile * 4 + 2)
        pages = tl.load(tiles_ptr + tile * 4 + 3)
        tokens = tl.load(order_ptr + first + members, mask=here, other=0).to(tl.int64)
        rows = unit % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
        there = rows < outputs
        first_part, last_part = 0, 0
        if PARTS > 1:
            parts = tl.load(part_of_block_ptr + tl.minimum(rows, outputs - 1) // OUTPUT_BLOCK)
            first_part, last_part = tl.min(parts, axis=0), tl.max(parts, axis=0)
        acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for index in range(pages):
            wide = b.to(tl.float32)
            for part in range(first_part, last_part + 1):
                ptrs = word_ptrs + ((item + index) * PARTS + part) * (BLOCK_M * UNITS)
                v = _shrunk(ptrs, here[None, :, None] & (splits < SPLITS)[:, None, None], turn)
                sums = tl.dot(v, wide.T, acc, input_precision="tf32x3")
                acc = tl.where((parts == part)[None, :], sums, acc) if PARTS > 1 else sums
            page = tl.load(work_ptr + (item + index + 1) * 2, mask=index + 1 < pages, other=0).to(tl.int64)
            more = b_ptr + page * stride_b_page + rows[:, None] * UNITS + units[None, :]
            b = tl.load(more, mask=there[:, None] & (index + 1 < pages), other=0.0)
        out_ptrs = out_ptr + tokens[:, None] * stride_out_token + rows[None, :]
        tl.store(out_ptrs, acc, mask=here[:, None] & there[None, :])
        b = next_b


_launch = Launcher(
    lora_delta_kernel,
    writes=("out", "words"),
    reads_early=("a", "b", "part_of_block", "order", "tiles", "work", "counts"),
    dependents="before the wait",
)


def delta_splits(inputs: int) -> int:
    """The number of splits of a layer's inputs, none of them empty."""
    steps = -(-inputs // _STEP)
    return -(-steps // _steps_of_split(inputs))


def _steps_of_split(inputs: int) -> int:
    steps = -(-inputs // _STEP)
    return max(_STEPS_OF_SPLIT, -(-steps // _MOST_SPLITS))


def lora_delta_takes(x: Tensor, a: Tensor) -> bool:
    """Whether `lora_delta` is the fastest for so many tokens, on this device."""
    return x.is_cuda and triton_enabled() and len(x) <= MOST_TOKENS and x.dtype == a.dtype and x.element_size() == 2


def lora_delta_triton(x: Tensor, adapters: SiteAdapters, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit.

    It runs on one stream at a time, as all calls share the words.
    """
    outputs, inputs = out.shape[1], x.shape[1]
    splits = delta_splits(inputs)
    adapters.check("lora_delta", x, outputs, splits)
    if x.stride(1) != 1 or out.stride(1) != 1 or out.dtype != torch.float32 or len(out) != len(x):
        raise ValueError("lora_delta: out must be float32, and tokens of x and out contiguous")
    each = adapters
    units, sms = len(each.tiles) * triton.cdiv(outputs, _BLOCK_N), num_sms(x.device)
    shrinks = len(each.work) * splits * each.parts
    shrink_blocks = min(shrinks, _SHRINK_BLOCKS)
    _launch(
        (shrink_blocks + min(units, _BLOCKS_PER_SM * sms),),
        (
            *(x, each.a, each.b, each.scale, each.part_of_block),
            *(each.order, each.tiles, each.work, each.counts, each.words, out),
        ),
        (
            *(inputs, outputs, _steps_of_split(inputs) * _STEP),
            *(x.stride(0), each.a.stride(0), each.b.stride(0), each.scale.stride(0), out.stride(0)),
        ),
        (len(each.work), shrink_blocks, each.launch),
        SPLITS=splits,
        BLOCK_S=triton.next_power_of_2(splits),
        PARTS=each.parts,
        UNITS=RANK_UNITS,
        OUTPUT_BLOCK=OUTPUT_BLOCK,
        MASK_K=inputs % _STEP != 0,
        BLOCK_M=TILE_TOKENS,
        BLOCK_K=_STEP,
        BLOCK_N=_BLOCK_N,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )


def lora_delta_torch(x: Tensor, adapters: SiteAdapters, out: Tensor) -> None:
    """Torch implementation: the reference of the tests."""
    adapters.check("lora_delta", x, out.shape[1], 1)
    out.copy_(adapters.delta(x))


lora_delta = register(lora_delta_torch, mutates=("adapters_words", "out"), triton=lora_delta_triton)
