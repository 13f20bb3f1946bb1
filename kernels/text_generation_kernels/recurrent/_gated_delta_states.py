"""Second kernel of the chunked gated delta rule: the scan over the blocks that `_gated_delta_blocks.py` prepares.

With the state S at the beginning of a block, and G the sums of log decays as there:

    delta  = u - w S
    out[i] = exp(G[i]) * S^T q[i] + sum over j <= i of scores[i, j] * delta[j]
    S      = exp(G[last]) * S + sum over j of exp(G[last] - G[j]) * outer(k[j], delta[j])
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._recurrence import find_run


@triton.jit
def _blocks_before(run, starts_ptr, BLOCK_T: tl.constexpr, BLOCK_B: tl.constexpr):
    """Number of blocks of the runs before this one."""
    runs = tl.arange(0, BLOCK_B)
    starts = tl.load(starts_ptr + runs, mask=runs < run, other=0)
    ends = tl.load(starts_ptr + 1 + runs, mask=runs < run, other=0)
    return tl.sum(tl.cdiv(ends - starts, BLOCK_T), axis=0)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "kv_lens_ptr"])
def gated_delta_states_kernel(
    qkv_ptr,  # [tokens, 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM]
    state_ptr,  # [rows, HEADS, KEY_DIM, VALUE_DIM]
    rows_ptr,  # [runs]
    starts_ptr,  # [runs + 1]
    kv_lens_ptr,  # [runs]
    w_ptr,  # [blocks, HEADS, BLOCK_T, KEY_DIM]
    u_ptr,  # [blocks, HEADS, BLOCK_T, VALUE_DIM]
    scores_ptr,  # [blocks, HEADS, BLOCK_T, BLOCK_T]
    factors_ptr,  # [blocks, HEADS, FACTORS, BLOCK_T]
    decays_ptr,  # [blocks, HEADS]
    out_ptr,  # [tokens, HEADS, VALUE_DIM]
    stride_qkv_token,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_T: tl.constexpr,
    FACTORS: tl.constexpr,
    BLOCK_B: tl.constexpr,  # power of two, at least runs
    STAGES: tl.constexpr,  # blocks in flight
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_V value columns of one head of one run, whose state it holds in registers."""
    BLOCKS: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    head, run = tl.program_id(0) // BLOCKS, tl.program_id(1)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    start, length, continued, state_row_ptr = find_run(
        run, rows_ptr, starts_ptr, kv_lens_ptr, state_ptr, HEADS * KEY_DIM * VALUE_DIM
    )
    if length == 0:
        return
    tokens, keys = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K)
    columns = tl.program_id(0) % BLOCKS * BLOCK_V + tl.arange(0, BLOCK_V)
    key_inside, inside = (keys < KEY_DIM)[None, :], (columns < VALUE_DIM)[None, :]
    state_ptrs = state_row_ptr + (head * KEY_DIM + keys[:, None]) * VALUE_DIM + columns[None, :]
    held = (keys < KEY_DIM)[:, None] & inside
    state = tl.load(state_ptrs, mask=held & continued, other=0.0)

    place = _blocks_before(run, starts_ptr, BLOCK_T, BLOCK_B).to(tl.int64) * HEADS + head
    w_ptrs = w_ptr + place * (BLOCK_T * KEY_DIM) + tokens[:, None] * KEY_DIM + keys[None, :]
    u_ptrs = u_ptr + place * (BLOCK_T * VALUE_DIM) + tokens[:, None] * VALUE_DIM + columns[None, :]
    scores_ptrs = scores_ptr + place * (BLOCK_T * BLOCK_T) + tokens[:, None] * BLOCK_T + tokens[None, :]
    factors_ptrs = factors_ptr + place * (FACTORS * BLOCK_T) + tokens
    decay_ptr = decays_ptr + place
    query_ptrs = qkv_ptr + start * stride_qkv_token + head // (HEADS // KEY_HEADS) * KEY_DIM
    query_ptrs += tokens[:, None] * stride_qkv_token + keys[None, :]
    out_ptrs = out_ptr + ((start + tokens)[:, None] * HEADS + head) * VALUE_DIM + columns[None, :]
    for first in tl.range(0, length, BLOCK_T, num_stages=STAGES):
        valid = (tokens < length - first)[:, None]
        w = tl.load(w_ptrs, mask=key_inside, other=0.0)
        q = tl.load(query_ptrs, mask=valid & key_inside, other=0.0)
        k = tl.load(query_ptrs + KEY_HEADS * KEY_DIM, mask=valid & key_inside, other=0.0)
        u = tl.load(u_ptrs, mask=inside, other=0.0)
        scores = tl.load(scores_ptrs)
        of_query, of_key = tl.load(factors_ptrs), tl.load(factors_ptrs + BLOCK_T)
        decay = tl.load(decay_ptr)
        rounded = state.to(q.dtype)
        delta = u.to(tl.float32) - tl.dot(w, rounded)
        out = tl.dot(q, rounded) * of_query[:, None]
        state = tl.dot(k.T, (delta * of_key[:, None]).to(q.dtype), state * decay)
        out = tl.dot(scores, delta.to(q.dtype), out)
        tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=valid & inside)
        w_ptrs += HEADS * BLOCK_T * KEY_DIM
        u_ptrs += HEADS * BLOCK_T * VALUE_DIM
        scores_ptrs += HEADS * BLOCK_T * BLOCK_T
        factors_ptrs += HEADS * FACTORS * BLOCK_T
        decay_ptr += HEADS
        query_ptrs += BLOCK_T * stride_qkv_token
        out_ptrs += BLOCK_T * HEADS * VALUE_DIM
    tl.store(state_ptrs, state, mask=held)
