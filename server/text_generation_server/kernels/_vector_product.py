"""Products of single tokens with matrices, where reading the matrices is all that counts.

A program has whole rows of a matrix in registers and multiplies them by the token's elements: matrix instructions, of
which 15 of 16 rows would be empty, need their operands in shared memory first, a stage at a time. A dense matrix is
asked for before the wait for what the kernels before compute (programmatic dependent launch): while those are busy with
the few bytes of a norm or of attention, memory is idle.

Programs that each take every so many-th block and ask for its weights before they multiply those of the block before
were slower: one token through Qwen3-30B-A3B took 3,005 us instead of 2,390 (benchmark/results/one-token-steps.json).

`vector_product` is one matrix, or of each row the one of its expert. `vector_sum` adds up what the experts of a token
give, in the order of a tree over its slots: a kernel less, and no results of single experts in memory.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from torch import Tensor

from ._activations import gated_activation
from ._exchange import Exchange, boxes_of, send_to_all
from ._launch import Launcher, let_next_start, wait_for_previous
from ._moe_tiles import is_here, weight_rows_of
from ._triton import tl, triton

_SMALL_MATRIX = 32 << 20
_SMALL_BYTES, _LARGE_BYTES = 16384, 32768
"""Of a matrix in the registers of one program: of one that is at most `_SMALL_MATRIX`, and of a larger one. On an H200
one token's pass through Llama-3.1-8B takes 3,984 us with the second number for all and 4,035 with the first.
"""
_FIRST_BYTES = 8192
"""Of an expert's first matrix where two rows fit, else `_SMALL_BYTES`: one token's pass through Qwen3-30B-A3B takes
2,329 us so and 2,390 with twice as much.
"""
_SUM_BYTES = 16384
"""Of all experts of a token together, of their second matrices."""
_LONGEST = 4096
"""Inputs of a row that a program takes at a time, at most."""
_WARPS = 4


@triton.jit
def _read(weight_ptrs, inside, MASK: tl.constexpr):
    """Weights that nobody reads again before they leave the cache; 0 outside. A mask costs registers and waits."""
    if MASK:
        return tl.load(weight_ptrs, mask=inside, other=0.0, eviction_policy="evict_first")
    return tl.load(weight_ptrs, eviction_policy="evict_first")


@triton.jit
def vector_product_kernel(
    x_ptr,  # [rows / SLOTS, inputs]
    weight_ptr,  # [outputs, inputs], or [experts, outputs, inputs]
    bias_ptr,  # [outputs], or [experts, outputs], or None
    ids_ptr,  # [rows] int32 or None
    out_ptr,  # [rows, outputs or, with ACTIVATION, outputs / 2], or None: the one row is sent to the ranks
    control_ptr,  # of their memory, or None
    inputs,
    outputs,
    stride_x_row,
    stride_weight_expert,
    stride_weight_output,
    stride_out_row,
    SLOTS: tl.constexpr,  # rows of one token
    HELD: tl.constexpr,  # experts of this rank, where other ranks have some; else None
    ACTIVATION: tl.constexpr,  # key of GATED, or None
    ROUNDED: tl.constexpr,  # whether gate and up are rounded before their activation
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WHOLE: tl.constexpr,  # whether BLOCK_K is at least `inputs`
    MASK: tl.constexpr,  # whether a program has inputs or experts that are not there
    PDL: tl.constexpr,
    RANK: tl.constexpr = 0,
    WORLD: tl.constexpr = 0,
    SET_BYTES: tl.constexpr = 0,
    BITS: tl.constexpr = None,
    NOTHING: tl.constexpr = 0,
):
    """One program computes BLOCK_N outputs of one row."""
    block = tl.program_id(0)
    row = tl.program_id(1)
    expert = 0
    if ids_ptr is not None:
        wait_for_previous(PDL)
        expert = tl.load(ids_ptr + row)
        if HELD is not None:
            # A row of another rank's expert reads nothing; what it leaves is not looked at.
            inputs = tl.where(is_here(expert, HELD), inputs, 0)
            expert = tl.where(is_here(expert, HELD), expert, 0)
        weight_ptr += expert.to(tl.int64) * stride_weight_expert
    weight_rows = weight_rows_of(block, outputs, BLOCK_N, ACTIVATION is not None)
    columns = tl.arange(0, BLOCK_K)
    weight_ptrs = weight_ptr + weight_rows.to(tl.int64)[:, None] * stride_weight_output + columns[None, :]
    weight = _read(weight_ptrs, (columns < inputs)[None, :], MASK)
    if ids_ptr is None:
        wait_for_previous(PDL)
    if control_ptr is not None:
        boxes = boxes_of(control_ptr, outputs, RANK, WORLD, SET_BYTES, BITS)
    # Not earlier: the kernel after this one relies on all before it being finished, ids among them.
    let_next_start(PDL)
    x_ptrs = x_ptr + (row // SLOTS).to(tl.int64) * stride_x_row + columns
    x = tl.load(x_ptrs, mask=columns < inputs, other=0.0).to(tl.float32)
    acc = tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
    if not WHOLE:
        for begin in range(BLOCK_K, inputs, BLOCK_K):
            inside = columns < inputs - begin
            weight = _read(weight_ptrs + begin, inside[None, :], MASK)
            x = tl.load(x_ptrs + begin, mask=inside, other=0.0).to(tl.float32)
            acc += tl.sum(weight.to(tl.float32) * x[None, :], axis=1)

    if bias_ptr is not None:
        acc += tl.load(bias_ptr + expert * outputs + weight_rows).to(tl.float32)
    if ACTIVATION is None:
        out = acc
        places = block * BLOCK_N + tl.arange(0, BLOCK_N)
        end = outputs
    else:
        if ROUNDED:
            acc = acc.to(x_ptr.dtype.element_ty).to(tl.float32)
        gate, up = tl.split(tl.reshape(acc, [BLOCK_N // 2, 2]))
        out = gated_activation(gate, up, ACTIVATION)
        places = block * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        end = outputs // 2
    out = out.to(x_ptr.dtype.element_ty)
    if control_ptr is None:
        tl.store(out_ptr + row.to(tl.int64) * stride_out_row + places, out, mask=places < end)
    else:
        send_to_all(boxes, out, places, places < end, WORLD, BITS, NOTHING)


@triton.jit
def vector_sum_kernel(
    x_ptr,  # [tokens * SLOTS, inputs]
    weight_ptr,  # [experts, outputs, inputs]
    bias_ptr,  # [experts, outputs] or None
    ids_ptr,  # [tokens * SLOTS] int32
    shares_ptr,  # [tokens * SLOTS] float32
    out_ptr,  # [tokens, outputs]
    inputs,
    outputs,
    SLOTS: tl.constexpr,
    HELD: tl.constexpr,
    BLOCK_S: tl.constexpr,  # power of two, at least SLOTS
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WHOLE: tl.constexpr,  # whether BLOCK_K is at least `inputs`
    MASK: tl.constexpr,  # whether a program has inputs or experts that are not there
    PDL: tl.constexpr,
):
    """One program computes BLOCK_N outputs of one token, of all its experts at once.

    Ids are read while the kernel before may still run, which has waited for them.
    """
    token = tl.program_id(1)
    slots = tl.arange(0, BLOCK_S)
    rows = token * SLOTS + slots
    here = slots < SLOTS
    ids = tl.load(ids_ptr + rows, mask=here, other=0, cache_modifier=".cg")
    if HELD is not None:
        here = here & is_here(ids, HELD)
    places = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    outs = ids.to(tl.int64)[:, None] * outputs + tl.minimum(places, outputs - 1)[None, :]
    weight_ptrs = weight_ptr + outs[:, :, None] * inputs + columns[None, None, :]
    read = here[:, None] & (columns < inputs)[None, :]
    weight = _read(weight_ptrs, read[:, None, :], MASK)
    wait_for_previous(PDL)
    let_next_start(PDL)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * inputs + columns[None, :]
    x = tl.load(x_ptrs, mask=read, other=0.0).to(tl.float32)
    acc = tl.sum(weight.to(tl.float32) * x[:, None, :], axis=2)
    if not WHOLE:
        for begin in range(BLOCK_K, inputs, BLOCK_K):
            read = here[:, None] & (columns < inputs - begin)[None, :]
            weight = _read(weight_ptrs + begin, read[:, None, :], MASK)
            x = tl.load(x_ptrs + begin, mask=read, other=0.0).to(tl.float32)
            acc += tl.sum(weight.to(tl.float32) * x[:, None, :], axis=2)

    if bias_ptr is not None:
        acc += tl.load(bias_ptr + outs, mask=here[:, None], other=0.0).to(tl.float32)
    acc *= tl.load(shares_ptr + rows, mask=here, other=0.0)[:, None]
    out_type = out_ptr.dtype.element_ty
    out = tl.sum(acc.to(out_type).to(tl.float32), axis=0).to(out_type)
    tl.store(out_ptr + token.to(tl.int64) * outputs + places, out, mask=places < outputs)


_launch = Launcher(vector_product_kernel)
_launch_sum = Launcher(vector_sum_kernel)


def blocks_of(inputs: int, elements: int, rows: int) -> dict[str, int]:
    """Launch settings for so many elements of a matrix, of so many rows at least."""
    longest = min(_LONGEST, elements // rows)
    block_k: int = min(longest, triton.next_power_of_2(inputs))  # pyright: ignore[reportAssignmentType]
    whole = block_k >= inputs
    return {"BLOCK_N": elements // block_k, "BLOCK_K": block_k, "WHOLE": whole, "num_warps": _WARPS, "num_stages": 1}


def product_blocks(weight: Tensor) -> dict[str, int]:
    """Launch settings of `vector_product`: a gate row and an up row at least."""
    inputs, element_bytes = weight.shape[-1], weight.element_size()
    if weight.dim() == 2:
        num_bytes = _SMALL_BYTES if weight.nbytes <= _SMALL_MATRIX else _LARGE_BYTES
    else:
        num_bytes = _FIRST_BYTES if 2 * inputs * element_bytes <= _FIRST_BYTES else _SMALL_BYTES
    return blocks_of(inputs, num_bytes // element_bytes, 2)


def sum_blocks(weight: Tensor, slots: int) -> dict[str, int]:
    """Launch settings of `vector_sum`; `slots` a power of two."""
    return blocks_of(weight.shape[-1], max(16, _SUM_BYTES // (weight.element_size() * slots)), 1)


def vector_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor | Exchange,
    activation: str | None,
    ids: Tensor | None = None,
    held: int | None = None,
) -> None:
    """Launches the product of each row of `out`: of one matrix [outputs, inputs], or with `ids` [tokens, slots] of
    those of experts [experts, outputs, inputs]. `held`: how many of them this rank has, where others have some.
    Into memory of the ranks, a single row: `receive_add_norm` is to follow.
    """
    outputs, inputs = weight.shape[-2:]
    config = product_blocks(weight)
    if isinstance(out, Exchange):
        rows, stride, target, sent = 1, 0, (None, out.control), {"RANK": out.rank, **out.constants(x)}
    else:
        rows, stride, target, sent = out.shape[0], out.stride(0), (out, None), {}
    _launch(
        (triton.cdiv(outputs, config["BLOCK_N"]), rows),
        (x, weight, bias, ids, *target),
        (inputs, outputs, x.stride(0), 0 if ids is None else weight.stride(0), weight.stride(-2), stride),
        SLOTS=1 if ids is None else ids.shape[1],
        HELD=held,
        ACTIVATION=activation,
        ROUNDED=ids is None,
        MASK=held is not None or inputs % config["BLOCK_K"] != 0,
        **config,
        **sent,
    )


def vector_sum(
    x: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, shares: Tensor, held: int | None, out: Tensor
) -> None:
    """Launches the second product of experts, whose results are weighted and added up. Behind `vector_product` with
    the same `ids` and `held`.
    """
    _, outputs, inputs = weight.shape
    tokens, slots = ids.shape
    block_s: int = triton.next_power_of_2(slots)  # pyright: ignore[reportAssignmentType]
    config = sum_blocks(weight, block_s)
    _launch_sum(
        (triton.cdiv(outputs, config["BLOCK_N"]), tokens),
        (x, weight, bias, ids, shares, out),
        (inputs, outputs),
        SLOTS=slots,
        HELD=held,
        BLOCK_S=block_s,
        MASK=held is not None or slots < block_s or inputs % config["BLOCK_K"] != 0,
        **config,
    )
