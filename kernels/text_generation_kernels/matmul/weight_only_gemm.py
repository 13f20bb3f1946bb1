"""Weight-only GEMM in Triton: 16-bit tokens by group-quantised weights of 4 or 8 bits.

The formula and layouts are those of `weight_only_linear`, which calls it. Codes become 16-bit weights in registers
(`_weight_only_block.py`, `code_conversion.py`), for matrix instructions. A group's scale multiplies its sums, or its
weights (`FOLD`) where tokens are many and where groups have 16 inputs. Zeros are subtracted from weights. Products of
e2m1 and float8 scales (NVFP4) are exact; sums are multiplied by the float32 of the output.

As in `w8a8_gemm.py` the inputs may be split. With `AHEAD` the first codes are loaded before `griddepcontrol.wait`, and
dependents launch as soon as the kernel has waited itself. With `LATER` codes of a later block are prefetched into the
L2 cache, beside matrix instructions of warp groups.

A kernel that starts while the previous one still runs is not spread evenly: some SMs get as many thread blocks as fit,
others too few. `PROGRAMS` limits the thread blocks on an SM to as many as each is to have.

Bytes floor: outputs * inputs * bits / 8, and the scales. On an H200 the GEMMs, norms and activations of a layer of an
8B with 16 tokens take 63.6 us. Lab: docs/lab/2026-11-w4a16-small-batches.md.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOptionalSubscript=false
from collections.abc import Mapping

import torch
from torch import Tensor

from ..runtime.launch import Launcher, arrivals, is_last, launch_dependents, wait_for_previous
from ..runtime.prefetch import prefetch_l2
from ..runtime.triton import tl, triton
from ._weight_only_block import add_block, load_inputs
from .code_conversion import load_table, scaled_e2m1_is_less
from .group_quantisation import BLOCK, PLANES, PackedMatrix
from .weight_only_tiles import of_outputs, zeros


@triton.jit(do_not_specialize=["tokens", "splits"])
def weight_only_gemm_kernel(
    x_ptr,  # [tokens, inputs]
    packed_ptr,  # int32 [outputs, blocks * 32], or uint8 [outputs, inputs]
    scales_ptr,  # [blocks, outputs, GROUPS], or [1, outputs] where GROUPS is 1; int8 are float8
    zeros_ptr,  # as scales_ptr, or None
    table_ptr,  # [16] float32 or None
    bias_ptr,  # [outputs] or None
    factors_ptr,  # [outputs] float32, with scales of float8, or None
    out_ptr,  # [tokens, outputs]
    partial_ptr,  # [splits, tiles, BLOCK_N * BLOCK_M] float32, used where splits > 1
    arrived_ptr,  # [tiles] int32, zero before and after
    inputs,
    outputs,
    stride_x_token,
    stride_packed_output,
    stride_out_token,
    tokens,
    splits,
    FLOAT8: tl.constexpr,  # uint8 are the bytes of float8
    GROUPS: tl.constexpr,  # in 256 inputs; 1: all inputs are one group
    MASK_K: tl.constexpr,  # whether inputs are no whole blocks of 256
    FOLD: tl.constexpr,  # weights are scaled and rounded to 16 bits, not sums of a group
    SWAP: tl.constexpr,  # tokens are the left operand
    PLAIN: tl.constexpr,  # no inline PTX
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,  # outputs of a thread block, at most BLOCK_N: fewer where SMs then have as many each
    AHEAD: tl.constexpr,  # blocks of 4-bit codes that are loaded before the wait
    LATER: tl.constexpr,  # 0, or how many blocks ahead 4-bit codes are prefetched into the L2 cache
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs of BLOCK_M tokens, over one of `splits` splits of the inputs.

    Thread blocks that share weight rows are neighbours, so that the weight is read once. The last thread block of a
    tile reduces its partials in their order.
    """
    FOUR: tl.constexpr = packed_ptr.dtype.element_ty == tl.int32
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    FP16: tl.constexpr = tl.float16 == DTYPE
    # Codes are converted without the table, and scaled at once.
    E2M1: tl.constexpr = FOUR and factors_ptr is not None and not PLAIN
    BLOCK_K: tl.constexpr = 256
    COUNT: tl.constexpr = GROUPS if GROUPS > 1 else 2
    DEPTH: tl.constexpr = 32 if FOUR or COUNT > 8 else BLOCK_K // COUNT
    # What a code in registers is above its value where zeros are not given.
    BASE: tl.constexpr = (0 if table_ptr is not None else 1024 if FP16 else 128) if FOUR else -128
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    split = tl.program_id(2)
    blocks = tl.cdiv(inputs, BLOCK_K)
    blocks_of_split = tl.cdiv(blocks, splits)
    begin = split * blocks_of_split
    end = tl.minimum(begin + blocks_of_split, blocks)
    rows = tl.program_id(1) * ROWS + tl.arange(0, BLOCK_N)
    # Rows past the end read the last one, and are not stored.
    row_end = tl.minimum(tl.program_id(1) * ROWS + ROWS, outputs)
    weight_rows = tl.minimum(rows, row_end - 1)
    members = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    here = (members < tokens)[:, None]
    line_ptrs = packed_ptr + weight_rows.to(tl.int64) * stride_packed_output
    row_ptrs = line_ptrs[:, None]
    step = BLOCK_K // 8 if FOUR else BLOCK_K
    x_rows = x_ptr + members.to(tl.int64)[:, None] * stride_x_token + tl.arange(0, DEPTH)[None, :]
    word_columns = tl.arange(0, 32)[None, :]
    places = weight_rows[:, None] * COUNT + tl.arange(0, COUNT)[None, :]
    # Thread blocks begin at different blocks, or all would read the same inputs at the same time from the L2 cache.
    block = tl.minimum(begin + tl.program_id(1) % tl.maximum(end - begin, 1), blocks - 1)
    table = None
    if table_ptr is not None and not (E2M1 or PLAIN):
        table = load_table(table_ptr, FP16)
    whole_points = None
    if GROUPS == 1 and zeros_ptr is not None:
        whole_points = tl.load(zeros_ptr + weight_rows).to(tl.float32) + BASE
    first_blocks = ()
    first_words = ()
    first_scales = ()
    first_points = ()
    for ahead in tl.static_range(AHEAD + 1):
        # Scales of the next block too, because Triton does not pipeline their loads.
        first_blocks += (block,)
        if not PLAIN and ahead < AHEAD:
            word_ptrs = row_ptrs + block * step + word_columns
            first_words += (tl.load(word_ptrs, eviction_policy="evict_first"),)
        if GROUPS > 1:
            first_scales += (tl.load(scales_ptr + places + block * outputs * COUNT),)
            if zeros_ptr is not None:
                first_points += (tl.load(zeros_ptr + places + block * outputs * COUNT),)
        if ahead < AHEAD:
            block = tl.minimum(tl.where(block + 1 == end, begin, block + 1), blocks - 1)

    wait_for_previous(PDL)
    if AHEAD:
        # The next GEMM can load its first codes while this one computes.
        launch_dependents(PDL)
    first_inputs = ()
    for ahead in tl.static_range(AHEAD):
        at = first_blocks[ahead] * BLOCK_K
        first_inputs += (load_inputs(x_rows + at, here & (begin + ahead < end), inputs - at, MASK_K),)
    acc = zeros(BLOCK_N, BLOCK_M, SWAP)
    if GROUPS > 1:
        next_scales = first_scales[AHEAD]
        if zeros_ptr is not None:
            next_points = first_points[AHEAD]
    for number in range(begin + AHEAD, end):
        if LATER and not PLAIN:  # noqa: SIM102 - the compiler knows this, the device the next
            if number + LATER < end:
                later = tl.where(block + LATER >= end, block + LATER - end + begin, block + LATER)
                prefetch_l2(line_ptrs + later * step)
        block_ptrs = row_ptrs + block * step
        left = inputs - block * BLOCK_K
        x = load_inputs(x_rows + block * BLOCK_K, here, left, MASK_K)
        block = tl.where(block + 1 == end, begin, block + 1)
        words = None
        scales = None
        points = whole_points
        if FOUR and not PLAIN:
            if ROWS == BLOCK_N:
                words = tl.load(block_ptrs + word_columns, eviction_policy="evict_first")
            else:
                row_here = (rows < row_end)[:, None]
                words = tl.load(block_ptrs + word_columns, mask=row_here, other=0, eviction_policy="evict_first")
        if GROUPS > 1:
            scales = next_scales
            next_scales = tl.load(scales_ptr + places + block * outputs * COUNT)
            if zeros_ptr is not None:
                points = next_points
                next_points = tl.load(zeros_ptr + places + block * outputs * COUNT)
        acc = add_block(
            acc, x, words, block_ptrs, left, scales, points, table_ptr, table,
            FLOAT8, E2M1, GROUPS, MASK_K, FOLD, SWAP, PLAIN, BASE,
        )  # fmt: skip
    for ahead in tl.static_range(AHEAD):
        acc = add_block(
            acc, first_inputs[ahead], None if PLAIN else first_words[ahead],
            row_ptrs + first_blocks[ahead] * step, inputs - first_blocks[ahead] * BLOCK_K,
            first_scales[ahead] if GROUPS > 1 else None,
            whole_points if GROUPS == 1 or zeros_ptr is None else first_points[ahead], table_ptr, table,
            FLOAT8, E2M1, GROUPS, MASK_K, FOLD, SWAP, PLAIN, BASE,
        )  # fmt: skip
    # In either place all kernels before this one are finished, on which the next kernel relies.
    if AHEAD == 0:
        launch_dependents(PDL)

    if GROUPS == 1:
        acc *= of_outputs(tl.load(scales_ptr + weight_rows).to(tl.float32), SWAP)
    if factors_ptr is not None:
        factors = tl.load(factors_ptr + weight_rows)
        if E2M1:
            factors *= scaled_e2m1_is_less(DTYPE)
        acc *= of_outputs(factors, SWAP)
    output_places = of_outputs(tl.arange(0, BLOCK_N), SWAP)
    token_places = tl.arange(0, BLOCK_M)
    token_places = token_places[:, None] if SWAP else token_places[None, :]
    if splits > 1:
        # In the order in which a thread holds them.
        order = token_places * BLOCK_N + output_places if SWAP else output_places * BLOCK_M + token_places
        tile_ptr = partial_ptr + tile.to(tl.int64) * BLOCK_N * BLOCK_M + order
        stride_split = (tl.num_programs(0) * tl.num_programs(1)).to(tl.int64) * BLOCK_N * BLOCK_M
        tl.store(tile_ptr + split * stride_split, acc)
        if not is_last(arrived_ptr + tile, splits):
            return
        acc = zeros(BLOCK_N, BLOCK_M, SWAP)
        # Four partials at once, because each load waits for memory.
        for first_split in range(0, splits, 4):
            for index in tl.static_range(4):
                partial_ptrs = tile_ptr + (first_split + index) * stride_split
                acc += tl.load(partial_ptrs, mask=first_split + index < splits, other=0.0, cache_modifier=".cg")
    if bias_ptr is not None:
        acc += of_outputs(tl.load(bias_ptr + weight_rows).to(tl.float32), SWAP)
    token_places += tl.program_id(0) * BLOCK_M
    out_ptrs = out_ptr + token_places.to(tl.int64) * stride_out_token + of_outputs(rows, SWAP)
    tl.store(out_ptrs, acc.to(DTYPE), mask=(token_places < tokens) & of_outputs(rows < row_end, SWAP))


_launch = Launcher(
    weight_only_gemm_kernel,
    writes=("out", "partial", "arrived"),
    reads_early=("packed", "scales", "zeros"),
    dependents="after the wait",
)


def weight_only_gemm(
    x: Tensor,
    weight: PackedMatrix,
    bias: Tensor | None,
    out: Tensor,
    config: Mapping[str, int],
) -> None:
    """Launches the kernel: shapes as of `weight_only_linear`.

    It runs on one stream at a time, as thread blocks of all calls count their arrivals in one place, and once before a
    capture. `config`: constants of the kernel, options of its launch, and `splits`; without `ROWS` tiles are filled.
    `PROGRAMS` is the most thread blocks on an SM at a time.
    """
    tokens, inputs = x.shape
    packed, outputs = weight.packed, weight.outputs
    block_m, block_n, splits = config["BLOCK_M"], config["BLOCK_N"], config["splits"]
    swap, fold, num_warps = bool(config["SWAP"]), bool(config["FOLD"]), config["num_warps"]
    fold = fold or weight.groups > PLANES
    rows = config.get("ROWS", block_n)
    grid = (triton.cdiv(tokens, block_m), triton.cdiv(outputs, rows), splits)
    tiles = grid[0] * grid[1]
    float8, four = packed.is_floating_point(), weight.bits == 4
    codes = packed.view(torch.uint8) if float8 else packed
    arrived = arrivals(x.device, tiles if splits > 1 else 0)
    partial = x.new_empty(splits * tiles * block_n * block_m if splits > 1 else 0, dtype=torch.float32)
    _launch(
        grid,
        (x, codes, weight.stored_scales, weight.zeros, weight.table, bias, weight.factors, out, partial, arrived),
        (inputs, outputs, x.stride(0), packed.stride(0), out.stride(0)),
        (tokens, splits),
        max_blocks_per_sm=config.get("PROGRAMS", 0),
        FLOAT8=float8,
        GROUPS=weight.groups,
        MASK_K=inputs % BLOCK != 0,
        FOLD=fold,
        SWAP=swap,
        PLAIN=not x.is_cuda or torch.version.cuda is None,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        ROWS=rows,
        AHEAD=config["AHEAD"] if four else 0,
        LATER=config.get("LATER", 0) if four else 0,
        num_warps=num_warps,
        num_stages=config["num_stages"],
    )
