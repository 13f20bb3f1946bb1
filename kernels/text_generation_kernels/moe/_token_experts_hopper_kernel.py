"""Router top-k, gate and up, and down of one token's experts as one persistent kernel on Hopper (Gluon).

For one token a third of the time of small experts is latency: of the top-k, of the first bytes of the chosen experts,
and between gate and up and down. Here a thread block for each SM takes every so many-th tile of the gate and up weights
and then of the down weights, through one ring of asynchronous copies in shared memory. Tiles of down are prefetched
while gate and up is computed; thread blocks wait for each other only before they multiply them.

So all thread blocks must run at the same time. There are no more than fit, and dependents cannot take their places,
because they launch when all of these have started. Each thread block computes the top-k itself from the logits. The
first tiles are of the experts that are chosen first, so they are prefetched before the top-k is complete.

Layouts: see the parameters; all contiguous, and beginning at multiples of 16 bytes. `token_experts_hopper.py` launches
it. Bytes floor: 3 * slots * inner * hidden * 2. On an H200 one token through Qwen3-30B-A3B takes 1.97 ms.
It is in Gluon because Triton copies ahead within one loop only, and not across a wait. Triton's interpreter cannot run
it; the tests compare it on a device. Lab: docs/lab/2026-11-single-token-decode.md.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOptionalMemberAccess=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from ..norm.activations import gated_activation
from ..runtime.triton import cuda, gl, gluon, hopper

_SMALLEST = gl.constexpr(-(2**31))


@gluon.jit
def _keys(logits_ptr, EXPERTS: gl.constexpr, BLOCK_E: gl.constexpr, WARPS: gl.constexpr):
    """The logits [BLOCK_E], and for each a key.

    16 bits of a logit, as an integer of the same order, and its place make a key that no other logit has. Every warp
    has all of them, so that none waits for another: a warp has an instruction for the largest of its integers.
    """
    TYPE: gl.constexpr = logits_ptr.dtype.element_ty
    all_in_a_warp: gl.constexpr = gl.BlockedLayout([BLOCK_E // 32], [32], [WARPS], [0])
    lanes = gl.arange(0, BLOCK_E, all_in_a_warp)
    valid = lanes < EXPERTS
    logits = gl.load(logits_ptr + lanes, mask=valid, other=float("-inf")).to(gl.float32)
    # Adding 0 turns -0 into 0.
    ordered = gl.where(logits == logits, logits, float("-inf")) + 0.0
    bits = ordered.to(TYPE).to(gl.int16, bitcast=True).to(gl.int32)
    keys = gl.where(bits < 0, bits ^ 0x7FFF, bits) * 65536 + (65535 - lanes)
    return logits, gl.where(valid, keys, _SMALLEST)


@gluon.jit
def _top_k(
    keys,
    slots,
    place,
    up,
    TOP_K: gl.constexpr,
    HALF: gl.constexpr,
    STAGES: gl.constexpr,
    LEAD: gl.constexpr,
    EARLY: gl.constexpr,
):
    """The TOP_K largest keys, by slot [BLOCK_S], as `moe_route` orders them. Prefetches the first EARLY tiles: the
    first one when slot LEAD is chosen.
    """
    chosen = gl.full([slots.shape[0]], _SMALLEST, gl.int32, slots.type.layout)
    for slot in gl.static_range(TOP_K):
        best = gl.max(keys, axis=0)
        keys = gl.where(keys == best, _SMALLEST, keys)
        chosen = gl.where(slots == slot, best, chosen)
        if slot >= LEAD and slot < LEAD + EARLY:
            _prefetch_up(slot - LEAD, _ids(chosen, slots, slot + 1), slots, place, up, HALF, STAGES)
            hopper.async_copy.commit_group()
    return chosen


@gluon.jit
def _ids(chosen, slots, COUNT: gl.constexpr):
    """Ids of the experts in the first COUNT slots."""
    return gl.where(slots < COUNT, 65535 - (chosen & 65535), 0)


@gluon.jit
def _shares(logits, chosen, slots, TYPE: gl.constexpr, TOP_K: gl.constexpr, NORM: gl.constexpr):
    """Weights of the chosen experts, but for their factor, as `moe_route` has them."""
    bits = chosen >> 16
    values = gl.where(bits < 0, bits ^ 0x7FFF, bits).to(gl.int16).to(TYPE, bitcast=True).to(gl.float32)
    here = slots < TOP_K
    largest = gl.max(gl.where(here, values, float("-inf")), axis=0)
    exps = gl.where(here, gl.exp(values - largest), 0.0)
    return exps / (gl.sum(exps, axis=0) if NORM == 1 else gl.sum(gl.exp(logits - largest), axis=0))


@gluon.jit
def _prefetch_up(step, ids, slots, place, up, HALF: gl.constexpr, STAGES: gl.constexpr):
    """Starts the copy of a step's gate and up tile: gate rows, and then up rows."""
    first_up, programs, hidden, inner = place
    up_tiles, up_ptrs, up_inside = up
    tile = first_up + step * programs
    blocks = inner // HALF
    expert = gl.max(gl.where(slots == tile // blocks, ids, 0), axis=0)
    pointers = up_ptrs + (expert.to(gl.int64) * (2 * inner) + tile % blocks * HALF) * hidden
    stage = step % STAGES
    hopper.async_copy.async_copy_global_to_shared(up_tiles.index(2 * stage), pointers, mask=up_inside)
    pointers += inner * hidden
    hopper.async_copy.async_copy_global_to_shared(up_tiles.index(2 * stage + 1), pointers, mask=up_inside)


@gluon.jit
def _prefetch(step, work, place, up, down, HALF: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr):
    """Starts the copy of a step's tile, where there is one, of gate and up or then of down."""
    ups, steps, first_down, ids, slots = work
    down_tiles, down_ptrs, down_inside = down
    if step < ups:
        _prefetch_up(step, ids, slots, place, up, HALF, STAGES)
    elif step < steps:
        _, programs, _, inner = place
        tile = first_down + (step - ups) * programs
        pointers = down_ptrs + tile * (ROWS * inner)
        hopper.async_copy.async_copy_global_to_shared(down_tiles.index(step % STAGES), pointers, mask=down_inside)
    hopper.async_copy.commit_group()


@gluon.jit
def _load_acquire(pointer):
    """A 64-bit integer; what is read after it is no older."""
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.b64 $0, [$1];", "=l,l", [pointer], dtype=gl.int64, is_pure=False, pack=1
    )


@gluon.jit
def _wait_for_all(arrived_ptr, programs):
    """Waits until all thread blocks of this launch have arrived; each then sees what the others stored before. The
    counter is never reset: launches follow one another, each with as many thread blocks.
    """
    gl.thread_barrier()
    before = gl.atomic_add(arrived_ptr, 1, sem="acq_rel")
    end = (before // programs + 1) * programs
    while _load_acquire(arrived_ptr) < end:
        pass


@gluon.jit
def _store_activated(
    activated_ptr,
    dots,
    program,
    programs,
    ups,
    HALF: gl.constexpr,
    BLOCK_U: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """Stores the activated values of all tiles of a thread block, which down reads."""
    few: gl.constexpr = gl.BlockedLayout([1, 1], [32 // HALF, HALF], [gl.num_warps(), 1], [1, 0])
    both = dots._reinterpret(gl.float32, [BLOCK_U, 2 * HALF], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    gate, up = both.slice(0, HALF, 1).load(few), both.slice(HALF, HALF, 1).load(few)
    steps = gl.arange(0, BLOCK_U, gl.SliceLayout(1, few))[:, None]
    rows = gl.arange(0, HALF, gl.SliceLayout(0, few))[None, :]
    activated = gated_activation(gate, up, ACTIVATION).to(activated_ptr.dtype.element_ty)
    pointers = activated_ptr + (program + steps * programs) * HALF + rows
    gl.store(pointers, activated, mask=(steps < ups) & (rows >= 0))


@gluon.jit
def token_experts_kernel(
    x_ptr,  # [hidden]
    logits_ptr,  # [EXPERTS] of 16 bits
    gate_up_ptr,  # [experts, 2 * inner, hidden]
    down_ptr,  # [experts, hidden, inner]
    activated_ptr,  # [SLOTS, inner]
    out_ptr,  # [hidden]
    arrived_ptr,  # [1] int64
    hidden,
    inner,
    scale,
    EXPERTS: gl.constexpr,
    NORM: gl.constexpr,  # 1: chosen weights are divided by their sum; 0: they are not
    BLOCK_E: gl.constexpr,  # power of two, at least EXPERTS and 32
    SLOTS: gl.constexpr,
    BLOCK_S: gl.constexpr,  # power of two, at least SLOTS and the number of warps
    ADDS: gl.constexpr,  # whether the result is added to what is in `out`
    ACTIVATION: gl.constexpr,  # key of GATED
    HALF: gl.constexpr,  # gate rows of a tile; a divisor of `inner` and of the number of warps
    ROWS: gl.constexpr,  # outputs of a tile of down; a divisor of `hidden`
    BLOCK_K: gl.constexpr,  # power of two, at least `hidden`
    BLOCK_I: gl.constexpr,  # power of two, at least `inner`
    STAGES: gl.constexpr,  # tiles in shared memory
    BLOCK_U: gl.constexpr,  # power of two, at least the gate and up tiles of a thread block
    BLOCK_T: gl.constexpr,  # likewise of down
    LEAD: gl.constexpr,  # as of `_top_k`
    EARLY: gl.constexpr,  # likewise, at most STAGES - 1
    PDL: gl.constexpr,
):
    """One thread block computes every so many-th tile of gate and up and of down."""
    WARPS: gl.constexpr = gl.num_warps()
    TYPE: gl.constexpr = out_ptr.dtype.element_ty
    # Gate rows and their up rows are of the same warps. In down each warp has slots of its own.
    pairs: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [HALF, WARPS // HALF], [1, 0])
    experts: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 1, 32], [1, WARPS, 1], [2, 1, 0])
    of_slots: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, experts))
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    up_tiles = gl.allocate_shared_memory(TYPE, [2 * STAGES, HALF, BLOCK_K], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    down_tiles = up_tiles._reinterpret(
        TYPE, [STAGES, ROWS, BLOCK_S, BLOCK_I], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    )
    dots = gl.allocate_shared_memory(gl.float32, [2 * BLOCK_U, HALF, 1], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    sums = gl.allocate_shared_memory(gl.float32, [BLOCK_T, ROWS, BLOCK_S], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    # A thread block with one gate and up tile more has one down tile fewer.
    first_down = programs - 1 - program
    ups = (SLOTS * (inner // HALF) - program + programs - 1) // programs
    downs = (hidden // ROWS - first_down + programs - 1) // programs
    steps = ups + downs

    # No weight can be prefetched before the logits are there.
    if PDL:
        cuda.gdc_wait()
    gate_rows = gl.arange(0, HALF, gl.SliceLayout(1, pairs))
    columns = gl.arange(0, BLOCK_K, gl.SliceLayout(0, pairs))
    up_ptrs = gate_up_ptr + gate_rows[:, None] * hidden + columns[None, :]
    up_inside = (columns < hidden)[None, :] & (gate_rows >= 0)[:, None]
    place = program, programs, hidden, inner
    up = up_tiles, up_ptrs, up_inside
    logits, keys = _keys(logits_ptr, EXPERTS, BLOCK_E, WARPS)
    slots = gl.arange(0, BLOCK_S, keys.type.layout)
    chosen = _top_k(keys, slots, place, up, SLOTS, HALF, STAGES, LEAD, EARLY)
    ids = _ids(chosen, slots, SLOTS)
    x = gl.load(x_ptr + columns, mask=columns < hidden, other=0.0).to(gl.float32)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, gl.SliceLayout(2, experts)))[:, None, None]
    here = (gl.arange(0, BLOCK_S, of_slots) < SLOTS)[None, :, None]
    inner_columns = gl.arange(0, BLOCK_I, gl.SliceLayout(0, gl.SliceLayout(1, experts)))[None, None, :]
    down_ptrs = down_ptr + (gl.convert_layout(ids, of_slots).to(gl.int64) * (hidden * inner))[None, :, None]
    down_ptrs += rows * inner + inner_columns
    down_inside = (inner_columns < inner) & here & (rows >= 0)
    work = ups, steps, first_down, ids, slots
    down = down_tiles, down_ptrs, down_inside
    for step in range(EARLY, STAGES - 1):
        _prefetch(step, work, place, up, down, HALF, ROWS, STAGES)
    shares = _shares(logits, chosen, slots, logits_ptr.dtype.element_ty, SLOTS, NORM)
    for step in range(ups):
        hopper.async_copy.wait_group(STAGES - 2)
        # The copies of all threads have arrived, and the stage of the last step is free.
        gl.thread_barrier()
        _prefetch(step + STAGES - 1, work, place, up, down, HALF, ROWS, STAGES)
        for half in gl.static_range(2):
            tile = up_tiles.index(2 * (step % STAGES) + half).load(pairs)
            dots.index(2 * step + half).store(gl.sum(tile.to(gl.float32) * x[None, :], axis=1)[:, None])
    _store_activated(activated_ptr, dots, program, programs, ups, HALF, BLOCK_U, ACTIVATION)

    # The residual, and where results go: [down tiles, ROWS].
    flat: gl.constexpr = gl.BlockedLayout([1, 1, BLOCK_S], [1, 32, 1], [WARPS, 1, 1], [2, 1, 0])
    tiles = gl.arange(0, BLOCK_T, gl.SliceLayout(1, gl.SliceLayout(2, flat)))
    places = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, flat)))[None, :]
    places += ((first_down + tiles * programs) * ROWS)[:, None]
    mine = (tiles < downs)[:, None] & (places < hidden)
    if ADDS:
        before = gl.load(out_ptr + places, mask=mine, other=0.0)
    shares = gl.convert_layout(shares, gl.SliceLayout(0, gl.SliceLayout(1, flat)))
    _wait_for_all(arrived_ptr, programs)
    a_columns = gl.arange(0, BLOCK_I, gl.SliceLayout(0, gl.SliceLayout(0, experts)))
    a_slots = gl.arange(0, BLOCK_S, gl.SliceLayout(1, gl.SliceLayout(0, experts)))
    a_inside = (a_columns < inner)[None, :] & (a_slots < SLOTS)[:, None]
    a_ptrs = activated_ptr + a_slots[:, None] * inner + a_columns[None, :]
    a = gl.load(a_ptrs, mask=a_inside, other=0.0, cache_modifier=".cg").to(gl.float32)
    for step in range(ups, steps):
        hopper.async_copy.wait_group(STAGES - 2)
        gl.thread_barrier()
        _prefetch(step + STAGES - 1, work, place, up, down, HALF, ROWS, STAGES)
        # Not earlier: prefetches of the next kernel would queue before the copies that are still to start here.
        if PDL and step == steps - 1:
            cuda.gdc_launch_dependents()
        acc = gl.sum(down_tiles.index(step % STAGES).load(experts).to(gl.float32) * a[None, :, :], axis=2)
        sums.index(step - ups).store(acc)
    hopper.async_copy.wait_group(0)
    gl.thread_barrier()
    results = sums._reinterpret(gl.float32, [BLOCK_T, ROWS, BLOCK_S], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
    each = (results.load(flat) * (shares * scale)[None, None, :]).to(TYPE).to(gl.float32)
    out = gl.sum(each, axis=2).to(TYPE)
    if ADDS:
        out = (before.to(gl.float32) + out.to(gl.float32)).to(TYPE)
    gl.store(out_ptr + places, out, mask=mine)
