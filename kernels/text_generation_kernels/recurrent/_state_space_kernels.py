"""Kernels of `state_space`: one token by token, one by GEMMs of blocks of tokens (state space duality).

Strides are constexprs: addresses of the next tokens are then immediate offsets from those of the first.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._recurrence import advance, decay_rate, find_run, load_rows, load_vector, softplus, store_rows


@triton.jit
def _load_tokens(
    x_ptr,
    dt_ptr,
    b_ptr,
    c_ptr,
    first,  # int64
    left,  # tokens of the run from there on
    rows,  # [BLOCK_P], of the head
    inside,
    stride_x_token: tl.constexpr,
    stride_dt_token: tl.constexpr,
    stride_b_token: tl.constexpr,
    stride_c_token: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    COUNT: tl.constexpr,
):
    """x, dt, b and c of COUNT tokens, zeros past the end of the run."""
    loaded = ()
    for place in tl.static_range(COUNT):
        exists = place < left
        x = tl.load(x_ptr + first * stride_x_token + place * stride_x_token + rows, mask=exists & inside, other=0.0)
        dt = tl.load(dt_ptr + first * stride_dt_token + place * stride_dt_token, mask=exists, other=0.0)
        b = load_vector(b_ptr + first * stride_b_token + place * stride_b_token, exists, N, WIDTH, PARTS)
        c = load_vector(c_ptr + first * stride_c_token + place * stride_c_token, exists, N, WIDTH, PARTS)
        loaded = loaded + ((x, dt, b, c),)  # noqa: RUF005 - Triton knows no star here
    return loaded


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "kv_lens_ptr"])
def state_space_tokens_kernel(
    x_ptr,  # [tokens, HEADS, P]
    dt_ptr,  # [tokens, HEADS]
    b_ptr,  # [tokens, HEADS / GROUP, N]
    c_ptr,  # [tokens, HEADS / GROUP, N]
    a_log_ptr,  # [HEADS]
    d_ptr,  # [HEADS]
    dt_bias_ptr,  # [HEADS]
    state_ptr,  # [rows, HEADS, P, N]
    rows_ptr,  # [runs]
    starts_ptr,  # [runs + 1] or None
    kv_lens_ptr,  # [runs]
    out_ptr,  # [tokens, HEADS, P]
    stride_x_token: tl.constexpr,
    stride_dt_token: tl.constexpr,
    stride_b_token: tl.constexpr,
    stride_c_token: tl.constexpr,
    stride_out_token: tl.constexpr,
    low,
    high,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    COUNT: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_P rows of one head's state for one run, COUNT tokens at a time, and prefetches
    the next COUNT meanwhile.
    """
    blocks: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    head = tl.program_id(0) // blocks
    rows = tl.program_id(0) % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = rows < P
    skip = tl.load(d_ptr + head)
    bias = tl.load(dt_bias_ptr + head)
    rate, rates = decay_rate(tl.load(a_log_ptr + head)), ()
    for _ in tl.static_range(PARTS):
        rates = rates + (rate,)  # noqa: RUF005 - as above
    launch_dependents(PDL)
    wait_for_previous(PDL)
    start, length, continued, state_row_ptr = find_run(
        tl.program_id(1), rows_ptr, starts_ptr, kv_lens_ptr, state_ptr, HEADS * P * N
    )
    if length == 0:
        return
    state_head_ptr = state_row_ptr + head * (P * N)
    state = load_rows(state_head_ptr, rows, inside & continued, N, WIDTH, PARTS)
    x_head_ptr, dt_head_ptr = x_ptr + head * P, dt_ptr + head
    b_group_ptr, c_group_ptr = b_ptr + head // GROUP * N, c_ptr + head // GROUP * N
    loaded = _load_tokens(
        x_head_ptr, dt_head_ptr, b_group_ptr, c_group_ptr, start, length, rows, inside, stride_x_token,
        stride_dt_token, stride_b_token, stride_c_token, N, WIDTH, PARTS, COUNT,
    )  # fmt: skip
    for first in range(0, length, COUNT):
        left = length - first
        coming = _load_tokens(
            x_head_ptr, dt_head_ptr, b_group_ptr, c_group_ptr, start + first + COUNT, left - COUNT, rows, inside,
            stride_x_token, stride_dt_token, stride_b_token, stride_c_token, N, WIDTH, PARTS, COUNT,
        )  # fmt: skip
        out_ptrs = out_ptr + (start + first) * stride_out_token + head * P + rows
        for place in tl.static_range(COUNT):
            x, dt, b, c = loaded[place]
            x = x.to(tl.float32)
            step = tl.clamp(softplus(dt.to(tl.float32) + bias), low, high)
            step = tl.where(place < left, step, 0.0)
            state, read = advance(state, rates, step, step * x, b, c, PARTS)
            out = tl.fma(skip, x, read).to(out_ptr.dtype.element_ty)
            tl.store(out_ptrs + place * stride_out_token, out, mask=(place < left) & inside)
        loaded = coming
    store_rows(state_head_ptr, state, rows, inside, N, WIDTH, PARTS)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "kv_lens_ptr"])
def state_space_blocks_kernel(
    x_ptr,  # [tokens, HEADS, P]
    dt_ptr,  # [tokens, HEADS]
    b_ptr,  # [tokens, HEADS / GROUP, N]
    c_ptr,  # [tokens, HEADS / GROUP, N]
    a_log_ptr,  # [HEADS]
    d_ptr,  # [HEADS]
    dt_bias_ptr,  # [HEADS]
    state_ptr,  # [rows, HEADS, P, N]
    rows_ptr,  # [runs]
    starts_ptr,  # [runs + 1]
    kv_lens_ptr,  # [runs]
    out_ptr,  # [tokens, HEADS, P]
    stride_x_token: tl.constexpr,
    stride_dt_token: tl.constexpr,
    stride_b_token: tl.constexpr,
    stride_c_token: tl.constexpr,
    stride_out_token: tl.constexpr,
    low,
    high,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,  # power of two, at least N and 16
    BLOCK_T: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_P rows of one head's state for one run, BLOCK_T tokens at a time.

    `decay` is L of `state_space.py` times log2(e).
    """
    blocks: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    head = tl.program_id(0) // blocks
    rows = tl.program_id(0) % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    columns = tl.arange(0, BLOCK_N)
    tokens = tl.arange(0, BLOCK_T)
    skip = tl.load(d_ptr + head)
    bias = tl.load(dt_bias_ptr + head)
    rate = decay_rate(tl.load(a_log_ptr + head))
    launch_dependents(PDL)
    wait_for_previous(PDL)
    start, length, continued, state_row_ptr = find_run(
        tl.program_id(1), rows_ptr, starts_ptr, kv_lens_ptr, state_ptr, HEADS * P * N
    )
    if length == 0:
        return
    x_ptrs = x_ptr + start * stride_x_token + head * P + tokens[:, None] * stride_x_token + rows[None, :]
    dt_ptrs = dt_ptr + start * stride_dt_token + head + tokens * stride_dt_token
    b_ptrs = b_ptr + start * stride_b_token + head // GROUP * N + tokens[:, None] * stride_b_token + columns[None, :]
    c_ptrs = c_ptr + start * stride_c_token + head // GROUP * N + tokens[:, None] * stride_c_token + columns[None, :]
    out_ptrs = out_ptr + start * stride_out_token + head * P + tokens[:, None] * stride_out_token + rows[None, :]
    # The state is transposed, [BLOCK_N, BLOCK_P], so that both GEMMs that take x read it without a transpose.
    state_ptrs = state_row_ptr + head * (P * N) + rows[None, :] * N + columns[:, None]
    held = (rows < P)[None, :] & (columns < N)[:, None]
    state = tl.load(state_ptrs, mask=held & continued, other=0.0)
    dt = tl.load(dt_ptrs, mask=tokens < length, other=0.0)
    for first in range(0, length, BLOCK_T):
        exists = tokens < length - first
        in_x, in_b = exists[:, None] & (rows < P)[None, :], exists[:, None] & (columns < N)[None, :]
        x = tl.load(x_ptrs, mask=in_x, other=0.0)
        b = tl.load(b_ptrs, mask=in_b, other=0.0)
        c = tl.load(c_ptrs, mask=in_b, other=0.0)
        step = tl.clamp(softplus(dt.to(tl.float32) + bias), low, high)
        # Tokens past the end leave the state unchanged.
        step = tl.where(exists, step, 0.0)
        dt_ptrs += BLOCK_T * stride_dt_token
        dt = tl.load(dt_ptrs, mask=tokens < length - first - BLOCK_T, other=0.0)
        decay = tl.cumsum(step * rate, axis=0)
        whole = tl.min(decay, axis=0)

        out = tl.dot(c, state.to(c.dtype)) * tl.exp2(decay)[:, None]
        seen = tokens[:, None] >= tokens[None, :]
        between = tl.where(seen, decay[:, None] - decay[None, :], float("-inf"))
        weights = (tl.dot(c, b.T) * tl.exp2(between)).to(x.dtype)
        wide = x.to(tl.float32)
        out = tl.dot(weights, (wide * step[:, None]).to(x.dtype), out) + skip * wide
        tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=in_x)
        kept = (wide * (step * tl.exp2(whole - decay))[:, None]).to(x.dtype)
        state = tl.dot(b.T, kept, state * tl.exp2(whole))
        x_ptrs += BLOCK_T * stride_x_token
        b_ptrs += BLOCK_T * stride_b_token
        c_ptrs += BLOCK_T * stride_c_token
        out_ptrs += BLOCK_T * stride_out_token
    tl.store(state_ptrs, state, mask=held)
