"""Token-by-token kernel of the gated delta rule: decodes, short runs, and everything where `deterministic`."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._gated_delta_gates import open_gates, over_length


@triton.jit
def _load_token(
    qkv_token_ptr,
    gates_token_ptr,
    exists,
    head,
    keys,  # [BLOCK_K]
    columns,  # [BLOCK_V]
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
):
    """Query and key [BLOCK_K], value [BLOCK_V] and both gates of a head; zeros where the token does not exist."""
    query_ptr = qkv_token_ptr + head // (HEADS // KEY_HEADS) * KEY_DIM
    key_ptr = query_ptr + KEY_HEADS * KEY_DIM
    value_ptr = qkv_token_ptr + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM
    q = tl.load(query_ptr + keys, mask=exists & (keys < KEY_DIM), other=0.0)
    k = tl.load(key_ptr + keys, mask=exists & (keys < KEY_DIM), other=0.0)
    v = tl.load(value_ptr + columns, mask=exists & (columns < VALUE_DIM), other=0.0)
    b = tl.load(gates_token_ptr + head, mask=exists, other=0.0)
    a = tl.load(gates_token_ptr + HEADS + head, mask=exists, other=0.0)
    return q, k, v, b, a


@triton.jit
def _advance(
    state,  # [BLOCK_K, BLOCK_V]
    loaded,
    rate,
    bias,
    KEY_DIM: tl.constexpr,
    MOST_BETA: tl.constexpr,
):
    """The state after a token, and the result of the token's query, [BLOCK_V].

    Key and query both read the state before the token, so their reductions do not wait for each other; the token
    makes a rank-one update.
    """
    q, k = loaded[0].to(tl.float32), loaded[1].to(tl.float32)
    beta, log_decay = open_gates(loaded[3], loaded[4], rate, bias, MOST_BETA)
    decay = tl.exp2(log_decay)
    q *= over_length(tl.sum(q * q, axis=0)) * KEY_DIM**-0.5
    k *= over_length(tl.sum(k * k, axis=0))
    of_key = tl.sum(k[:, None] * state, axis=0)
    of_query = tl.sum(q[:, None] * state, axis=0)
    added = beta * (loaded[2].to(tl.float32) - decay * of_key)
    out = tl.fma(tl.sum(q * k, axis=0), added, decay * of_query)
    return tl.fma(k[:, None], added[None, :], decay * state), out


@triton.jit(
    do_not_specialize=["in_chunks"],
    do_not_specialize_on_alignment=["gates_ptr", "rows_ptr", "starts_ptr", "kv_lens_ptr"],
)
def gated_delta_recurrent_kernel(
    qkv_ptr,  # [tokens, 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM]
    gates_ptr,  # [tokens, 2 * HEADS]
    rate_ptr,  # [HEADS]
    bias_ptr,  # [HEADS]
    state_ptr,  # [rows, HEADS, KEY_DIM, VALUE_DIM]
    rows_ptr,  # [runs]
    starts_ptr,  # [runs + 1], not read for decodes
    kv_lens_ptr,  # [runs]
    out_ptr,  # [tokens, HEADS, VALUE_DIM]
    stride_qkv_token,
    stride_gates_token,
    in_chunks,  # 0: run i is token i alone
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    MOST_BETA: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_V value columns of one head of one run, whose state it holds in registers, and
    prefetches the next token meanwhile.
    """
    BLOCKS: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    head, run = tl.program_id(0) // BLOCKS, tl.program_id(1)
    keys = tl.arange(0, BLOCK_K)
    columns = tl.program_id(0) % BLOCKS * BLOCK_V + tl.arange(0, BLOCK_V)
    rate, bias = tl.load(rate_ptr + head), tl.load(bias_ptr + head)
    # These were written in an earlier step, or at the beginning of this one.
    kv_len = tl.load(kv_lens_ptr + run)
    row = tl.load(rows_ptr + run)
    start = tl.load(starts_ptr + run, mask=in_chunks != 0, other=0)
    length = tl.load(starts_ptr + run + 1, mask=in_chunks != 0, other=1) - start
    exists = (kv_len > 0) & (length > 0)
    state_ptrs = state_ptr + (row * HEADS + head) * (KEY_DIM * VALUE_DIM)
    state_ptrs += keys[:, None] * VALUE_DIM + columns[None, :]
    held = (keys < KEY_DIM)[:, None] & (columns < VALUE_DIM)[None, :] & exists
    state = tl.load(state_ptrs, mask=held & (kv_len > length), other=0.0)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    if not exists:
        return
    start = tl.where(in_chunks != 0, start, run).to(tl.int64)
    qkv_ptr += start * stride_qkv_token
    gates_ptr += start * stride_gates_token
    out_ptrs = out_ptr + (start * HEADS + head) * VALUE_DIM + columns
    loaded = _load_token(qkv_ptr, gates_ptr, True, head, keys, columns, HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM)
    for index in range(length):
        qkv_ptr += stride_qkv_token
        gates_ptr += stride_gates_token
        exists = index + 1 < length
        coming = _load_token(qkv_ptr, gates_ptr, exists, head, keys, columns, HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM)
        state, out = _advance(state, loaded, rate, bias, KEY_DIM, MOST_BETA)
        tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=columns < VALUE_DIM)
        out_ptrs += HEADS * VALUE_DIM
        loaded = coming
    tl.store(state_ptrs, state, mask=held)
