"""The thread blocks of `lora_delta` that shrink."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from .shrunk_words import words_of


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
def shrink(
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
