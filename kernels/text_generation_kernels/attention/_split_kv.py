"""Split-KV planning of decode attention: contexts cut into chunks, on the device.

The host knows bounds only: the most chunks that there may be (`_chunking.py`). Thread blocks read the lengths and plan
for themselves. A request has WIDTH successive tokens (`Decodes`), and the union of their contexts is cut, to be read
once for all of them. Measurements: docs/lab/2026-11-decode-attention.md.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
from ..runtime.batches import locate
from ..runtime.launch import wait_for_previous
from ..runtime.triton import tl, triton


@triton.jit
def in_window(lengths, WINDOW: tl.constexpr):
    """Positions that a request's tokens see: the last ones."""
    if WINDOW:
        return tl.minimum(lengths, WINDOW)
    return lengths


@triton.jit
def lengths_of(b_kv_len_ptr, requests, mask, WIDTH: tl.constexpr):
    """Length of each of `requests`, 0 where it has no token: that of its first token, and room for the others, of which
    some may be missing.
    """
    lengths = tl.load(b_kv_len_ptr + requests * WIDTH, mask=mask, other=0)
    if WIDTH > 1:
        lengths += tl.where(lengths > 0, WIDTH - 1, 0)
    return lengths


@triton.jit
def row_offsets(heads, tokens, stride_token, stride_head, WIDTH: tl.constexpr):
    """Offsets of rows of a tile, which are `heads` of `tokens` of one request, from the first token's first head."""
    if WIDTH == 1:
        return heads * stride_head
    return tokens * stride_token + heads * stride_head


@triton.jit
def plan(
    b_kv_len_ptr,
    batch,
    target_items,  # chunks of all requests; where DETERMINISTIC, of one
    one_wave,  # chunks that run at once, at most target_items
    min_chunk,
    BLOCK_B: tl.constexpr,
    DETERMINISTIC: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Length [BLOCK_B] of each request, and the number of chunks of what it sees.

    An empty context has one chunk if others come after it, and none at the end of the batch (`fill_padding`).
    The first n requests have at most `target_items` + n chunks; where DETERMINISTIC, `target_items` * n.
    Requests of about one length are cut alike, into at most one wave of chunks: a few chunks of a second wave would
    take as long as the first.
    """
    requests = tl.arange(0, BLOCK_B)
    lengths = lengths_of(b_kv_len_ptr, requests, requests < batch, WIDTH)
    seen = in_window(lengths, WINDOW)
    if DETERMINISTIC:
        chunk = tl.maximum(tl.cdiv(seen, target_items), min_chunk)
    else:
        total = tl.sum(seen, axis=0)
        chunks_each = one_wave // tl.maximum(tl.sum((seen > 0).to(tl.int32), axis=0), 1)
        even = tl.cdiv(tl.max(seen, axis=0), tl.maximum(chunks_each, 1))
        fair = total // one_wave
        is_even = (chunks_each > 0) & (even <= fair + fair // 8)
        chunk = tl.maximum(tl.where(is_even, even, tl.cdiv(total, target_items)), min_chunk)
    # Chunks are read in whole tiles; other lengths would leave some chunks empty, for the merge to read.
    chunk = tl.cdiv(chunk, 64) * 64
    last = tl.max(tl.where(seen > 0, requests, -1), axis=0)
    return lengths, tl.maximum(tl.cdiv(seen, chunk), (requests < last).to(tl.int32))


@triton.jit
def fill_padding(
    out_ptr,  # [batch * WIDTH, heads, SIZE]
    b_kv_len_ptr,
    item,
    items,
    batch,
    heads,
    tokens,
    exists,
    stride_out_token,
    stride_out_head,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_B: tl.constexpr,
    WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):
    """Whether thread block `item` of `items` belongs to a padded row: one with an empty context, as all rows after it.
    Writes that row's zeros to `heads` of its `tokens` where they exist.

    Row r has thread block `items` - `batch` + r, which the chunks of the rows before it do not reach. Padding skips the
    plan: graphs of steps with prompts have room for the most decodes, and most of it is padding.
    """
    row = item - (items - batch)
    is_padding = row >= 0
    if is_padding:
        requests = tl.arange(0, BLOCK_B)
        lengths = lengths_of(b_kv_len_ptr, requests, (requests >= row) & (requests < batch), WIDTH)
        is_padding = tl.max(lengths, axis=0) == 0
        if is_padding:
            wait_for_previous(PDL)
            elements = tl.arange(0, BLOCK)
            out_row_ptr = out_ptr + (row * WIDTH).to(tl.int64) * stride_out_token
            offsets = row_offsets(heads[:, None], tokens[:, None], stride_out_token, stride_out_head, WIDTH)
            out_tile_ptr = out_row_ptr + offsets + elements[None, :]
            tl.store(out_tile_ptr, 0.0, mask=exists[:, None] & (elements < SIZE)[None, :])
    return is_padding


@triton.jit
def find_chunk(
    b_row_ptr,
    b_kv_len_ptr,
    item,
    batch,
    target_items,
    one_wave,
    min_chunk,
    BLOCK_B: tl.constexpr,
    DETERMINISTIC: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Returns the request of chunk `item`, which of its chunks it is, and for `bounds` [BLOCK_B]: lengths, numbers of
    chunks and rows of the table of all requests. Past the last chunk the request is not below `batch`.
    """
    lengths, chunks = plan(
        b_kv_len_ptr, batch, target_items, one_wave, min_chunk, BLOCK_B, DETERMINISTIC, WINDOW, WIDTH
    )
    rows = tl.load(b_row_ptr + tl.arange(0, BLOCK_B) * WIDTH, mask=tl.arange(0, BLOCK_B) < batch, other=0)
    request, chunk = locate(chunks, item)
    return request, chunk, lengths, chunks, rows


@triton.jit
def bounds(request, chunk, lengths, chunks, rows, BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """Table row of `request`, its length, its number of chunks, and where this chunk begins and ends.

    Chunks are equal and of whole tiles: no thread block is left with a small remainder.
    """
    is_request = tl.arange(0, BLOCK_B) == request
    kv_len = tl.sum(tl.where(is_request, lengths, 0), axis=0)
    num_chunks = tl.sum(tl.where(is_request, chunks, 0), axis=0)
    row = tl.sum(tl.where(is_request, rows, 0), axis=0).to(tl.int64)
    seen = in_window(kv_len, WINDOW)
    chunk_len = tl.cdiv(tl.cdiv(seen, num_chunks), BLOCK_N) * BLOCK_N
    begin = chunk * chunk_len
    if WINDOW:
        begin += kv_len - seen
    return row, kv_len, num_chunks, begin, tl.minimum(kv_len, begin + chunk_len)
