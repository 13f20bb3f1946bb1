"""What adapters add to the outputs of a layer, shrink and expand in one launch.

    out[token] = sum over the pages of the token's adapter of (scale * x[token] @ a.T) @ b.T, zeros without adapter

Layouts: `x` `[tokens, inputs]`, `out` `[tokens, outputs]` float32, as one of the split-K partials `[n, tokens,
outputs]` that the next kernel adds up; both with unit stride in the last dimension, any stride between tokens. The
pages of a site and the tables of a step, with tiles of TILE_TOKENS tokens: `site_adapters.py`. `x`, `a` and `b` have
one 16-bit type; sums are float32. ValueError for shapes that do not fit.

The first thread blocks shrink and pass the results to the others (`shrunk_words.py`), which expand some outputs of one
tile at a time. Their number does not depend on that of adapters: a graph has tables for as many adapters as tokens, and
thread blocks for all of them would take longer to start than those of one adapter to compute. What shrink made is two
numbers of 16 bits for expand, whose products with B are exact, where the type is bfloat16; else three TF32 numbers.

A site calls it in a step of few tokens: `beside` the GEMM of the base, after it, or before a GEMM whose epilogue adds
the result. Beside it, `x` is read and everything computed while the GEMM runs, which therefore must launch dependents
after its wait and not write `x`; only the end waits for it. Little shared memory is used, so that thread blocks of both
fit into an SM. The pages and the tables are read before the previous kernel has finished in either case, so no kernel
of the step may write them.
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
from .shrunk_words import turn_of, values_of, wait_for_some, words_of
from .site_adapters import SiteAdapters

MOST_TOKENS = 64
"""Of a step: with more, the GEMM of the base takes so long that launches count for little."""
_STEP, _STEPS_AT_ONCE = 64, 8
"""Inputs that a thread block shrinks in one step, and the steps whose loads are in flight together."""
_MOST_SPLITS = 8
"""Of the inputs of a layer, because expand reads the sums of each."""
_OUTPUTS, _BLOCK_N = 256, 64
"""Outputs of a thread block at a time, and those of a tile."""
_SHRINK_BLOCKS, _EXPAND_BLOCKS = 2, 3
"""The most thread blocks that shrink and that expand, by SM."""
_SHRINK_BLOCKS_AHEAD, _EXPAND_BLOCKS_AHEAD = 1, 1
"""The same before a GEMM, whose thread blocks are to find room beside these."""
_WARPS, _REGISTERS = 4, 168
"""Two thread blocks of so many registers, and of so little shared memory, fit beside one of the GEMM."""
_THREADS = tl.constexpr(32 * _WARPS)


@triton.jit
def _load_item(item, exists, order_ptr, tiles_ptr, work_ptr, members):
    """Page of a work item, its tokens, and which of these exist; without a page none does."""
    page = tl.load(work_ptr + item * 2, mask=exists, other=-1).to(tl.int64)
    tile = tl.load(work_ptr + item * 2 + 1, mask=page >= 0, other=0)
    here = (members < tl.load(tiles_ptr + tile * 4 + 1)) & (page >= 0)
    tokens = tl.load(order_ptr + tl.load(tiles_ptr + tile * 4) + members, mask=here, other=0).to(tl.int64)
    return page, tokens, here


@triton.jit
def _all_if(condition, SIZE: tl.constexpr):
    """[SIZE] times whether `condition` holds."""
    return tl.full([SIZE], 1, tl.int1) & condition


@triton.jit
def _load_rows(
    row_ptrs, here, begin, end, inputs, MASK_K: tl.constexpr, STEPS: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Rows that are `here`, from input `begin` on, a tile for each step; zeros from `end` on."""
    columns = tl.arange(0, BLOCK_K)
    ptrs = (row_ptrs + begin)[:, None] + columns[None, :]
    tiles = ()
    for step in tl.static_range(STEPS):
        first = begin + step * BLOCK_K
        inside = tl.broadcast_to(here[:, None] & (first < end), ptrs.shape)
        if MASK_K:
            inside = inside & (columns < inputs - first)[None, :]
        tiles += (tl.load(ptrs + step * BLOCK_K, mask=inside, other=0.0),)
    return tiles


@triton.jit
def _shrink(
    program, x_ptr, a_ptr, scale_ptr, order_ptr, tiles_ptr, work_ptr, counts_ptr, words_ptr, turn,
    inputs, inputs_of_split, stride_x_token, stride_a_page, stride_scale_page, items, shrink_blocks,
    BESIDE: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr, UNITS: tl.constexpr,
    MASK_K: tl.constexpr, BLOCK_M: tl.constexpr, STEPS: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One split of a part of a work item after the other, `STEPS` tiles of inputs at a time. What the next dot products
    take is loaded as soon as registers are free: A, which comes from memory, first.
    """
    members = tl.arange(0, BLOCK_M)
    units = tl.arange(0, UNITS)
    of_item = SPLITS * PARTS
    page, tokens, here = _load_item(program // of_item, True, order_ptr, tiles_ptr, work_ptr, members)
    begin = program % SPLITS * inputs_of_split
    end = tl.minimum(begin + inputs_of_split, inputs)
    rows = program // SPLITS % PARTS * UNITS + units
    a_ptrs = a_ptr + page * stride_a_page + rows * inputs
    a = _load_rows(a_ptrs, _all_if(page >= 0, UNITS), begin, end, inputs, MASK_K, STEPS, BLOCK_K)
    shrinks = tl.load(counts_ptr + 2) * of_item
    if not BESIDE:
        wait_for_previous(PDL)
        launch_dependents(PDL)
    x = _load_rows(x_ptr + tokens * stride_x_token, here, begin, end, inputs, MASK_K, STEPS, BLOCK_K)
    for unit in range(program, shrinks, shrink_blocks):
        part = unit // SPLITS % PARTS
        scale = tl.load(scale_ptr + page * stride_scale_page + part)
        after = unit + shrink_blocks
        page_after, tokens_after, here_after = _load_item(
            after // of_item, after < shrinks, order_ptr, tiles_ptr, work_ptr, members
        )
        begin_after = after % SPLITS * inputs_of_split
        acc = tl.zeros([BLOCK_M, UNITS], dtype=tl.float32)
        for start in range(begin, end, STEPS * BLOCK_K):
            for step in tl.static_range(STEPS):
                acc = tl.dot(x[step], a[step].T, acc)
            first = start + STEPS * BLOCK_K
            more = first < end
            first = tl.where(more, first, begin_after)
            last = tl.where(more, end, tl.minimum(begin_after + inputs_of_split, inputs))
            rows = tl.where(more, unit, after) // SPLITS % PARTS * UNITS + units
            a_page = tl.where(more, page, page_after)
            a_ptrs = a_ptr + a_page * stride_a_page + rows * inputs
            a = _load_rows(a_ptrs, _all_if(a_page >= 0, UNITS), first, last, inputs, MASK_K, STEPS, BLOCK_K)
            x_ptrs = x_ptr + tl.where(more, tokens, tokens_after) * stride_x_token
            x = _load_rows(x_ptrs, tl.where(more, here, here_after), first, last, inputs, MASK_K, STEPS, BLOCK_K)
        places = ((unit % SPLITS * items + unit // of_item) * PARTS + part) * (BLOCK_M * UNITS)
        ptrs = words_ptr + places + members[:, None] * UNITS + units[None, :]
        tl.store(ptrs, words_of(acc * scale, turn), mask=here[:, None])
        page, tokens, here, begin = page_after, tokens_after, here_after, begin_after
        end = tl.minimum(begin + inputs_of_split, inputs)


@triton.jit
def _load_tile(
    unit, expands, runs, tiles_ptr, work_ptr, part_of_block_ptr,
    PARTS: tl.constexpr, OUTPUTS: tl.constexpr, OUTPUT_BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a unit of expand: its first output, their part, the tile's row of the table, and its first page or -1."""
    exists = unit < expands
    first = unit % runs * OUTPUTS
    row_ptr = tiles_ptr + unit // runs * 4
    place = tl.load(row_ptr, mask=exists, other=0)
    count = tl.load(row_ptr + 1, mask=exists, other=0)
    item = tl.load(row_ptr + 2, mask=exists, other=0)
    pages = tl.load(row_ptr + 3, mask=exists, other=0)
    part = 0
    if PARTS > 1:
        part = tl.load(part_of_block_ptr + first // OUTPUT_BLOCK)
    page = tl.load(work_ptr + item * 2, mask=pages > 0, other=-1)
    return first, part, place, count, item, pages, page


@triton.jit
def _prefetch_b(
    page, first, b_ptr, outputs, stride_b_page, UNITS: tl.constexpr, OUTPUTS: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Prefetches B of a page, of the outputs from `first` on, if there is a page."""
    if PDL:
        if page >= 0:
            LINE: tl.constexpr = 1024 // b_ptr.dtype.element_ty.primitive_bitwidth
            lines = first * UNITS + tl.arange(0, OUTPUTS * UNITS // LINE) * LINE
            prefetch_l2(b_ptr + page.to(tl.int64) * stride_b_page + tl.minimum(lines, outputs * UNITS - 1))


@triton.jit
def _load_b(
    page, first, b_ptr, outputs, stride_b_page, UNITS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """B of a page, of the outputs from `first` on, in tiles of BLOCK_N; zeros where there is none."""
    rows = first + tl.arange(0, BLOCK_N)
    ptrs = b_ptr + tl.maximum(page, 0).to(tl.int64) * stride_b_page + rows[:, None] * UNITS
    ptrs += tl.arange(0, UNITS)[None, :]
    tiles = ()
    for start in tl.static_range(0, OUTPUTS, BLOCK_N):
        inside = tl.broadcast_to(((rows + start < outputs) & (page >= 0))[:, None], ptrs.shape)
        tiles += (tl.load(ptrs + start * UNITS, mask=inside, other=0.0),)
    return tiles


@triton.jit
def _times_b(v, b, acc):
    """`acc` + v @ b.T, with the 16 leading bits of v at least."""
    if b.dtype == tl.bfloat16:
        high = v.to(tl.bfloat16)
        low = (v - high.to(tl.float32)).to(tl.bfloat16)
        return tl.dot(high, b.T, tl.dot(low, b.T, acc))
    else:
        return tl.dot(v, b.to(tl.float32).T, acc, input_precision="tf32x3")


@triton.jit
def _expand(
    program, programs, b_ptr, part_of_block_ptr, order_ptr, tiles_ptr, work_ptr, counts_ptr, words_ptr, turn, out_ptr,
    outputs, stride_b_page, stride_out_token, items,
    BESIDE: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, PARTS: tl.constexpr, UNITS: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK_N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """OUTPUTS outputs of a tile, then those of another. B of the next page, of this tile or the next, is prefetched while
    the results of shrink for this one are waited for.
    """
    runs = tl.cdiv(outputs, OUTPUTS)
    expands = tl.load(counts_ptr + 1) * runs
    first, part, place, count, item, pages, page = _load_tile(
        program, expands, runs, tiles_ptr, work_ptr, part_of_block_ptr, PARTS, OUTPUTS, OUTPUT_BLOCK
    )
    _prefetch_b(page, first, b_ptr, outputs, stride_b_page, UNITS, OUTPUTS, PDL)
    members = tl.arange(0, BLOCK_M)
    splits = tl.arange(0, BLOCK_S)
    of_split = splits.to(tl.int64) * items * (PARTS * BLOCK_M * UNITS)
    in_tile = members[None, :, None] * UNITS + tl.arange(0, UNITS)[None, None, :]
    columns = tl.arange(0, BLOCK_N)
    if not BESIDE:
        wait_for_previous(PDL)
        launch_dependents(PDL)
    for unit in range(program, expands, programs):
        here = members < count
        tokens = tl.load(order_ptr + place + members, mask=here, other=0).to(tl.int64)
        after = _load_tile(
            unit + programs, expands, runs, tiles_ptr, work_ptr, part_of_block_ptr, PARTS, OUTPUTS, OUTPUT_BLOCK
        )
        acc = ()
        for _ in tl.static_range(OUTPUTS // BLOCK_N):
            acc += (tl.zeros([BLOCK_M, BLOCK_N], tl.float32),)
        # Without pages once, for the zeros.
        for index in range(tl.maximum(pages, 1)):
            awaited = here[None, :, None] & (splits < SPLITS)[:, None, None] & (index < pages)
            ptrs = words_ptr + of_split[:, None, None] + ((item + index) * PARTS + part) * (BLOCK_M * UNITS) + in_tile
            words = tl.load(ptrs, mask=awaited, other=0, volatile=True)
            b = _load_b(page, first, b_ptr, outputs, stride_b_page, UNITS, OUTPUTS, BLOCK_N)
            more = index + 1 < pages
            page = tl.load(work_ptr + (item + index + 1) * 2, mask=more, other=-1)
            page = tl.where(more, page, after[6])
            first_after = tl.where(more, first, after[0])
            _prefetch_b(page, first_after, b_ptr, outputs, stride_b_page, UNITS, OUTPUTS, PDL)
            if BLOCK_S * UNITS >= _THREADS:
                if tl.max((awaited & ((words >> 32) != turn)).to(tl.int32)) != 0:
                    # Those of the first token, of which there are as many as threads.
                    firsts = words_ptr + of_split[:, None] + ((item + index) * PARTS + part) * (BLOCK_M * UNITS)
                    first_here = tl.broadcast_to((splits < SPLITS)[:, None], [BLOCK_S, UNITS])
                    wait_for_some(firsts + tl.arange(0, UNITS)[None, :], first_here, turn)
            v = tl.sum(values_of(ptrs, words, awaited, turn), axis=0)
            sums = ()
            for index_n in tl.static_range(OUTPUTS // BLOCK_N):
                sums += (_times_b(v, b[index_n], acc[index_n]),)
            acc = sums
        out_ptrs = out_ptr + tokens[:, None] * stride_out_token + (first + columns)[None, :]
        for index_n in tl.static_range(OUTPUTS // BLOCK_N):
            begin = index_n * BLOCK_N
            stored = here[:, None] & (columns < outputs - first - begin)[None, :]
            tl.store(out_ptrs + begin, acc[index_n], mask=stored)
        first, part, place, count, item, pages, page = after


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
    BESIDE: tl.constexpr,  # whether the previous kernel is the GEMM of the base
    SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr,  # power of two, at least SPLITS
    PARTS: tl.constexpr,
    UNITS: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr,
    MASK_K: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    BLOCK_M: tl.constexpr,  # tokens of a tile
    STEPS: tl.constexpr,  # of BLOCK_K inputs, whose loads are in flight together
    BLOCK_K: tl.constexpr,
    OUTPUTS: tl.constexpr,  # of a thread block at a time, all of one part
    BLOCK_N: tl.constexpr,  # those of a tile
    PDL: tl.constexpr,
):
    """Thread blocks below `shrink_blocks` shrink; the others expand."""
    if BESIDE:
        # The next kernel waits for this one, which ends after the previous one.
        launch_dependents(PDL)
    turn = turn_of(counts_ptr, launch)
    if tl.program_id(0) < shrink_blocks:
        _shrink(
            tl.program_id(0), x_ptr, a_ptr, scale_ptr, order_ptr, tiles_ptr, work_ptr, counts_ptr, words_ptr, turn,
            inputs, inputs_of_split, stride_x_token, stride_a_page, stride_scale_page, items, shrink_blocks,
            BESIDE, SPLITS, PARTS, UNITS, MASK_K, BLOCK_M, STEPS, BLOCK_K, PDL,
        )  # fmt: skip
    else:
        _expand(
            tl.program_id(0) - shrink_blocks, tl.num_programs(0) - shrink_blocks,
            b_ptr, part_of_block_ptr, order_ptr, tiles_ptr, work_ptr, counts_ptr, words_ptr, turn, out_ptr,
            outputs, stride_b_page, stride_out_token, items,
            BESIDE, SPLITS, BLOCK_S, PARTS, UNITS, OUTPUT_BLOCK, BLOCK_M, OUTPUTS, BLOCK_N, PDL,
        )  # fmt: skip
    if BESIDE:
        wait_for_previous(PDL)


_PAGES = ("a", "b", "scale", "part_of_block", "order", "tiles", "work", "counts")
_launch = Launcher(lora_delta_kernel, writes=("out", "words"), reads_early=_PAGES, dependents="after the wait")
_launch_beside = Launcher(
    lora_delta_kernel, writes=("out", "words"), reads_early=("x", "words", "out", *_PAGES), name="lora_delta_beside"
)


def delta_splits(inputs: int) -> int:
    """The number of splits of a layer's inputs, none of them empty."""
    steps = -(-inputs // _STEP)
    return -(-steps // _steps_of_split(inputs))


def _steps_of_split(inputs: int) -> int:
    steps = -(-inputs // _STEP)
    return max(_STEPS_AT_ONCE, -(-steps // _MOST_SPLITS))


def lora_delta_takes(x: Tensor, a: Tensor) -> bool:
    """Whether `lora_delta` is the fastest for so many tokens, on this device."""
    return x.is_cuda and triton_enabled() and len(x) <= MOST_TOKENS and x.dtype == a.dtype and x.element_size() == 2


def lora_delta_triton(x: Tensor, adapters: SiteAdapters, out: Tensor, beside: bool = False) -> None:
    """Triton implementation. Raises ValueError for shapes and layouts that do not fit.

    It runs on one stream at a time, as all calls share the words.
    """
    outputs, inputs = out.shape[1], x.shape[1]
    splits = delta_splits(inputs)
    each = adapters
    each.check("lora_delta", x, outputs, splits)
    if x.stride(1) != 1 or out.stride(1) != 1 or out.dtype != torch.float32 or len(out) != len(x):
        raise ValueError("lora_delta: out must be float32, and tokens of x and out contiguous")
    own = min(each.run, _OUTPUTS)
    expands, shrinks = len(each.tiles) * triton.cdiv(outputs, own), len(each.work) * splits * each.parts
    to_shrink, to_expand = (_SHRINK_BLOCKS, _EXPAND_BLOCKS) if beside else (_SHRINK_BLOCKS_AHEAD, _EXPAND_BLOCKS_AHEAD)
    sms = num_sms(x.device)
    shrink_blocks = min(shrinks, to_shrink * sms)
    (_launch_beside if beside else _launch)(
        (shrink_blocks + min(expands, to_expand * sms),),
        (
            *(x, each.a, each.b, each.scale, each.part_of_block),
            *(each.order, each.tiles, each.work, each.counts, each.words, out),
        ),
        (
            *(inputs, outputs, _steps_of_split(inputs) * _STEP),
            *(x.stride(0), each.a.stride(0), each.b.stride(0), each.scale.stride(0), out.stride(0)),
        ),
        (len(each.work), shrink_blocks, each.launch),
        BESIDE=beside,
        SPLITS=splits,
        BLOCK_S=triton.next_power_of_2(splits),
        PARTS=each.parts,
        UNITS=RANK_UNITS,
        OUTPUT_BLOCK=OUTPUT_BLOCK,
        MASK_K=inputs % _STEP != 0,
        BLOCK_M=TILE_TOKENS,
        STEPS=_STEPS_AT_ONCE,
        BLOCK_K=_STEP,
        OUTPUTS=own,
        BLOCK_N=min(own, _BLOCK_N),
        num_warps=_WARPS,
        num_stages=1,
        maxnreg=_REGISTERS,
    )


def lora_delta_torch(x: Tensor, adapters: SiteAdapters, out: Tensor, beside: bool = False) -> None:
    """Torch implementation: the reference of the tests. `beside` changes nothing."""
    del beside
    adapters.check("lora_delta", x, out.shape[1], 1)
    out.copy_(adapters.delta(x))


lora_delta = register(lora_delta_torch, mutates=("adapters_words", "out"), triton=lora_delta_triton)
