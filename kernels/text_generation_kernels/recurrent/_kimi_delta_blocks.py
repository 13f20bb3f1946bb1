"""First kernel of chunked Kimi delta attention: prepares blocks of tokens, all at once, for the scan over blocks.

As in `_gated_delta_blocks.py`, but each channel of a key decays by itself: with G[i] = g[0] + ... + g[i] by channel,

    A[i, j] = beta[i] * sum over channels of k[i] * k[j] * exp(G[i] - G[j])    for j < i
    scores[i, j] = the same of q[i] and k[j], without beta,                    for j <= i

exp(G[i]) and exp(-G[j]) alone overflow, so no single GEMM computes these. Tokens i and j whose numbers differ in bit
`level` as the highest lie in two neighbouring segments of 2^level tokens. There exp(G[i] - G[j]) is the decay from the
beginning of i's segment to i, times that from j to the end of its own segment, both at most 1: six levels, a masked
GEMM for each. Sums within segments are sums of numbers of one sign, so that no bits are lost.

GEMMs take normalised keys and queries, which are at most 1, in float16.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false
from ..runtime.batches import find_tile
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._gated_delta_blocks import _invert
from ._gated_delta_gates import over_length
from ._kimi_delta_gates import decay_of_channels


@triton.jit
def _lengths(
    query_ptrs,  # [BLOCK_T, 1]
    key_ptrs,  # [BLOCK_T, 1]
    valid,  # [BLOCK_T, 1]
    KEY_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """1 / length of queries and of keys, [BLOCK_T, 1]."""
    q_square, k_square = tl.zeros_like(valid.to(tl.float32)), tl.zeros_like(valid.to(tl.float32))
    for begin in range(0, KEY_DIM, WIDTH):
        columns = begin + tl.arange(0, WIDTH)[None, :]
        q = tl.load(query_ptrs + columns, mask=valid & (columns < KEY_DIM), other=0.0).to(tl.float32)
        k = tl.load(key_ptrs + columns, mask=valid & (columns < KEY_DIM), other=0.0).to(tl.float32)
        q_square += tl.sum(q * q, axis=1, keep_dims=True)
        k_square += tl.sum(k * k, axis=1, keep_dims=True)
    return over_length(q_square), over_length(k_square)


@triton.jit
def _within(
    log_decay,  # [BLOCK_T, WIDTH]
    LEVEL: tl.constexpr,
    BLOCK_T: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Decay from the beginning of each token's segment of 2^LEVEL tokens to after the token, and from there to the end
    of the segment, [BLOCK_T, WIDTH] each.
    """
    segments = tl.reshape(log_decay, [BLOCK_T >> LEVEL, 1 << LEVEL, WIDTH])
    until = tl.reshape(tl.cumsum(segments, axis=1), [BLOCK_T, WIDTH])
    after = tl.reshape(tl.cumsum(segments, axis=1, reverse=True), [BLOCK_T, WIDTH]) - log_decay
    return tl.exp2(until), tl.exp2(after)


@triton.jit(
    do_not_specialize=["runs"], do_not_specialize_on_alignment=["betas_ptr", "gates_ptr", "starts_ptr", "kv_lens_ptr"]
)
def kimi_delta_blocks_kernel(
    qkv_ptr,  # [tokens, queries and keys of all heads, then values]
    betas_ptr,  # [tokens, HEADS]
    gates_ptr,  # [tokens, HEADS * KEY_DIM]
    rate_ptr,  # [HEADS]
    bias_ptr,  # [HEADS, KEY_DIM]
    starts_ptr,  # [runs + 1]
    kv_lens_ptr,  # [runs]
    of_state_ptr,  # [blocks, HEADS, 3, BLOCK_T, KEY_DIM]
    of_block_ptr,  # [blocks, HEADS, 2, BLOCK_T, BLOCK_T]
    decays_ptr,  # [blocks, HEADS, KEY_DIM] float32, decay of a state over the block
    stride_qkv_token,
    stride_betas_token,
    stride_gates_token,
    runs,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_B: tl.constexpr,  # power of two, at least runs
    LEAST: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block prepares one head of one block: keys and queries as they read the state before it, keys as they
    write the state after it; then the matrix of deltas, (I + A)^-1 diag(beta), and the scores. It stores zeros for
    tokens past the end of the run.
    """
    tl.static_assert(BLOCK_T == 64)
    head, item = tl.program_id(0), tl.program_id(1)
    rate = tl.load(rate_ptr + head)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    run, block = find_tile(starts_ptr, item, runs, 1, BLOCK_T, BLOCK_B)
    if run >= runs:
        return
    if tl.load(kv_lens_ptr + run) == 0:
        return
    first = tl.load(starts_ptr + run) + block * BLOCK_T
    tokens = tl.arange(0, BLOCK_T)
    rows, sources = tokens[:, None], tokens[None, :]
    valid = rows < tl.load(starts_ptr + run + 1) - first
    query_ptrs = qkv_ptr + first.to(tl.int64) * stride_qkv_token + rows * stride_qkv_token + head * KEY_DIM
    key_ptrs = query_ptrs + HEADS * KEY_DIM
    gate_ptrs = gates_ptr + first.to(tl.int64) * stride_gates_token + rows * stride_gates_token + head * KEY_DIM
    q_scale, k_scale = _lengths(query_ptrs, key_ptrs, valid, KEY_DIM, WIDTH)
    place = item.to(tl.int64) * HEADS + head
    state_ptrs = of_state_ptr + place * (3 * BLOCK_T * KEY_DIM) + rows * KEY_DIM
    storage = of_state_ptr.dtype.element_ty
    of_keys = tl.zeros([BLOCK_T, BLOCK_T], dtype=tl.float32)
    of_queries = tl.zeros([BLOCK_T, BLOCK_T], dtype=tl.float32)
    itself = tl.zeros([BLOCK_T, 1], dtype=tl.float32)
    for begin in range(0, KEY_DIM, WIDTH):
        columns = begin + tl.arange(0, WIDTH)[None, :]
        inside = columns < KEY_DIM
        exists = valid & inside
        q = tl.load(query_ptrs + columns, mask=exists, other=0.0).to(tl.float32) * q_scale
        k = tl.load(key_ptrs + columns, mask=exists, other=0.0).to(tl.float32) * k_scale
        a = tl.load(gate_ptrs + columns, mask=exists, other=0.0)
        bias = tl.load(bias_ptr + head * KEY_DIM + columns, mask=inside, other=0.0)
        # Decays below 2^-150 are 0.
        log_decay = tl.where(exists, tl.maximum(decay_of_channels(a, rate, bias, LEAST), -150.0), 0.0)
        itself += tl.sum(q * k, axis=1, keep_dims=True)
        for level in tl.static_range(6):
            until, after = _within(log_decay, level, BLOCK_T, WIDTH)
            later = ((rows >> level) & 1) == 1
            earlier_keys = tl.where(later, 0.0, k * after).to(tl.float16).T
            meet = (rows >> level) == ((sources >> level) ^ 1)
            later_keys = tl.where(later, k * until, 0.0).to(tl.float16)
            later_queries = tl.where(later, q * until, 0.0).to(tl.float16)
            of_keys += tl.where(meet, tl.dot(later_keys, earlier_keys), 0.0)
            of_queries += tl.where(meet, tl.dot(later_queries, earlier_keys), 0.0)
        until, after = _within(log_decay, 6, BLOCK_T, WIDTH)
        tl.store(state_ptrs + columns, (k * until).to(storage), mask=inside)
        tl.store(state_ptrs + BLOCK_T * KEY_DIM + columns, (q * until * KEY_DIM**-0.5).to(storage), mask=inside)
        tl.store(state_ptrs + 2 * BLOCK_T * KEY_DIM + columns, (k * after).to(storage), mask=inside)
        total = tl.sum(log_decay, axis=0, keep_dims=True)
        tl.store(decays_ptr + place * KEY_DIM + columns, tl.exp2(total), mask=inside)
    block_ptrs = of_block_ptr + place * (2 * BLOCK_T * BLOCK_T) + rows * BLOCK_T + sources
    scores = (of_queries + tl.where(rows == sources, itself, 0.0)) * KEY_DIM**-0.5
    tl.store(block_ptrs + BLOCK_T * BLOCK_T, scores.to(of_block_ptr.dtype.element_ty))
    beta_ptrs = betas_ptr + first.to(tl.int64) * stride_betas_token + head
    beta = tl.sigmoid(tl.load(beta_ptrs + rows * stride_betas_token, mask=valid, other=0.0).to(tl.float32))
    inverse = _invert(of_keys * beta, BLOCK_T)
    length = tl.load(starts_ptr + run + 1) - first
    b = tl.load(beta_ptrs + sources * stride_betas_token, mask=sources < length, other=0.0)
    tl.store(block_ptrs, (inverse * tl.sigmoid(b.to(tl.float32))).to(of_block_ptr.dtype.element_ty))
