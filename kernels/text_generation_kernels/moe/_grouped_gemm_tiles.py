"""Tiles of grouped GEMMs: the rows and outputs of a thread block, and the epilogue that stores them.

`grouped_gemm.py`, `weight_only_grouped_gemm.py` and `fp8_grouped_gemm.py` share them. Up: each row is a token of `x`;
outputs of the weight are pairs, gate rows and then up rows, and what is stored is their gated activation, or, without a
gate, the activation of each. Down: each row is one that the up GEMM stored; what is stored is multiplied by the
expert's weight and goes to the row's own place, so that the reduction has the order of the places.

A grouped GEMM in which every row has a tile of its own ("direct") needs no sorting: it is for few tokens, whose experts
differ. Where other ranks have some of the experts, ids outside 0 .. HELD - 1 are theirs: no tile has their rows.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from ..norm.activations import activation, gated_activation, is_gated, plain_name
from ..runtime.triton import tl, triton

GROUP = 8
"""Tiles that compute the same columns one after another, for the L2 cache."""


@triton.jit
def is_here(ids, HELD: tl.constexpr):
    """Whether this rank has the expert of an id, or of each of several."""
    return (ids >= 0) & (ids < HELD)


@triton.jit
def tile_of_program(
    ids_ptr,  # [rows] int32
    num_tiles_ptr,  # [1] int32, None where DIRECT
    blocks,
    HELD: tl.constexpr,  # experts of this rank, where other ranks have some; else None
    DIRECT: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Tile and block of outputs of this thread block; one whose block is not below `blocks` has nothing to do."""
    program = tl.program_id(0)
    tile = program // blocks
    block = program % blocks
    if DIRECT:
        if HELD is not None:
            block = tl.where(is_here(tl.load(ids_ptr + tile), HELD), block, blocks)
    else:
        num_tiles = tl.load(num_tiles_ptr)
        group_first = program // (GROUP * blocks) * GROUP
        group_size = tl.minimum(num_tiles - group_first, GROUP)
        whole_size = tl.maximum(group_size, 1)
        tile = group_first + program % (GROUP * blocks) % whole_size
        # Where the last group is not full, thread blocks are left over.
        block = tl.where(group_size > 0, program % (GROUP * blocks) // whole_size, blocks)
    return tile, block


@triton.jit
def rows_of_tile(
    ids_ptr,  # [rows] int32
    order_ptr,  # [rows] int32, None where DIRECT
    tiles_ptr,  # [capacity, 3] int32, None where DIRECT
    tile,
    SLOTS: tl.constexpr,  # rows of one token
    UP: tl.constexpr,  # whether rows of `x` are tokens
    DIRECT: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """The expert of a tile and, for each of BLOCK_M rows: its number in the order of experts, whether it is there, its
    own place, and the row of `x` that it reads.
    """
    if DIRECT:
        expert = tl.load(ids_ptr + tile)
        first = tile
        end = tile + 1
    else:
        tile_ptr = tiles_ptr + tile * 3
        expert = tl.load(tile_ptr)
        first = tl.load(tile_ptr + 1)
        end = tl.load(tile_ptr + 2)
    members = first + tl.arange(0, BLOCK_M)
    here = members < end
    own = members if DIRECT else tl.load(order_ptr + members, mask=here, other=0)
    return expert, members, here, own, own // SLOTS if UP else members


@triton.constexpr_function
def has_pairs(name):
    """Whether outputs of the weight are gate and up rows. None: there is no activation."""
    return name is not None and is_gated(name)


@triton.jit
def store_rows(
    acc,  # [BLOCK_M, BLOCK_N] float32
    expert,
    block,
    members,  # [BLOCK_M] places in the order of the rows
    own,  # [BLOCK_M] rows
    here,  # [BLOCK_M]
    weight_rows,
    bias_ptr,
    row_weights_ptr,
    delta_ptr,  # [rows, outputs], in the order of the rows, or None
    out_ptr,
    outputs,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Adds what adapters add, and the bias, then stores the activation, or the row times its expert's weight."""
    if delta_ptr is not None:
        delta_ptrs = delta_ptr + members.to(tl.int64)[:, None] * outputs + weight_rows[None, :]
        acc += tl.load(delta_ptrs, mask=here[:, None], other=0.0).to(tl.float32)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + expert.to(tl.int64) * outputs + weight_rows).to(tl.float32)[None, :]
    if ACTIVATION is None:
        acc *= tl.load(row_weights_ptr + own, mask=here, other=0.0)[:, None]
        columns = block * BLOCK_N + tl.arange(0, BLOCK_N)
        out_ptrs = out_ptr + own.to(tl.int64)[:, None] * outputs + columns[None, :]
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=here[:, None] & (columns < outputs)[None, :])
    else:
        PAIRS: tl.constexpr = is_gated(ACTIVATION)
        if PAIRS:
            gate, up = tl.split(tl.reshape(acc, [BLOCK_M, BLOCK_N // 2, 2]))
            activated = gated_activation(gate, up, ACTIVATION)
        else:
            activated = activation(acc, plain_name(ACTIVATION))
        WIDTH: tl.constexpr = BLOCK_N // 2 if PAIRS else BLOCK_N
        size = outputs // 2 if PAIRS else outputs
        columns = block * WIDTH + tl.arange(0, WIDTH)
        out_ptrs = out_ptr + members.to(tl.int64)[:, None] * size + columns[None, :]
        tl.store(out_ptrs, activated.to(out_ptr.dtype.element_ty), mask=here[:, None] & (columns < size)[None, :])
