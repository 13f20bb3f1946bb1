"""First kernel of the chunked gated delta rule: prepares blocks of tokens, all at once, for the scan over blocks.

Within a block that begins with the state S, with G[i] = g[0] + ... + g[i] and gamma = exp(G), token i adds
outer(k[i], delta[i]) to the state. Each delta depends on those before it:

    delta[i] = beta[i] * (v[i] - gamma[i] * S^T k[i] - sum over j < i of exp(G[i] - G[j]) * (k[i] . k[j]) * delta[j])

With A[i, j] = beta[i] * exp(G[i] - G[j]) * (k[i] . k[j]) for j < i, and T = (I + A)^-1, all of them are

    delta = u - w S    with  u = T diag(beta) V  and  w = T diag(beta * gamma) K

(the WY representation, Bischof and Van Loan, 1987; Yang et al., 2024). This kernel computes `u` and `w`, and the scores
by which queries read the deltas of their block: scores[i, j] = exp(G[i] - G[j]) * (q[i] . k[j]) for j <= i.

GEMMs take keys unnormalised; their lengths are divided out with the factors of rows and columns, in float32. All
elements of T and A are at most 1, so float16 holds them with an error of 2^-12; bfloat16 would be too coarse.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.batches import find_tile
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._gated_delta_gates import open_gates, over_length

BLOCK_T = 64
"""Tokens of a block."""
FACTORS = 4
"""float32 vectors that are kept for each block and head: factors of a query's result, of a key's delta for the next
state, and of the columns of T for `u` and for `w`.
"""


@triton.jit
def _invert(
    a,  # [BLOCK_T, BLOCK_T] float32, nothing on the diagonal and above
    BLOCK_T: tl.constexpr,
):
    """(I + a)^-1, float32, by block inversion: from diagonal blocks of one size to those of twice the size.

    With X and Z inverted, the inverse of [[X, 0], [Y, Z]] lacks -Z^-1 Y X^-1. A Neumann series (powers of `a`) would
    lose all precision where many keys are alike.
    """
    tl.static_assert(BLOCK_T == 64)
    rows, columns = tl.arange(0, BLOCK_T)[:, None], tl.arange(0, BLOCK_T)[None, :]
    negative = (-a).to(tl.float16)
    zeros = tl.zeros_like(negative)
    inverse = tl.where(rows == columns, 1.0, tl.where((rows ^ columns) == 1, negative, zeros).to(tl.float32))
    for level in tl.static_range(1, 6):
        known = inverse.to(tl.float16)
        below = tl.where((rows >> level) == ((columns >> level) ^ 1), negative, zeros)
        inverse = tl.dot(tl.dot(known, below).to(tl.float16), known, inverse)
    return inverse


@triton.jit
def _decays(
    log_decay,  # [BLOCK_T], powers of two, at most 0
):
    """Decay of each token at each later one, [BLOCK_T, BLOCK_T], 0 for earlier ones; of the state before them at each
    token, [BLOCK_T]; of each token after the last one, [BLOCK_T]; and of the state after the last one.

    Exponents are differences of sums, never above 0. Differences of large sums would lose bits, so each number is cut
    in two: sums of the coarse halves, multiples of 2^-11, are exact. Decays below 2^-150 are 0.
    """
    log_decay = tl.maximum(log_decay, -150.0)
    coarse = tl.floor(log_decay * 2048.0) * (1.0 / 2048.0)
    fine = log_decay - coarse
    coarse_sum, fine_sum = tl.cumsum(coarse, axis=0), tl.cumsum(fine, axis=0)
    coarse_total, fine_total = tl.sum(coarse, axis=0), tl.sum(fine, axis=0)
    tokens = tl.arange(0, log_decay.shape[0])
    between = (coarse_sum[:, None] - coarse_sum[None, :]) + (fine_sum[:, None] - fine_sum[None, :])
    between = tl.exp2(tl.where(tokens[:, None] >= tokens[None, :], between, float("-inf")))
    after = tl.exp2((coarse_total - coarse_sum) + (fine_total - fine_sum))
    return between, tl.exp2(coarse_sum + fine_sum), after, tl.exp2(coarse_total + fine_total)


@triton.jit
def _dot_products(
    query_ptrs,  # [BLOCK_T, 1]
    key_ptrs,  # [BLOCK_T, 1]
    valid,  # [BLOCK_T, 1]
    KEY_DIM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """K K^T and Q K^T [BLOCK_T, BLOCK_T], and squared lengths of keys and queries [BLOCK_T].

    Queries are loaded a second time for their lengths: Triton 3.6 overwrites what asynchronous GEMMs still read where
    another instruction of the loop reads the same tile.
    """
    of_keys = tl.zeros([BLOCK_T, BLOCK_T], dtype=tl.float32)
    of_queries = tl.zeros([BLOCK_T, BLOCK_T], dtype=tl.float32)
    for begin in range(0, KEY_DIM, WIDTH):
        columns = begin + tl.arange(0, WIDTH)[None, :]
        k = tl.load(key_ptrs + columns, mask=valid & (columns < KEY_DIM), other=0.0)
        q = tl.load(query_ptrs + columns, mask=valid & (columns < KEY_DIM), other=0.0)
        of_keys = tl.dot(k, k.T, of_keys)
        of_queries = tl.dot(q, k.T, of_queries)
    q_square = tl.zeros([BLOCK_T], dtype=tl.float32)
    for begin in range(0, KEY_DIM, WIDTH):
        columns = begin + tl.arange(0, WIDTH)[None, :]
        q = tl.load(query_ptrs + columns, mask=valid & (columns < KEY_DIM), other=0.0).to(tl.float32)
        q_square += tl.sum(q * q, axis=1)
    diagonal = tl.arange(0, BLOCK_T)[:, None] == tl.arange(0, BLOCK_T)[None, :]
    return of_keys, of_queries, tl.sum(tl.where(diagonal, of_keys, 0.0), axis=1), q_square


@triton.jit
def _store_matmul(
    matrix,  # [BLOCK_T, BLOCK_T]
    source_ptrs,  # [BLOCK_T, 1]
    valid,  # [BLOCK_T, 1]
    target_ptrs,  # [BLOCK_T, 1]
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Stores the GEMM of `matrix` with vectors of DIM elements."""
    for begin in range(0, DIM, WIDTH):
        columns = begin + tl.arange(0, WIDTH)[None, :]
        source = tl.load(source_ptrs + columns, mask=valid & (columns < DIM), other=0.0)
        tl.store(target_ptrs + columns, tl.dot(matrix, source).to(source.dtype), mask=columns < DIM)


@triton.jit
def _store_factors(
    factors_ptrs,  # [BLOCK_T]
    before,  # [BLOCK_T], as the others
    after,
    beta,
    q_scale,
    k_scale,
    BLOCK_T: tl.constexpr,
):
    """Stores the vectors that `FACTORS` counts."""
    tl.store(factors_ptrs, before * q_scale)
    tl.store(factors_ptrs + BLOCK_T, after * k_scale)
    tl.store(factors_ptrs + 2 * BLOCK_T, beta)
    tl.store(factors_ptrs + 3 * BLOCK_T, beta * before * k_scale)


@triton.jit(do_not_specialize=["runs"], do_not_specialize_on_alignment=["gates_ptr", "starts_ptr", "kv_lens_ptr"])
def gated_delta_blocks_kernel(
    qkv_ptr,  # [tokens, 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM]
    gates_ptr,  # [tokens, 2 * HEADS]
    rate_ptr,  # [HEADS]
    bias_ptr,  # [HEADS]
    starts_ptr,  # [runs + 1]
    kv_lens_ptr,  # [runs]
    w_ptr,  # [blocks, HEADS, BLOCK_T, KEY_DIM]
    u_ptr,  # [blocks, HEADS, BLOCK_T, VALUE_DIM]
    scores_ptr,  # [blocks, HEADS, BLOCK_T, BLOCK_T]
    factors_ptr,  # [blocks, HEADS, FACTORS, BLOCK_T] float32
    decays_ptr,  # [blocks, HEADS] float32, decay of a state over the block
    stride_qkv_token,
    stride_gates_token,
    runs,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    FACTORS: tl.constexpr,
    WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr,
    BLOCK_B: tl.constexpr,  # power of two, at least runs
    MOST_BETA: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block prepares one head of one block. It stores zeros for tokens past the end of the run."""
    head, item = tl.program_id(0), tl.program_id(1)
    rate, bias = tl.load(rate_ptr + head), tl.load(bias_ptr + head)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    run, block = find_tile(starts_ptr, item, runs, 1, BLOCK_T, BLOCK_B)
    if run >= runs:
        return
    if tl.load(kv_lens_ptr + run) == 0:
        return
    first = tl.load(starts_ptr + run) + block * BLOCK_T
    tokens = tl.arange(0, BLOCK_T)
    valid = tokens < tl.load(starts_ptr + run + 1) - first
    token_ptrs = qkv_ptr + first.to(tl.int64) * stride_qkv_token + tokens[:, None] * stride_qkv_token
    query_ptrs = token_ptrs + head // (HEADS // KEY_HEADS) * KEY_DIM
    key_ptrs = query_ptrs + KEY_HEADS * KEY_DIM
    of_keys, of_queries, k_square, q_square = _dot_products(
        query_ptrs, key_ptrs, valid[:, None], KEY_DIM, BLOCK_T, WIDTH_K
    )
    k_scale, q_scale = over_length(k_square), over_length(q_square) * KEY_DIM**-0.5

    gate_ptrs = gates_ptr + first.to(tl.int64) * stride_gates_token + tokens * stride_gates_token + head
    b = tl.load(gate_ptrs, mask=valid, other=0.0)
    a = tl.load(gate_ptrs + HEADS, mask=valid, other=0.0)
    beta, log_decay = open_gates(b, a, rate, bias, MOST_BETA)
    between, before, after, decay = _decays(tl.where(valid, log_decay, 0.0))
    between *= k_scale[None, :]
    place = item.to(tl.int64) * HEADS + head
    factors_ptrs = factors_ptr + place * (FACTORS * BLOCK_T) + tokens
    _store_factors(factors_ptrs, before, after, beta, q_scale, k_scale, BLOCK_T)
    tl.store(decays_ptr + place, decay)
    block_rows = place * BLOCK_T + tokens[:, None]
    scores = of_queries * between * q_scale[:, None]
    tl.store(scores_ptr + block_rows * BLOCK_T + tokens[None, :], scores.to(scores_ptr.dtype.element_ty))

    a = of_keys * between * (beta * k_scale)[:, None]
    inverse = _invert(tl.where(tokens[:, None] > tokens[None, :], a, 0.0), BLOCK_T)
    # Factors of columns are read back: a thread needs many of them, and would compute each again.
    tl.debug_barrier()
    for_u = (inverse * tl.load(factors_ptrs + 2 * BLOCK_T)[None, :]).to(u_ptr.dtype.element_ty)
    value_ptrs = token_ptrs + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM
    _store_matmul(for_u, value_ptrs, valid[:, None], u_ptr + block_rows * VALUE_DIM, VALUE_DIM, WIDTH_V)
    for_w = (inverse * tl.load(factors_ptrs + 3 * BLOCK_T)[None, :]).to(w_ptr.dtype.element_ty)
    _store_matmul(for_w, key_ptrs, valid[:, None], w_ptr + block_rows * KEY_DIM, KEY_DIM, WIDTH_K)
