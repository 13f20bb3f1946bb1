"""Shrink of adapters of experts: inputs of each row of a mixture times A of its token's adapter and its expert.

    sum of v[:, m] over its first dimension = x[row] @ a[page, expert].T * scale[page, expert]     of each page in turn

where m is the place of the row in the order of experts (`moe_align.py`). A pair of an adapter and an expert is an
expert of its own: in a tile of one expert each adapter of its rows is computed in turn, with the rows of others masked.
In decode hardly two rows of a tile have one adapter, in a prompt nearly all have.

Layouts: `x` `[tokens, inputs]` of the up GEMM, else `[rows, inputs]` in the order of experts, unit stride in the last
dimension; `factors`: `expert_factors.py`; `numbers` `[tokens]` int32, 0 for tokens without adapter; `v`
`[splits, rows, most_pages * RANK_UNITS]` float32, contiguous. What no page has is unspecified.

Sums are float32. Inputs are split where their number says (`shrink_splits`), and `expert_expand` adds the splits up in
order. A row has the same bits whichever others are in its tile; the height of tiles may change them.
It is called once before each GEMM of experts. Bytes floor: for each pair in use and each of its pages RANK_UNITS *
inputs * element size. Not measured on a GPU yet.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from torch import Tensor

from ..lora.lora_shrink import shrink_splits
from ..lora.rank_pages import RANK_UNITS
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._grouped_gemm_tiles import rows_of_tile
from .expert_factors import ExpertFactors

NO_ADAPTER = tl.constexpr(1 << 30)
"""Above every number."""
_STEP = 64
"""Inputs of a 16-bit type in one step of the loop."""
_WARPS, _STAGES = 4, 3


@triton.jit
def numbers_of_tile(spans_ptr, numbers_ptr, own, here, SLOTS: tl.constexpr):
    """[BLOCK_M]: the adapter of each row; `NO_ADAPTER` where it adds nothing."""
    numbers = tl.load(numbers_ptr + own // SLOTS, mask=here, other=0)
    pages = tl.load(spans_ptr + numbers * 2 + 1, mask=here, other=0)
    return tl.where(pages > 0, numbers, NO_ADAPTER)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["numbers_ptr"])
def expert_shrink_kernel(
    x_ptr,  # up: [tokens, inputs]; down: [rows, inputs], in the order of the rows
    a_ptr,  # [pages, experts, UNITS, inputs]
    scale_ptr,  # [pages, experts, UNITS] float32
    spans_ptr,  # [adapters + 1, 2] int32
    numbers_ptr,  # [tokens] int32
    order_ptr,  # [rows] int32
    tiles_ptr,  # [capacity, 3] int32
    num_tiles_ptr,  # [1] int32
    v_ptr,  # [SPLITS, rows, WIDTH] float32
    inputs,
    inputs_of_split,  # a multiple of BLOCK_K
    experts,
    stride_x_row,
    rows,
    SPLITS: tl.constexpr,
    SLOTS: tl.constexpr,  # rows of one token
    UP: tl.constexpr,  # whether rows of `x` are tokens
    UNITS: tl.constexpr,
    WIDTH: tl.constexpr,  # units of all pages of an adapter
    MASK_K: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    BLOCK_M: tl.constexpr,  # at least the rows of a tile
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes one split of the inputs of one tile."""
    tile = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    wait_for_previous(PDL)
    launch_dependents(PDL)
    if tile >= tl.load(num_tiles_ptr):
        return
    expert, members, here, own, x_rows = rows_of_tile(None, order_ptr, tiles_ptr, tile, SLOTS, UP, False, BLOCK_M)
    numbers = numbers_of_tile(spans_ptr, numbers_ptr, own, here, SLOTS)
    begin = split * inputs_of_split
    end = tl.minimum(begin + inputs_of_split, inputs)
    units = tl.arange(0, UNITS)
    columns = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + x_rows.to(tl.int64)[:, None] * stride_x_row + columns[None, :]
    v_ptrs = v_ptr + (split.to(tl.int64) * rows + members[:, None]) * WIDTH + units[None, :]
    number = tl.min(numbers, axis=0)
    while number < NO_ADAPTER:
        mine = numbers == number
        first = tl.load(spans_ptr + number * 2)
        for index in range(0, tl.load(spans_ptr + number * 2 + 1)):
            place = (first + index).to(tl.int64) * experts + expert
            a_ptrs = a_ptr + (place * UNITS + units)[:, None] * inputs + columns[None, :]
            acc = tl.zeros([BLOCK_M, UNITS], dtype=tl.float32)
            for start in range(begin, end, BLOCK_K):
                if MASK_K:
                    inside = (columns < inputs - start)[None, :]
                    x = tl.load(x_ptrs + start, mask=mine[:, None] & inside, other=0.0)
                    a = tl.load(a_ptrs + start, mask=inside, other=0.0)
                else:
                    x = tl.load(x_ptrs + start, mask=mine[:, None], other=0.0)
                    a = tl.load(a_ptrs + start)
                acc = tl.dot(x, a.T, acc, input_precision="ieee")
            scale = tl.load(scale_ptr + place * UNITS + units)
            tl.store(v_ptrs + index * UNITS, acc * scale[None, :], mask=mine[:, None])
        numbers = tl.where(mine, NO_ADAPTER, numbers)
        number = tl.min(numbers, axis=0)


_launch = Launcher(expert_shrink_kernel, writes=("v",), dependents="after the wait")


def expert_shrink_triton(
    x: Tensor,
    factors: ExpertFactors,
    numbers: Tensor,
    alignment: tuple[Tensor, Tensor, Tensor],
    slots: int,
    height: int,
    is_up: bool,
) -> Tensor:
    """Returns `v`, for tiles of `height` rows that `moe_align` made. `slots`: rows of a token."""
    order, tiles, num_tiles = alignment
    inputs, rows, width = x.shape[1], len(order), factors.most_pages * RANK_UNITS
    splits = shrink_splits(inputs)
    block_k = _STEP if x.element_size() == 2 else _STEP // 2
    steps = -(-inputs // block_k)
    v = x.new_empty(splits, rows, width, dtype=factors.scale.dtype)
    _launch(
        (len(tiles) * splits,),
        (x, factors.a, factors.scale, factors.spans, numbers, order, tiles, num_tiles, v),
        (inputs, -(-steps // splits) * block_k, factors.a.shape[1], x.stride(0)),
        (rows,),
        SPLITS=splits,
        SLOTS=slots,
        UP=is_up,
        UNITS=RANK_UNITS,
        WIDTH=width,
        MASK_K=inputs % block_k != 0,
        BLOCK_M=max(16, height),
        BLOCK_K=block_k,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    return v
