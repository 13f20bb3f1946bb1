"""Warp-specialised prefill attention in Gluon for long chunks on Hopper (compute capability 9.0).

The schedule is that of FlashAttention-3 (Shah et al., 2024). Per thread block, one producer warp group copies keys and
values through the slot table into shared memory, and two consumer warp groups attend with 64 query rows each. The
consumers issue their GEMMs in turns (ping-pong), so that tensor cores work for one while the other computes softmax.

Gluon, because Triton has no warp specialisation by hand. Triton's interpreter cannot run it; tests compare it on a GPU.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
from ..runtime.rings import advance
from ..runtime.triton import gl, gluon, hopper
from ._kv_conversion import INT4
from ._prefill_hopper_copy import copy_codes, copy_values
from ._prefill_hopper_int4 import copy_int4

_INT4 = gl.constexpr(INT4)
_LOG2_E = gl.constexpr(1.4426950408889634)
_ROWS = gl.constexpr(64)  # query rows of each consumer warp group


@gluon.jit
def _sum(a, b):
    return a + b


@gluon.jit
def _locate(b_q_start_ptr, item, batch, GROUP: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_B: gl.constexpr):
    """`find_tile` of `runtime/batches.py` in Gluon: the request of tile `item`, and which of its tiles that is."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    requests = gl.arange(0, BLOCK_B, layout=layout)
    here = requests < batch
    starts = gl.load(b_q_start_ptr + requests, mask=here, other=0)
    ends = gl.load(b_q_start_ptr + 1 + requests, mask=here, other=0)
    counts = ((ends - starts) * GROUP + BLOCK_M - 1) // BLOCK_M
    totals = gl.associative_scan(counts, 0, _sum)
    request = gl.sum((totals <= item).to(gl.int32), axis=0)
    return request, item - gl.sum(gl.where(requests < request, counts, 0), axis=0)


@gluon.jit
def _weigh(
    scores, scale_log2, row_max, row_sum, start, positions, slopes,
    MASKED: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Online softmax as in `accumulate`: float32 weights, correction of earlier sums, maximum and sum."""
    units = scale_log2
    if SOFTCAP > 0.0:
        scores = 1.0 - 2.0 / (gl.exp2(scores * (scale_log2 * (2.0 / SOFTCAP))) + 1.0)
        units = SOFTCAP * _LOG2_E
    if MASKED or slopes is not None:
        keys = start + gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, layout))
        distances = keys[None, :] - positions[:, None]
        if slopes is not None:
            scores = scores * units + slopes[:, None] * distances.to(gl.float32)
            units = 1.0
        if MASKED:
            seen = distances <= 0
            if WINDOW:
                seen = seen & (distances > -WINDOW)
            scores = gl.where(seen, scores, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(scores, axis=1) * units)
    base = new_max
    if WINDOW and MASKED:
        base = gl.where(new_max == float("-inf"), 0.0, new_max)
    correction = gl.exp2(row_max - base)
    weights = gl.exp2(scores * units - base[:, None])
    return weights, correction, new_max, row_sum * correction + gl.sum(weights, axis=1)


@gluon.jit
def _steps(
    state, begin, end, q_tile, tiles, barriers, turns, scale_log2, positions, slopes,
    INDEX: gl.constexpr, MASKED: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    s_layout: gl.constexpr, o_layout: gl.constexpr,
):  # fmt: skip
    """Attends to blocks of keys from `begin` to `end`, with the V GEMM one block behind the K GEMM.

    `state`: accumulator, softmax weights whose V GEMM is pending, maximum and sum of weights, stage and phase of those
    values, and the phase of this warp group's turn.
    """
    k_tiles, v_tiles = tiles
    k_full, k_free, v_full, v_free = barriers
    acc, weights16, row_max, row_sum, stage, phase, turn = state
    for start in range(begin, end, BLOCK_N):
        k_stage, k_phase = advance(stage, phase, STAGES)
        hopper.mbarrier.wait(k_full.index(k_stage), k_phase)
        hopper.mbarrier.wait(turns.index(INDEX), turn)
        turn ^= 1
        hopper.fence_async_shared()
        zeros = gl.zeros([_ROWS, BLOCK_N], gl.float32, s_layout)
        keys = k_tiles.index(k_stage).permute((1, 0))
        scores = hopper.warpgroup_mma(q_tile, keys, zeros, use_acc=False, is_async=True)
        hopper.mbarrier.wait(v_full.index(stage), phase)
        hopper.fence_async_shared()
        weighted = hopper.warpgroup_mma(weights16, v_tiles.index(stage), acc, is_async=True)
        hopper.mbarrier.arrive(turns.index(1 - INDEX), count=1)
        scores = hopper.warpgroup_mma_wait(1, deps=[scores])
        hopper.mbarrier.arrive(k_free.index(k_stage), count=1)
        weights, correction, row_max, row_sum = _weigh(
            scores, scale_log2, row_max, row_sum, start, positions, slopes, MASKED, WINDOW, SOFTCAP, s_layout
        )
        acc = hopper.warpgroup_mma_wait(0, deps=[weighted])
        hopper.mbarrier.arrive(v_free.index(stage), count=1)
        acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, o_layout))[:, None]
        weights16 = gl.convert_layout(weights.to(q_tile.dtype), gl.DotOperandLayout(0, o_layout, 2))
        stage = k_stage
        phase = k_phase
    return acc, weights16, row_max, row_sum, stage, phase, turn


@gluon.jit
def _first_step(
    begin, q_tile, tiles, barriers, scale_log2, positions, slopes,
    INDEX: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_N: gl.constexpr,
    s_layout: gl.constexpr, o_layout: gl.constexpr,
):  # fmt: skip
    """`state` of `_steps` after the block at `begin`. Consumer 0 has the first turn."""
    k_tiles, _v_tiles = tiles
    k_full, k_free, _v_full, _v_free = barriers
    row_max = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, s_layout))
    row_sum = gl.zeros([_ROWS], gl.float32, gl.SliceLayout(1, s_layout))
    hopper.mbarrier.wait(k_full.index(0), 0)
    hopper.fence_async_shared()
    zeros = gl.zeros([_ROWS, BLOCK_N], gl.float32, s_layout)
    keys = k_tiles.index(0).permute((1, 0))
    scores = hopper.warpgroup_mma(q_tile, keys, zeros, use_acc=False, is_async=True)
    scores = hopper.warpgroup_mma_wait(0, deps=[scores])
    hopper.mbarrier.arrive(k_free.index(0), count=1)
    weights, _correction, row_max, row_sum = _weigh(
        scores, scale_log2, row_max, row_sum, begin, positions, slopes, True, WINDOW, SOFTCAP, s_layout
    )
    weights16 = gl.convert_layout(weights.to(q_tile.dtype), gl.DotOperandLayout(0, o_layout, 2))
    acc = gl.zeros([_ROWS, HEAD_DIM], gl.float32, o_layout)
    return acc, weights16, row_max, row_sum, 0, 0, 1 - INDEX


@gluon.jit
def _attend(
    tensors, shared, kv_head, request, bounds, scale_log2,
    INDEX: gl.constexpr, GROUP: gl.constexpr, WINDOW: gl.constexpr, SOFTCAP: gl.constexpr,
    HEAD_DIM: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Consumer warp group INDEX: attends with rows `INDEX * 64` to `INDEX * 64 + 64` of the tile."""
    begin, full, seen_by_all, end = bounds
    if begin < end:
        q_ptr, sinks_ptr, slopes_ptr, out_ptr, q_strides, out_strides = tensors
        q_tiles, tiles, barriers, turns = shared
        q_start, q_rows, first, prefix = request
        s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
        o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
        VECTOR: gl.constexpr = 8
        ACROSS: gl.constexpr = HEAD_DIM // VECTOR
        layout: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
        rows = first + INDEX * _ROWS + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, layout))
        elements = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, layout))
        exists = (rows < q_rows)[:, None]
        tokens = (q_start + rows // GROUP).to(gl.int64)
        heads = kv_head * GROUP + rows % GROUP
        q_places = (tokens * q_strides[0] + heads * q_strides[1])[:, None] + elements[None, :]
        q = gl.load(q_ptr + q_places, mask=exists, other=0.0)
        q_tile = q_tiles.index(INDEX)
        if q_tile.dtype != q.dtype:
            q = gl.minimum(gl.maximum(q.to(gl.float32), -65504.0), 65504.0).to(q_tile.dtype)
        q_tile.store(q)
        hopper.fence_async_shared()

        members = first + INDEX * _ROWS + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, s_layout))
        positions = prefix + members // GROUP
        member_heads = kv_head * GROUP + members % GROUP
        slopes = None
        if slopes_ptr is not None:
            slopes = gl.load(slopes_ptr + member_heads, mask=members < q_rows, other=0.0) * _LOG2_E
        state = _first_step(
            begin, q_tile, tiles, barriers, scale_log2, positions, slopes,
            INDEX, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_N, s_layout, o_layout,
        )  # fmt: skip
        begin += BLOCK_N
        if WINDOW:
            full = gl.minimum(gl.maximum(full, begin), end)
            state = _steps(
                state, begin, full, q_tile, tiles, barriers, turns, scale_log2, positions, slopes,
                INDEX, True, WINDOW, SOFTCAP, BLOCK_N, STAGES, s_layout, o_layout,
            )  # fmt: skip
            begin = full
        seen_by_all = gl.maximum(seen_by_all, begin)
        state = _steps(
            state, begin, seen_by_all, q_tile, tiles, barriers, turns, scale_log2, positions, slopes,
            INDEX, False, WINDOW, SOFTCAP, BLOCK_N, STAGES, s_layout, o_layout,
        )  # fmt: skip
        state = _steps(
            state, seen_by_all, end, q_tile, tiles, barriers, turns, scale_log2, positions, slopes,
            INDEX, True, WINDOW, SOFTCAP, BLOCK_N, STAGES, s_layout, o_layout,
        )  # fmt: skip
        acc, weights16, row_max, row_sum, stage, phase, _turn = state
        hopper.mbarrier.wait(barriers[2].index(stage), phase)
        hopper.fence_async_shared()
        weighted = hopper.warpgroup_mma(weights16, tiles[1].index(stage), acc, is_async=True)
        acc = hopper.warpgroup_mma_wait(0, deps=[weighted])
        if sinks_ptr is not None:
            sinks = gl.load(sinks_ptr + member_heads, mask=members < q_rows, other=0.0) * _LOG2_E
            row_sum += gl.exp2(sinks - row_max)
        acc = acc / gl.convert_layout(row_sum, gl.SliceLayout(1, o_layout))[:, None]
        out = gl.convert_layout(acc.to(out_ptr.dtype.element_ty), layout)
        out_places = (tokens * out_strides[0] + heads * out_strides[1])[:, None] + elements[None, :]
        gl.store(out_ptr + out_places, out, mask=exists)


@gluon.jit(
    do_not_specialize=["batch"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_q_start_ptr", "b_kv_len_ptr"],
)
def prefill_attention_hopper_kernel(
    q_ptr,  # [tokens, heads, HEAD_DIM]
    k_cache_ptr,  # [slots, kv_heads, HEAD_DIM], or, where FORMAT, int32 words of four codes, or of eight 4-bit ones
    v_cache_ptr,  # [slots, kv_heads, HEAD_DIM], likewise
    scales_ptr,  # [slots, kv_heads] int32, both scales side by side, or scale and zero of each group, or None
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [batch]
    b_q_start_ptr,  # [batch + 1]
    b_kv_len_ptr,  # [batch]
    sinks_ptr,  # [heads] float32 or None
    slopes_ptr,  # [heads] float32 or None
    out_ptr,  # [tokens, heads, HEAD_DIM]
    stride_q_token,
    stride_q_head,
    stride_k_slot: gl.constexpr,
    stride_k_head: gl.constexpr,
    stride_v_slot: gl.constexpr,
    stride_v_head: gl.constexpr,
    stride_scales_slot: gl.constexpr,
    stride_scales_head,
    stride_table_row,
    stride_out_token,
    stride_out_head,
    batch,
    scale_log2,  # scale times log2(e)
    GROUP: gl.constexpr,  # heads for each KV head
    HEAD_DIM: gl.constexpr,
    BLOCK_B: gl.constexpr,  # power of two, at least batch
    WINDOW: gl.constexpr,
    SOFTCAP: gl.constexpr,
    FORMAT: gl.constexpr,  # of `kv_quantisation`, 0 for values
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    COPY_REGISTERS: gl.constexpr,
    ATTEND_REGISTERS: gl.constexpr,
):
    """One thread block attends with 128 query rows of one request and KV head; rows are heads within tokens."""
    BLOCK_M: gl.constexpr = 2 * _ROWS
    request, tile = _locate(b_q_start_ptr, gl.program_id(1), batch, GROUP, BLOCK_M, BLOCK_B)
    exists = request < batch
    request = gl.minimum(request, batch - 1)
    kv_head = gl.program_id(0)
    q_start = gl.load(b_q_start_ptr + request)
    q_len = gl.load(b_q_start_ptr + request + 1) - q_start
    kv_len = gl.load(b_kv_len_ptr + request)
    # The last tile reads most, so it starts first, and short tiles fill the tail.
    first = ((q_len * GROUP + BLOCK_M - 1) // BLOCK_M - 1 - tile) * BLOCK_M
    prefix = kv_len - q_len
    # Keys before `seen_by_all` need no mask; no query sees keys from `end` on.
    seen_by_all = (prefix + first // GROUP + 1) // BLOCK_N * BLOCK_N
    end = gl.minimum(kv_len, prefix + (first + BLOCK_M - 1) // GROUP + 1)
    begin = end * 0
    full = begin
    if WINDOW:
        begin = gl.maximum(prefix + first // GROUP + 1 - WINDOW, 0) // BLOCK_N * BLOCK_N
        full = (gl.maximum(end - WINDOW, 0) + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    end = gl.where(exists, end, begin)

    dtype: gl.constexpr = gl.float16 if FORMAT else q_ptr.dtype.element_ty
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, HEAD_DIM], dtype)
    kv_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, HEAD_DIM], dtype)
    q_tiles = gl.allocate_shared_memory(dtype, [2, _ROWS, HEAD_DIM], q_layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_DIM], kv_layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_DIM], kv_layout)
    barrier: gl.constexpr = hopper.mbarrier.MBarrierLayout()
    k_full, k_free, v_full, v_free = (
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
    )
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    for stage in gl.static_range(STAGES):
        # Asynchronous copies count by thread; elsewhere one thread arrives for its warp group.
        hopper.mbarrier.init(k_full.index(stage), count=1 if FORMAT else 128)
        hopper.mbarrier.init(k_free.index(stage), count=2)
        hopper.mbarrier.init(v_full.index(stage), count=1 if FORMAT else 128)
        hopper.mbarrier.init(v_free.index(stage), count=2)
    for index in gl.static_range(2):
        hopper.mbarrier.init(turns.index(index), count=1)

    slot_row_ptr = slot_table_ptr + gl.load(b_row_ptr + request).to(gl.int64) * stride_table_row
    k_head_ptr = k_cache_ptr + kv_head * stride_k_head
    v_head_ptr = v_cache_ptr + kv_head * stride_v_head
    tiles, barriers = (k_tiles, v_tiles), (k_full, k_free, v_full, v_free)
    tensors = (
        q_ptr, sinks_ptr, slopes_ptr, out_ptr, (stride_q_token, stride_q_head), (stride_out_token, stride_out_head),
    )  # fmt: skip
    shared = (q_tiles, tiles, barriers, turns)
    tile_of = (q_start, q_len * GROUP, first, prefix)
    bounds = (begin, full, seen_by_all, end)
    if FORMAT == _INT4:
        pairs_head_ptr = scales_ptr + kv_head * stride_scales_head
        gl.warp_specialize(
            [
                (_attend, (
                    tensors, shared, kv_head, tile_of, bounds, scale_log2,
                    0, GROUP, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_N, STAGES,
                )),
                (_attend, (
                    tensors, shared, kv_head, tile_of, bounds, scale_log2,
                    1, GROUP, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_N, STAGES,
                )),
                (copy_int4, (
                    slot_row_ptr, k_head_ptr, v_head_ptr, pairs_head_ptr, begin, end, tiles, barriers,
                    stride_k_slot, stride_v_slot, stride_scales_slot, HEAD_DIM, BLOCK_N, STAGES,
                )),
            ],
            [4, 4],
            [ATTEND_REGISTERS, COPY_REGISTERS],
        )  # fmt: skip
    elif FORMAT:
        scales_head_ptr = scales_ptr + kv_head * stride_scales_head
        gl.warp_specialize(
            [
                (_attend, (
                    tensors, shared, kv_head, tile_of, bounds, scale_log2,
                    0, GROUP, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_N, STAGES,
                )),
                (_attend, (
                    tensors, shared, kv_head, tile_of, bounds, scale_log2,
                    1, GROUP, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_N, STAGES,
                )),
                (copy_codes, (
                    slot_row_ptr, k_head_ptr, v_head_ptr, scales_head_ptr, begin, end, tiles, barriers,
                    stride_k_slot, stride_v_slot, stride_scales_slot, FORMAT, HEAD_DIM, BLOCK_N, STAGES,
                )),
            ],
            [4, 4],
            [ATTEND_REGISTERS, COPY_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_attend, (
                    tensors, shared, kv_head, tile_of, bounds, scale_log2,
                    0, GROUP, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_N, STAGES,
                )),
                (_attend, (
                    tensors, shared, kv_head, tile_of, bounds, scale_log2,
                    1, GROUP, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_N, STAGES,
                )),
                (copy_values, (
                    slot_row_ptr, k_head_ptr, v_head_ptr, begin, end, tiles, barriers,
                    stride_k_slot, stride_v_slot, HEAD_DIM, BLOCK_N, STAGES,
                )),
            ],
            [4, 4],
            [ATTEND_REGISTERS, COPY_REGISTERS],
        )  # fmt: skip
