"""Products of single tokens with matrices, where reading the matrices is all that counts.

A program has whole rows of a matrix in registers and multiplies them by the token's elements: matrix instructions, of
which 15 of 16 rows would be empty, need their operands in shared memory first, a stage at a time. A dense matrix is
asked for before the wait for what the kernels before compute (programmatic dependent launch): while those are busy with
the few bytes of a norm or of attention, memory is idle.

`vector_product` is one matrix, or of each row the one of its expert. `vector_sum` adds up what the experts of a token
give, in the order of a tree over its slots: a kernel less, and no results of single experts in memory.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
import torch
from torch import Tensor

from ._activations import gated_activation
from ._device import num_processors
from ._launch import Launcher, let_next_start, wait_for_previous
from ._moe_tiles import is_here, weight_rows_of
from ._triton import tl, triton

_BYTES = 16384
"""Of a matrix in the registers of one program."""
_LONGEST = 4096
"""Inputs of a row that a program takes at a time, at most."""
_WARPS = 4
_RESIDENT = 4
"""Programs that one processor has at a time."""


@triton.jit
def _read(weight_ptrs, inside, MASK: tl.constexpr):
    """Weights that nobody reads again before they leave the cache. What is not inside is 0 where MASK, which costs
    registers, and anything else.
    """
    if MASK:
        return tl.load(weight_ptrs, mask=inside, other=0.0, eviction_policy="evict_first")
    return tl.load(weight_ptrs, mask=inside, eviction_policy="evict_first")


@triton.jit
def _part_of(
    item,
    blocks,
    items,
    ids_ptr,
    inputs,
    HELD: tl.constexpr,
):
    """Row, block and expert of an item, and how many inputs it has: none past the last item, and where another rank
    has the expert.
    """
    row = item // blocks
    expert = 0
    if ids_ptr is not None:
        expert = tl.load(ids_ptr + row, mask=item < items, other=0)
        if HELD is not None:
            inputs = tl.where(is_here(expert, HELD), inputs, 0)
            expert = tl.where(is_here(expert, HELD), expert, 0)
    return row, item % blocks, expert, tl.where(item < items, inputs, 0)


@triton.jit
def _rows_of(
    expert,
    block,
    weight_ptr,
    outputs,
    stride_weight_expert,
    stride_weight_output,
    PAIRS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Pointers [BLOCK_N, BLOCK_K] to the first inputs of a block's rows."""
    rows = weight_rows_of(block, outputs, BLOCK_N, PAIRS)
    matrix_ptr = weight_ptr + tl.cast(expert, tl.int64) * stride_weight_expert
    return matrix_ptr + rows.to(tl.int64)[:, None] * stride_weight_output + tl.arange(0, BLOCK_K)[None, :]


@triton.jit(do_not_specialize=["items"])
def vector_product_kernel(
    x_ptr,  # [rows / SLOTS, inputs]
    weight_ptr,  # [outputs, inputs], or [experts, outputs, inputs]
    bias_ptr,  # [outputs], or [experts, outputs], or None
    ids_ptr,  # [rows] int32 or None
    out_ptr,  # [rows, outputs or, with ACTIVATION, outputs / 2]
    inputs,
    outputs,
    stride_x_row,
    stride_weight_expert,
    stride_weight_output,
    stride_out_row,
    items,  # blocks of all rows
    SLOTS: tl.constexpr,  # rows of one token
    HELD: tl.constexpr,  # experts of this rank, where other ranks have some; else None
    ACTIVATION: tl.constexpr,  # key of GATED, or None
    ROUNDED: tl.constexpr,  # whether gate and up are rounded before their activation
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WHOLE: tl.constexpr,  # whether BLOCK_K is at least `inputs`
    MASK: tl.constexpr,  # whether there are inputs or experts in a block that are not there
    PDL: tl.constexpr,
):
    """An item is BLOCK_N outputs of one row. A program computes every so many-th, and asks for the weights of the next
    one before it multiplies those of this one: programs that came one after the other would wait in step.
    """
    PAIRS: tl.constexpr = ACTIVATION is not None
    blocks = tl.cdiv(outputs, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    first = tl.program_id(0)
    if ids_ptr is not None:
        wait_for_previous(PDL)
    row, block, expert, size = _part_of(first, blocks, items, ids_ptr, inputs, HELD)
    weight_ptrs = _rows_of(
        expert, block, weight_ptr, outputs, stride_weight_expert, stride_weight_output, PAIRS, BLOCK_N, BLOCK_K
    )
    weight = _read(weight_ptrs, columns[None, :] < size, MASK)
    if ids_ptr is None:
        wait_for_previous(PDL)
    # Not earlier: the kernel after this one relies on all before it being finished, ids among them.
    let_next_start(PDL)
    for item in range(first, items, tl.num_programs(0)):
        row, block, expert, size = _part_of(item, blocks, items, ids_ptr, inputs, HELD)
        weight_ptrs = _rows_of(
            expert, block, weight_ptr, outputs, stride_weight_expert, stride_weight_output, PAIRS, BLOCK_N, BLOCK_K
        )
        _, next_block, next_expert, next_size = _part_of(
            item + tl.num_programs(0), blocks, items, ids_ptr, inputs, HELD
        )
        next_ptrs = _rows_of(
            next_expert, next_block, weight_ptr, outputs, stride_weight_expert, stride_weight_output, PAIRS, BLOCK_N,
            BLOCK_K,
        )  # fmt: skip
        following = _read(next_ptrs, columns[None, :] < next_size, MASK)
        x_ptrs = x_ptr + (row // SLOTS).to(tl.int64) * stride_x_row + columns
        x = tl.load(x_ptrs, mask=columns < size, other=0.0).to(tl.float32)
        acc = tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
        if not WHOLE:
            for begin in range(BLOCK_K, size, BLOCK_K):
                inside = columns < size - begin
                weight = _read(weight_ptrs + begin, inside[None, :], MASK)
                x = tl.load(x_ptrs + begin, mask=inside, other=0.0).to(tl.float32)
                acc += tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
        weight = following

        if bias_ptr is not None:
            acc += tl.load(bias_ptr + expert * outputs + weight_rows_of(block, outputs, BLOCK_N, PAIRS)).to(tl.float32)
        if PAIRS:
            if ROUNDED:
                acc = acc.to(out_ptr.dtype.element_ty).to(tl.float32)
            gate, up = tl.split(tl.reshape(acc, [BLOCK_N // 2, 2]))
            out = gated_activation(gate, up, ACTIVATION)
            places = block * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
            end = outputs // 2
        else:
            out = acc
            places = block * BLOCK_N + tl.arange(0, BLOCK_N)
            end = outputs
        out_row_ptr = out_ptr + row.to(tl.int64) * stride_out_row
        tl.store(out_row_ptr + places, out.to(out_ptr.dtype.element_ty), mask=places < end)


@triton.jit
def _slots_of(
    item,
    blocks,
    items,
    ids_ptr,
    outputs,
    SLOTS: tl.constexpr,
    HELD: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Rows of an item's token [BLOCK_S], which of them are there, outputs [BLOCK_N] of the item and rows of the
    matrices of all experts [BLOCK_S, BLOCK_N].
    """
    slots = tl.arange(0, BLOCK_S)
    rows = item // blocks * SLOTS + slots
    here = (slots < SLOTS) & (item < items)
    ids = tl.load(ids_ptr + rows, mask=here, other=0)
    if HELD is not None:
        here = here & is_here(ids, HELD)
    places = item % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    return rows, here, places, ids.to(tl.int64)[:, None] * outputs + tl.minimum(places, outputs - 1)[None, :]


@triton.jit(do_not_specialize=["items"])
def vector_sum_kernel(
    x_ptr,  # [tokens * SLOTS, inputs]
    weight_ptr,  # [experts, outputs, inputs]
    bias_ptr,  # [experts, outputs] or None
    ids_ptr,  # [tokens * SLOTS] int32
    shares_ptr,  # [tokens * SLOTS] float32
    out_ptr,  # [tokens, outputs]
    inputs,
    outputs,
    items,  # blocks of all tokens
    SLOTS: tl.constexpr,
    HELD: tl.constexpr,
    BLOCK_S: tl.constexpr,  # power of two, at least SLOTS
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WHOLE: tl.constexpr,  # whether BLOCK_K is at least `inputs`
    MASK: tl.constexpr,  # whether there are inputs or experts in a block that are not there
    PDL: tl.constexpr,
):
    """An item is BLOCK_N outputs of one token, of all its experts at once. Programs take items as those of
    `vector_product_kernel` do.

    Ids are read while the kernel before may still run, which has waited for them.
    """
    blocks = tl.cdiv(outputs, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    first = tl.program_id(0)
    rows, here, places, outs = _slots_of(first, blocks, items, ids_ptr, outputs, SLOTS, HELD, BLOCK_S, BLOCK_N)
    weight_ptrs = weight_ptr + outs[:, :, None] * inputs + columns[None, None, :]
    read = here[:, None] & (columns < inputs)[None, :]
    weight = _read(weight_ptrs, read[:, None, :], MASK)
    wait_for_previous(PDL)
    let_next_start(PDL)
    for item in range(first, items, tl.num_programs(0)):
        rows, here, places, outs = _slots_of(item, blocks, items, ids_ptr, outputs, SLOTS, HELD, BLOCK_S, BLOCK_N)
        _, next_here, _, next_outs = _slots_of(
            item + tl.num_programs(0), blocks, items, ids_ptr, outputs, SLOTS, HELD, BLOCK_S, BLOCK_N
        )
        read = next_here[:, None] & (columns < inputs)[None, :]
        following = _read(weight_ptr + next_outs[:, :, None] * inputs + columns[None, None, :], read[:, None, :], MASK)
        x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * inputs + columns[None, :]
        x = tl.load(x_ptrs, mask=here[:, None] & (columns < inputs)[None, :], other=0.0).to(tl.float32)
        acc = tl.sum(weight.to(tl.float32) * x[:, None, :], axis=2)
        if not WHOLE:
            weight_ptrs = weight_ptr + outs[:, :, None] * inputs + columns[None, None, :]
            for begin in range(BLOCK_K, inputs, BLOCK_K):
                read = here[:, None] & (columns < inputs - begin)[None, :]
                weight = _read(weight_ptrs + begin, read[:, None, :], MASK)
                x = tl.load(x_ptrs + begin, mask=read, other=0.0).to(tl.float32)
                acc += tl.sum(weight.to(tl.float32) * x[:, None, :], axis=2)
        weight = following

        if bias_ptr is not None:
            acc += tl.load(bias_ptr + outs, mask=here[:, None], other=0.0).to(tl.float32)
        acc *= tl.load(shares_ptr + rows, mask=here, other=0.0)[:, None]
        out_type = out_ptr.dtype.element_ty
        out = tl.sum(acc.to(out_type).to(tl.float32), axis=0).to(out_type)
        tl.store(out_ptr + (item // blocks).to(tl.int64) * outputs + places, out, mask=places < outputs)


_launch = Launcher(vector_product_kernel)
_launch_sum = Launcher(vector_sum_kernel)


def blocks_of(inputs: int, element_bytes: int, matrices: int, rows: int) -> dict[str, int]:
    """Launch settings. A program has `rows` rows at least of each of so many `matrices`."""
    elements = _BYTES // (element_bytes * matrices)
    longest = min(_LONGEST, elements // rows)
    block_k: int = min(longest, triton.next_power_of_2(inputs))  # pyright: ignore[reportAssignmentType]
    return {"BLOCK_N": elements // block_k, "BLOCK_K": block_k, "WHOLE": block_k >= inputs, "num_warps": _WARPS}


def programs_of(items: int, device: torch.device) -> int:
    """As many as run at once, or fewer that have as many items at most."""
    return triton.cdiv(items, triton.cdiv(items, _RESIDENT * num_processors(device)))


def vector_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None,
    ids: Tensor | None = None,
    held: int | None = None,
) -> None:
    """Launches the product of each row of `out`: of one matrix [outputs, inputs], or with `ids` [tokens, slots] of
    those of experts [experts, outputs, inputs]. `held`: how many of them this rank has, where others have some.
    """
    outputs, inputs = weight.shape[-2:]
    config = blocks_of(inputs, x.element_size(), 1, 2)
    items = triton.cdiv(outputs, config["BLOCK_N"]) * out.shape[0]
    _launch(
        (programs_of(items, x.device),),
        (x, weight, bias, ids, out),
        (inputs, outputs, x.stride(0), 0 if ids is None else weight.stride(0), weight.stride(-2), out.stride(0)),
        (items,),
        SLOTS=1 if ids is None else ids.shape[1],
        HELD=held,
        ACTIVATION=activation,
        ROUNDED=ids is None,
        MASK=held is not None or inputs % config["BLOCK_K"] != 0,
        **config,
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
    config = blocks_of(inputs, x.element_size(), block_s, 1)
    items = triton.cdiv(outputs, config["BLOCK_N"]) * tokens
    _launch_sum(
        (programs_of(items, x.device),),
        (x, weight, bias, ids, shares, out),
        (inputs, outputs),
        (items,),
        SLOTS=slots,
        HELD=held,
        BLOCK_S=block_s,
        MASK=held is not None or slots < block_s or inputs % config["BLOCK_K"] != 0,
        **config,
    )
