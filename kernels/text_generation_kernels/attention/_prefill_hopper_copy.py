"""Producer warp group of Hopper prefill attention: copies K and V through the slot table into shared memory.

K tiles and V tiles lie in rings of STAGES each. Every stage has two mbarriers: consumers wait on `full`, the producer
on `free`.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
from ..runtime.rings import advance
from ..runtime.triton import gl, gluon, hopper
from ._kv_conversion import E5M2, INT8, code_unit

_E5M2, _INT8 = gl.constexpr(E5M2), gl.constexpr(INT8)


@gluon.jit
def copy_values(
    slot_row_ptr, k_head_ptr, v_head_ptr, begin, end, tiles, barriers,
    stride_k_slot: gl.constexpr, stride_v_slot: gl.constexpr,
    HEAD_DIM: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copies keys and values of positions `begin` to `end` unchanged, zeros from `end` on.

    Slots are loaded one step ahead of their keys. Every thread arrives at `full` for its own copies.
    """
    k_tiles, v_tiles = tiles
    k_full, k_free, v_full, v_free = barriers
    VECTOR: gl.constexpr = 8
    ACROSS: gl.constexpr = HEAD_DIM // VECTOR
    layout: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0])
    rows = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, layout))
    elements = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, layout))
    slots = gl.load(slot_row_ptr + begin + rows, mask=begin + rows < end, other=0)
    stage = 0
    phase = 1
    for start in range(begin, end, BLOCK_N):
        keys = start + rows
        next_slots = gl.load(slot_row_ptr + keys + BLOCK_N, mask=keys + BLOCK_N < end, other=0)
        valid = (keys < end)[:, None]
        wide = slots.to(gl.int64)
        hopper.mbarrier.wait(k_free.index(stage), phase)
        pointers = k_head_ptr + (wide * stride_k_slot)[:, None] + elements[None, :]
        hopper.async_copy.async_copy_global_to_shared(k_tiles.index(stage), pointers, mask=valid)
        hopper.async_copy.mbarrier_arrive(k_full.index(stage), increment_count=False)
        hopper.mbarrier.wait(v_free.index(stage), phase)
        pointers = v_head_ptr + (wide * stride_v_slot)[:, None] + elements[None, :]
        hopper.async_copy.async_copy_global_to_shared(v_tiles.index(stage), pointers, mask=valid)
        hopper.async_copy.mbarrier_arrive(v_full.index(stage), increment_count=False)
        slots = next_slots
        stage, phase = advance(stage, phase, STAGES)
    hopper.async_copy.wait_group(0)


@gluon.jit
def copy_codes(
    slot_row_ptr, k_head_ptr, v_head_ptr, scales_head_ptr, begin, end, tiles, barriers,
    stride_k_slot: gl.constexpr, stride_v_slot: gl.constexpr, stride_scales_slot: gl.constexpr,
    FORMAT: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """`copy_values` from caches of 8-bit codes, which it dequantises to float16. Caches are int32 words of four codes,
    and strides count words. Codes are loaded one step ahead; one thread arrives at `full` for all.
    """
    k_tiles, v_tiles = tiles
    k_full, k_free, v_full, v_free = barriers
    ACROSS: gl.constexpr = HEAD_DIM // 16
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0])
    rows = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, layout))
    words = gl.arange(0, HEAD_DIM // 4, layout=gl.SliceLayout(0, layout))
    valid = begin + rows < end
    slots = gl.load(slot_row_ptr + begin + rows, mask=valid, other=0)
    k_words = _load_words(k_head_ptr, slots, stride_k_slot, words, valid)
    v_words = _load_words(v_head_ptr, slots, stride_v_slot, words, valid)
    k_scales, v_scales = _load_scales(scales_head_ptr, slots, stride_scales_slot, valid, FORMAT)
    stage = 0
    phase = 1
    for start in range(begin, end, BLOCK_N):
        keys = start + BLOCK_N + rows
        valid = keys < end
        slots = gl.load(slot_row_ptr + keys, mask=valid, other=0)
        hopper.mbarrier.wait(k_free.index(stage), phase)
        _store_words(k_tiles.index(stage), k_words, k_scales, FORMAT, HEAD_DIM, BLOCK_N)
        hopper.fence_async_shared()
        hopper.mbarrier.arrive(k_full.index(stage), count=1)
        k_words = _load_words(k_head_ptr, slots, stride_k_slot, words, valid)
        hopper.mbarrier.wait(v_free.index(stage), phase)
        _store_words(v_tiles.index(stage), v_words, v_scales, FORMAT, HEAD_DIM, BLOCK_N)
        hopper.fence_async_shared()
        hopper.mbarrier.arrive(v_full.index(stage), count=1)
        v_words = _load_words(v_head_ptr, slots, stride_v_slot, words, valid)
        k_scales, v_scales = _load_scales(scales_head_ptr, slots, stride_scales_slot, valid, FORMAT)
        stage, phase = advance(stage, phase, STAGES)


@gluon.jit
def _load_words(head_ptr, slots, stride_slot: gl.constexpr, words, valid):
    pointers = head_ptr + (slots.to(gl.int64) * stride_slot)[:, None] + words[None, :]
    return gl.load(pointers, mask=valid[:, None], other=0)


@gluon.jit
def _load_scales(scales_head_ptr, slots, stride_slot: gl.constexpr, valid, FORMAT: gl.constexpr):
    """float16 scales of keys and of values, for converted codes; 0 where not `valid`."""
    pairs = gl.load(scales_head_ptr + slots.to(gl.int64) * stride_slot, mask=valid, other=0)
    k_scales = (pairs << 16).to(gl.float32, bitcast=True)
    v_scales = (pairs & -0x10000).to(gl.float32, bitcast=True)
    return (k_scales * code_unit(FORMAT)).to(gl.float16), (v_scales * code_unit(FORMAT)).to(gl.float16)


@gluon.jit
def _store_words(tile, words, scales, FORMAT: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_N: gl.constexpr):
    """Stores the four codes of each word, converted as in `_kv_conversion.py`, times the scale of their row."""
    if FORMAT == _INT8:
        # 0x64 above a code makes 1024 + code; 2 ** -7 (0x2000) of it less 9 (0x4880) is (code - 128) / 128.
        convert: gl.constexpr = """{ .reg .b32 lo, hi, unit, nine;
            mov.b32 unit, 0x20002000;
            mov.b32 nine, 0xc880c880;
            prmt.b32 lo, $2, 0x64646464, 0x4140;
            prmt.b32 hi, $2, 0x64646464, 0x4342;
            fma.rn.f16x2 lo, lo, unit, nine;
            fma.rn.f16x2 hi, hi, unit, nine;
            mul.rn.f16x2 $0, lo, $3;
            mul.rn.f16x2 $1, hi, $3; }"""
    elif FORMAT == _E5M2:
        convert: gl.constexpr = """{ .reg .b32 lo, hi;
            prmt.b32 lo, $2, 0, 0x1404;
            prmt.b32 hi, $2, 0, 0x3424;
            mul.rn.f16x2 $0, lo, $3;
            mul.rn.f16x2 $1, hi, $3; }"""
    else:
        convert: gl.constexpr = """{ .reg .b32 lo, hi;
            .reg .b16 a, b;
            mov.b32 {a, b}, $2;
            cvt.rn.f16x2.e4m3x2 lo, a;
            cvt.rn.f16x2.e4m3x2 hi, b;
            mul.rn.f16x2 $0, lo, $3;
            mul.rn.f16x2 $1, hi, $3; }"""
    scale = scales.to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
    low, high = gl.inline_asm_elementwise(
        convert, "=&r,=&r,r,r", [words, (scale | (scale << 16))[:, None]],
        dtype=(gl.int32, gl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    # Two float16 in each of these: the same bytes, in the same order.
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, HEAD_DIM // 2], gl.int32)
    pairs = tile._reinterpret(gl.int32, [BLOCK_N, HEAD_DIM // 2], layout)
    pairs.store(gl.join(low, high).reshape([BLOCK_N, HEAD_DIM // 2]))
