"""Second kernel of chunked Kimi delta attention: the scan over the blocks that `_kimi_delta_blocks.py` prepares.

With the state S at the beginning of a block, and G the sums of log decays by channel as there:

    delta  = (I + A)^-1 diag(beta) (V - (exp(G) K) S)
    out[i] = S^T (exp(G[i]) q[i]) + sum over j <= i of scores[i, j] * delta[j]
    S      = exp(G[last]) S + sum over j of outer(exp(G[last] - G[j]) k[j], delta[j])
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._gated_delta_states import _blocks_before
from ._recurrence import find_run


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "starts_ptr", "kv_lens_ptr"])
def kimi_delta_states_kernel(
    qkv_ptr,  # [tokens, HEADS * (2 * KEY_DIM + VALUE_DIM)]
    state_ptr,  # [rows, HEADS, KEY_DIM, VALUE_DIM]
    rows_ptr,  # [runs]
    starts_ptr,  # [runs + 1]
    kv_lens_ptr,  # [runs]
    of_state_ptr,  # [blocks, HEADS, 3, BLOCK_T, KEY_DIM]
    of_block_ptr,  # [blocks, HEADS, 2, BLOCK_T, BLOCK_T]
    decays_ptr,  # [blocks, HEADS, KEY_DIM]
    out_ptr,  # [tokens, HEADS, VALUE_DIM]
    stride_qkv_token,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_T: tl.constexpr,
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
    of_state_ptrs = of_state_ptr + place * (3 * BLOCK_T * KEY_DIM) + tokens[:, None] * KEY_DIM + keys[None, :]
    of_block_ptrs = of_block_ptr + place * (2 * BLOCK_T * BLOCK_T) + tokens[:, None] * BLOCK_T + tokens[None, :]
    decay_ptrs = decays_ptr + place * KEY_DIM + keys
    value_ptrs = qkv_ptr + start * stride_qkv_token + 2 * HEADS * KEY_DIM + head * VALUE_DIM
    value_ptrs += tokens[:, None] * stride_qkv_token + columns[None, :]
    out_ptrs = out_ptr + ((start + tokens)[:, None] * HEADS + head) * VALUE_DIM + columns[None, :]
    for first in tl.range(0, length, BLOCK_T, num_stages=STAGES):
        valid = (tokens < length - first)[:, None] & inside
        k = tl.load(of_state_ptrs, mask=key_inside, other=0.0)
        q = tl.load(of_state_ptrs + BLOCK_T * KEY_DIM, mask=key_inside, other=0.0)
        written = tl.load(of_state_ptrs + 2 * BLOCK_T * KEY_DIM, mask=key_inside, other=0.0)
        v = tl.load(value_ptrs, mask=valid, other=0.0)
        of_deltas = tl.load(of_block_ptrs)
        scores = tl.load(of_block_ptrs + BLOCK_T * BLOCK_T)
        decay = tl.load(decay_ptrs, mask=keys < KEY_DIM, other=0.0)
        rounded = state.to(q.dtype)
        wrong = v.to(tl.float32) - tl.dot(k, rounded)
        delta = tl.dot(of_deltas, wrong.to(q.dtype)).to(q.dtype)
        out = tl.dot(scores, delta, tl.dot(q, rounded))
        state = tl.dot(written.T, delta, state * decay[:, None])
        tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=valid)
        of_state_ptrs += HEADS * (3 * BLOCK_T * KEY_DIM)
        of_block_ptrs += HEADS * (2 * BLOCK_T * BLOCK_T)
        decay_ptrs += HEADS * KEY_DIM
        value_ptrs += BLOCK_T * stride_qkv_token
        out_ptrs += BLOCK_T * HEADS * VALUE_DIM
    tl.store(state_ptrs, state, mask=held)
