"""One block of 256 inputs in `weight_only_gemm.py`: its loads, its dequantisation and its matmul.

Codes become 16-bit weights in registers, one tile of a matrix instruction at a time.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOptionalSubscript=false, reportAssignmentType=false
from ..runtime.triton import tl, triton
from .code_conversion import eight_bits, lookups, nibbles, plain_plane, scaled_e2m1
from .weight_only_tiles import add_dot, of_outputs, of_plane, scales_of_groups, zeros


@triton.jit
def load_inputs(
    x_ptrs,  # [BLOCK_M, DEPTH]
    here,  # [BLOCK_M, 1]: which tokens exist
    left,  # inputs from this block on
    MASK_K: tl.constexpr,
):
    """Loads the inputs of one block, in tiles of DEPTH."""
    DEPTH: tl.constexpr = x_ptrs.shape[1]
    tiles = ()
    for number in tl.static_range(256 // DEPTH):
        if MASK_K:
            inside = here & (tl.arange(0, DEPTH)[None, :] < left - number * DEPTH)
            tiles += (tl.load(x_ptrs + number * DEPTH, mask=inside, other=0.0),)
        else:
            tiles += (tl.load(x_ptrs + number * DEPTH, mask=here, other=0.0),)
    return tiles


@triton.jit
def add_block(
    acc,  # what `add_dot` adds to
    x,  # tiles [BLOCK_M, DEPTH] of 256 inputs
    words,  # [BLOCK_N, 32] int32, or None: codes are loaded here
    block_ptrs,  # [BLOCK_N, 1], codes of this block
    left,  # inputs from this block on
    scales,  # [BLOCK_N, GROUPS]; int8 are float8
    points,  # zeros, as `scales`; [BLOCK_N] where all inputs are one group; or None
    table_ptr,
    table,
    FLOAT8: tl.constexpr,
    E2M1: tl.constexpr,
    GROUPS: tl.constexpr,
    MASK_K: tl.constexpr,
    FOLD: tl.constexpr,
    SWAP: tl.constexpr,
    PLAIN: tl.constexpr,
    BASE: tl.constexpr,
):
    """`acc` plus the matmul over 256 inputs."""
    FOUR: tl.constexpr = block_ptrs.dtype.element_ty == tl.int32
    DTYPE: tl.constexpr = x[0].dtype
    FP16: tl.constexpr = tl.float16 == DTYPE
    BLOCK_N: tl.constexpr = block_ptrs.shape[0]
    BLOCK_M: tl.constexpr = x[0].shape[0]
    DEPTH: tl.constexpr = x[0].shape[1]
    COUNT: tl.constexpr = GROUPS if GROUPS > 1 else 2
    HALVES: tl.constexpr = COUNT > 8
    PARTS: tl.constexpr = COUNT // 2 if HALVES else COUNT
    GROUP: tl.constexpr = 256 // PARTS
    OF_GROUP: tl.constexpr = GROUPS > 1 and not FOLD
    columns = tl.arange(0, DEPTH)[None, :]
    planes = None
    if E2M1:
        planes = scaled_e2m1(words, scales, DTYPE)
    elif words is not None:
        planes = nibbles(words, FP16) if table_ptr is None else lookups(words, table, FP16)
    if GROUPS > 1 and not E2M1:
        scales = scales_of_groups(scales, COUNT, DTYPE)
        if points is not None:
            points = scales_of_groups(points, COUNT, DTYPE)
    for group in tl.static_range(PARTS):
        partial = zeros(BLOCK_N, BLOCK_M, SWAP) if OF_GROUP else acc
        for dot in tl.static_range(GROUP // DEPTH):
            first = group * GROUP + dot * DEPTH
            if words is not None:
                weight = planes[(group * GROUP + dot * DEPTH) // 32]
            elif FOUR:
                weight = plain_plane(block_ptrs, table_ptr, (group * GROUP + dot * DEPTH) // 32, DTYPE)
            else:
                if MASK_K:
                    codes = tl.load(block_ptrs + first + columns, mask=columns < left - first, other=0)
                else:
                    codes = tl.load(block_ptrs + first + columns, eviction_policy="evict_first")
                weight = eight_bits(codes, FLOAT8, DTYPE, PLAIN)
            if points is not None or (FOUR and table_ptr is None):
                if points is None:
                    weight -= BASE + 8
                elif HALVES:
                    weight -= of_plane(points, group, True, None, DTYPE) + BASE
                elif GROUPS > 1:
                    weight -= (points[group] + BASE).to(DTYPE)[:, None]
                else:
                    weight -= points.to(DTYPE)[:, None]
            if FOLD and GROUPS > 1 and not E2M1:
                weight *= of_plane(scales, group, HALVES, None, DTYPE)
            partial = add_dot(weight, x[group * (GROUP // DEPTH) + dot], partial, SWAP)
        if OF_GROUP:
            acc += partial * of_outputs(scales[group], SWAP)
        else:
            acc = partial
    return acc
