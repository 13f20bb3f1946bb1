"""The thread blocks of `lora_delta` that expand."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.prefetch import prefetch_l2
from ..runtime.triton import tl, triton
from .shrunk_words import values_of, wait_for_some


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
    if PDL:  # noqa: SIM102 - Triton evaluates this, and compiles the inner condition
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
def expand(
    program, programs, b_ptr, part_of_block_ptr, order_ptr, tiles_ptr, work_ptr, counts_ptr, words_ptr, turn, out_ptr,
    outputs, stride_b_page, stride_out_token, items,
    BESIDE: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, PARTS: tl.constexpr, UNITS: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK_N: tl.constexpr,
    THREADS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """OUTPUTS outputs of a tile, then those of another. B of the page that comes next, of this tile or the other, is
    prefetched while the results of shrink for this one are waited for.
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
        first_after, part_after, place_after, count_after, item_after, pages_after, page_after = _load_tile(
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
            page = tl.where(more, page, page_after)
            _prefetch_b(page, tl.where(more, first, first_after), b_ptr, outputs, stride_b_page, UNITS, OUTPUTS, PDL)
            if BLOCK_S * UNITS >= THREADS:  # noqa: SIM102 - Triton evaluates this, and compiles the inner condition
                if tl.max((awaited & ((words >> 32) != turn)).to(tl.int32)) != 0:
                    # Those of the first token, of which there are as many as threads.
                    firsts = words_ptr + of_split[:, None] + ((item + index) * PARTS + part) * (BLOCK_M * UNITS)
                    first_here = tl.broadcast_to((splits < SPLITS)[:, None], [BLOCK_S, UNITS])
                    wait_for_some(firsts + tl.arange(0, UNITS)[None, :], first_here, turn)
            v = tl.sum(values_of(ptrs, words, awaited, turn), axis=0)
            sums = ()
            for tile in tl.static_range(OUTPUTS // BLOCK_N):
                sums += (_times_b(v, b[tile], acc[tile]),)
            acc = sums
        out_ptrs = out_ptr + tokens[:, None] * stride_out_token + (first + columns)[None, :]
        for tile in tl.static_range(OUTPUTS // BLOCK_N):
            begin = tile * BLOCK_N
            stored = here[:, None] & (columns < outputs - first - begin)[None, :]
            tl.store(out_ptrs + begin, acc[tile], mask=stored)
        first, part, place, count = first_after, part_after, place_after, count_after
        item, pages, page = item_after, pages_after, page_after
