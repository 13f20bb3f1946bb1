"""Producer warp group of Hopper prefill attention over 4-bit codes: see `_prefill_hopper_copy.py`."""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false
from ..runtime.rings import advance
from ..runtime.triton import gl, gluon, hopper
from ._kv_groups import group_count


@gluon.jit
def copy_int4(
    slot_row_ptr, k_head_ptr, v_head_ptr, pairs_head_ptr, begin, end, tiles, barriers,
    stride_k_slot: gl.constexpr, stride_v_slot: gl.constexpr, stride_pairs_slot: gl.constexpr,
    HEAD_DIM: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """`copy_codes` from caches of int32 words of eight codes, which it dequantises to float16. Pairs are scale and zero
    of each group of keys, then of values.
    """
    k_tiles, v_tiles = tiles
    k_full, k_free, v_full, v_free = barriers
    GROUPS: gl.constexpr = group_count(HEAD_DIM)
    ACROSS: gl.constexpr = HEAD_DIM // 32
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0])
    rows = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, layout))
    words = gl.arange(0, HEAD_DIM // 8, layout=gl.SliceLayout(0, layout))
    valid = begin + rows < end
    slots = gl.load(slot_row_ptr + begin + rows, mask=valid, other=0).to(gl.int64)
    k_words = _load_words(k_head_ptr, slots, stride_k_slot, words, valid)
    v_words = _load_words(v_head_ptr, slots, stride_v_slot, words, valid)
    k_pairs = _load_pairs(pairs_head_ptr, slots, stride_pairs_slot, valid, GROUPS)
    v_pairs = _load_pairs(pairs_head_ptr + GROUPS, slots, stride_pairs_slot, valid, GROUPS)
    stage = 0
    phase = 1
    for start in range(begin, end, BLOCK_N):
        keys = start + BLOCK_N + rows
        valid = keys < end
        slots = gl.load(slot_row_ptr + keys, mask=valid, other=0).to(gl.int64)
        hopper.mbarrier.wait(k_free.index(stage), phase)
        _store_values(k_tiles.index(stage), k_words, k_pairs, HEAD_DIM, BLOCK_N)
        hopper.fence_async_shared()
        hopper.mbarrier.arrive(k_full.index(stage), count=1)
        k_words = _load_words(k_head_ptr, slots, stride_k_slot, words, valid)
        k_pairs = _load_pairs(pairs_head_ptr, slots, stride_pairs_slot, valid, GROUPS)
        hopper.mbarrier.wait(v_free.index(stage), phase)
        _store_values(v_tiles.index(stage), v_words, v_pairs, HEAD_DIM, BLOCK_N)
        hopper.fence_async_shared()
        hopper.mbarrier.arrive(v_full.index(stage), count=1)
        v_words = _load_words(v_head_ptr, slots, stride_v_slot, words, valid)
        v_pairs = _load_pairs(pairs_head_ptr + GROUPS, slots, stride_pairs_slot, valid, GROUPS)
        stage, phase = advance(stage, phase, STAGES)


@gluon.jit
def _load_words(head_ptr, slots, stride_slot: gl.constexpr, words, valid):
    pointers = head_ptr + (slots * stride_slot)[:, None] + words[None, :]
    return gl.load(pointers, mask=valid[:, None], other=0)


@gluon.jit
def _load_pairs(pairs_ptr, slots, stride_slot: gl.constexpr, valid, GROUPS: gl.constexpr):
    """Scale and zero of each group, 0 where not `valid`."""
    pairs = ()
    for group in gl.static_range(GROUPS):
        pairs += (gl.load(pairs_ptr + slots * stride_slot + group, mask=valid, other=0),)
    return pairs


@gluon.jit
def _twice(numbers):
    """int32 with the float16 of each float32 in both halves."""
    bits = numbers.to(gl.float16).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
    return bits | (bits << 16)


@gluon.jit
def _of_byte(words, scales, zeros, SELECTED: gl.constexpr):
    """float16 values of both codes in one byte of each word, converted as in `_kv_groups.py`. Words of two neighbours
    make pairs; SELECTED picks the byte of both.
    """
    convert: gl.constexpr = (
        "{ .reg .b32 both, t, ones; mov.b32 ones, 0x64006400; prmt.b32 both, $2, $3, "
        + SELECTED
        + """;
        .reg .b32 mask, less, part;
        mov.b32 mask, 0x000f000f;
        lop3.b32 t, both, mask, ones, 0xea;
        mov.b32 less, 0x64086408;
        sub.rn.f16x2 t, t, less;
        fma.rn.f16x2 $0, t, $4, $6;
        mov.b32 mask, 0x00f000f0;
        lop3.b32 t, both, mask, ones, 0xea;
        mov.b32 part, 0x2c002c00;
        mov.b32 less, 0xd480d480;
        fma.rn.f16x2 t, t, part, less;
        fma.rn.f16x2 $1, t, $4, $6; }"""
    )
    return gl.inline_asm_elementwise(
        convert, "=&r,=&r,r,r,r,r,r,r", [words, scales, zeros], dtype=(gl.float16, gl.float16), is_pure=True, pack=2
    )


@gluon.jit
def _store_values(tile, words, pairs, HEAD_DIM: gl.constexpr, BLOCK_N: gl.constexpr):
    """Stores scale * code + zero of the eight codes of each word: place j of all words after place j - 1."""
    GROUPS: gl.constexpr = group_count(HEAD_DIM)
    scales, zeros = (), ()
    for group in gl.static_range(GROUPS):
        scales += (_twice((pairs[group] << 16).to(gl.float32, bitcast=True))[:, None],)
        zeros += (_twice((pairs[group] & -0x10000).to(gl.float32, bitcast=True))[:, None],)
    p0, p1 = _of_byte(words, scales[0], zeros[0], "0x4400")
    p2, p3 = _of_byte(words, scales[GROUPS // 4], zeros[GROUPS // 4], "0x5511")
    p4, p5 = _of_byte(words, scales[GROUPS // 2], zeros[GROUPS // 2], "0x6622")
    p6, p7 = _of_byte(words, scales[GROUPS - 1], zeros[GROUPS - 1], "0x7733")
    low = gl.join(gl.join(p0, p1), gl.join(p2, p3))
    high = gl.join(gl.join(p4, p5), gl.join(p6, p7))
    tile.store(gl.join(low, high).permute((0, 4, 3, 2, 1)).reshape([BLOCK_N, HEAD_DIM]))
