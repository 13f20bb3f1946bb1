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
from ..runtime.register import register, triton_enabled
from ..runtime.triton import tl, triton
from .adapter_tiles import TILE_TOKENS
from .rank_pages import OUTPUT_BLOCK, RANK_UNITS
from .shrunk_words import turn_of, words_of
from .site_adapters import SiteAdapters

MOST_TOKENS = 64
"""Of a step: with more, the GEMM of the base takes so long that launches count for little."""
_STEP = 128
"""Inputs in one step of shrink's loop."""
_STEPS_OF_SPLIT, _MOST_SPLITS = 4, 8
"""Of a split, so that few steps follow each other; of a layer, because expand reads the sums of each."""
_OUTPUTS, _BLOCK_N = 512, 128
"""Outputs of a thread block with one tile, and those of a step of its loop."""
_BLOCKS_PER_SM, _SHRINK_BLOCKS = 3, 192
"""The most thread blocks that expand, by SM, and the most that shrink."""
_WARPS, _STAGES = 4, 3


@triton.jit
def _place_of(
    unit, order_ptr, tiles_ptr, work_ptr, shrinks, members,
    SPLITS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Page of a unit of shrink, tokens of its tile, and which of these exist."""
    item = unit // (SPLITS * PARTS)
    page = tl.load(work_ptr + item * 2, mask=unit < shrinks, other=0).to(tl.int64)
    tile = tl.load(work_ptr + item * 2 + 1, mask=unit < shrinks, other=0)
    here = (members < tl.load(tiles_ptr + tile * 4 + 1)) & (unit < shrinks)
    tokens = tl.load(order_ptr + tl.load(tiles_ptr + tile * 4) + members, mask=here, other=0).to(tl.int64)
    return page, tokens, here


@triton.jit
def _shrink(
    unit, page, tokens, here, members, x_ptr, a_ptr, scale_ptr, words_ptr, turn,
    inputs, inputs_of_split, stride_x_token, stride_a_page, stride_scale_page, items,
    SPLITS: tl.constexpr, PARTS: tl.constexpr, UNITS: tl.constexpr,
    MASK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One split of a part of a work item."""
    split = unit % SPLITS
    part = unit // SPLITS % PARTS
    item = unit // (SPLITS * PARTS)
    units = tl.arange(0, UNITS)
    columns = tl.arange(0, BLOCK_K)
    begin = split * inputs_of_split
    end = tl.minimum(begin + inputs_of_split, inputs)
    x_ptrs = x_ptr + tokens[:, None] * stride_x_token + columns[None, :]
    a_ptrs = a_ptr + page * stride_a_page + (part * UNITS + units)[:, None] * inputs + columns[None, :]
    scale = tl.load(scale_ptr + page * stride_scale_page + part)
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
    first = ((split * items + item) * PARTS + part) * (BLOCK_M * UNITS)
    places = first + members[:, None] * UNITS + units[None, :]
    tl.store(words_ptr + places, words_of(acc * scale, turn), mask=here[:, None])


@triton.jit
def _shrunk(word_ptrs, here, turn):
    """[BLOCK_M, UNITS] float32, the sum of words [SPLITS, BLOCK_M, UNITS] once all have arrived. There are at least two
    words a thread, so that no word lies in several threads (compare `values_of`).
    """
    words = tl.load(word_ptrs, mask=here, other=0, volatile=True)
    missing = tl.max((here & ((words >> 32) != turn)).to(tl.int32))
    while missing != 0:
        words = tl.load(word_ptrs, mask=here, other=0, volatile=True)
        missing = tl.max((here & ((words >> 32) != turn)).to(tl.int32))
    return tl.sum(words.to(tl.int32).to(tl.float32, bitcast=True), axis=0)


@triton.jit
def _times_b(v, b, acc):
    """`acc` + v @ b.T, with the 16 leading bits of v at least."""
    if b.dtype == tl.bfloat16:
        high = v.to(tl.bfloat16)
        low = (v - high.to(tl.float32)).to(tl.bfloat16)
        return tl.dot(high, b.T, tl.dot(low, b.T, acc))
    else:
        return tl.dot(v, b.to(tl.float32).T, acc, input_precision="tf32x3")


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
    BLOCK_K: tl.constexpr,
    OUTPUTS: tl.constexpr,  # of a thread block with one tile, all of one part
    BLOCK_N: tl.constexpr,  # those in a step of the loop
    PDL: tl.constexpr,
):
    """Thread blocks below `shrink_blocks` shrink; the others expand."""
    # The next kernel waits for this one, which ends after the previous one.
    launch_dependents(PDL)
    program = tl.program_id(0)
    turn = turn_of(counts_ptr, launch)
    members = tl.arange(0, BLOCK_M)
    if program < shrink_blocks:
        shrinks = tl.load(counts_ptr + 2) * (SPLITS * PARTS)
        page, tokens, here = _place_of(program, order_ptr, tiles_ptr, work_ptr, shrinks, members, SPLITS, PARTS)
        if not BESIDE:
            wait_for_previous(PDL)
        for unit in range(program, shrinks, shrink_blocks):
            _shrink(
                unit, page, tokens, here, members, x_ptr, a_ptr, scale_ptr, words_ptr, turn,
                inputs, inputs_of_split, stride_x_token, stride_a_page, stride_scale_page, items,
                SPLITS, PARTS, UNITS, MASK_K, BLOCK_M, BLOCK_K,
            )  # fmt: skip
            page, tokens, here = _place_of(
                unit + shrink_blocks, order_ptr, tiles_ptr, work_ptr, shrinks, members, SPLITS, PARTS
            )
        if BESIDE:
            wait_for_previous(PDL)
        return
    runs = tl.cdiv(outputs, OUTPUTS)
    expands = tl.load(counts_ptr + 1) * runs
    units = tl.arange(0, UNITS)
    splits = tl.arange(0, BLOCK_S)
    columns = tl.arange(0, BLOCK_N)
    of_splits = (splits.to(tl.int64) * items * (PARTS * BLOCK_M * UNITS))[:, None, None]
    word_ptrs = words_ptr + of_splits + members[None, :, None] * UNITS + units[None, None, :]
    if not BESIDE:
        wait_for_previous(PDL)
    for unit in range(program - shrink_blocks, expands, tl.num_programs(0) - shrink_blocks):
        tile = unit // runs
        first = unit % runs * OUTPUTS
        here = members < tl.load(tiles_ptr + tile * 4 + 1)
        item = tl.load(tiles_ptr + tile * 4 + 2)
        pages = tl.load(tiles_ptr + tile * 4 + 3)
        tokens = tl.load(order_ptr + tl.load(tiles_ptr + tile * 4) + members, mask=here, other=0).to(tl.int64)
        part = 0
        if PARTS > 1:
            part = tl.load(part_of_block_ptr + first // OUTPUT_BLOCK)
        out_ptrs = out_ptr + tokens[:, None] * stride_out_token + columns[None, :]
        if pages == 0:
            for start in range(first, tl.minimum(first + OUTPUTS, outputs), BLOCK_N):
                stored = here[:, None] & (columns < outputs - start)[None, :]
                tl.store(out_ptrs + start, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), mask=stored)
        for index in range(pages):
            page = tl.load(work_ptr + (item + index) * 2).to(tl.int64)
            b_ptrs = b_ptr + page * stride_b_page + columns[:, None] * UNITS + units[None, :]
            ptrs = word_ptrs + ((item + index) * PARTS + part) * (BLOCK_M * UNITS)
            v = _shrunk(ptrs, here[None, :, None] & (splits < SPLITS)[:, None, None], turn)
            for start in range(first, tl.minimum(first + OUTPUTS, outputs), BLOCK_N):
                there = columns < outputs - start
                b = tl.load(b_ptrs + start * UNITS, mask=there[:, None], other=0.0)
                stored = here[:, None] & there[None, :]
                # What the pages before have added: a thread reads what it has written.
                acc = tl.load(out_ptrs + start, mask=stored & (index > 0), other=0.0, volatile=True)
                tl.store(out_ptrs + start, _times_b(v, b, acc), mask=stored)
    if BESIDE:
        wait_for_previous(PDL)


_PAGES = ("a", "b", "scale", "part_of_block", "order", "tiles", "work", "counts")
_launch = Launcher(lora_delta_kernel, writes=("out", "words"), reads_early=_PAGES)
_launch_beside = Launcher(
    lora_delta_kernel, writes=("out", "words"), reads_early=("x", "words", "out", *_PAGES), name="lora_delta_beside"
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
    units, shrinks = len(each.tiles) * triton.cdiv(outputs, own), len(each.work) * splits * each.parts
    shrink_blocks = min(shrinks, _SHRINK_BLOCKS)
    (_launch_beside if beside else _launch)(
        (shrink_blocks + min(units, _BLOCKS_PER_SM * num_sms(x.device)),),
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
        BLOCK_K=_STEP,
        OUTPUTS=own,
        BLOCK_N=min(own, _BLOCK_N),
        num_warps=_WARPS,
        num_stages=_STAGES,
    )


def lora_delta_torch(x: Tensor, adapters: SiteAdapters, out: Tensor, beside: bool = False) -> None:
    """Torch implementation: the reference of the tests. `beside` changes nothing."""
    del beside
    adapters.check("lora_delta", x, out.shape[1], 1)
    out.copy_(adapters.delta(x))


lora_delta = register(lora_delta_torch, mutates=("adapters_words", "out"), triton=lora_delta_triton)
