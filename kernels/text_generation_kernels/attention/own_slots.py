"""The slots that a rank has of each context, where ranks share a cache by slots (context parallelism).

    own[own_rows[t]] = s // ranks for s = slot_table[rows[t], c], c < kv_lens[t], where s % ranks == rank, in order
    own_lens[t]      = how many these are

So attention over `own` is attention over a table of slots like any other, and each rank reads 1 / ranks of the bytes.
What follows in a row of `own` is undefined.

Layouts: requests as in `Decodes`; `own_rows` `[T]` int64, equal for tokens of one request, which write the same numbers
where they overlap; `own` `[requests, positions]` int32, unit stride in the last dimension; `own_lens` `[T]` int32.

Called once a step. Bytes floor: sum(kv_lens) * (4 + 4 / ranks), where attention of DeepSeek-V3 reads 1,152 / ranks in
each of 61 layers.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, wait_for_previous
from ..runtime.register import register
from ..runtime.triton import tl, triton
from .requests import Decodes

_BLOCK = 2048
"""Positions at a time."""


@triton.jit(
    do_not_specialize=["rank", "stride_own"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_kv_len_ptr", "own_row_ptr", "own_len_ptr"],
)
def own_slots_kernel(
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [tokens]
    b_kv_len_ptr,  # [tokens]
    own_row_ptr,  # [tokens]
    own_ptr,  # [requests, positions]
    own_len_ptr,  # [tokens]
    stride_table_row,
    rank,
    stride_own,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block lists the slots of one token's context. It does not launch dependents early: attention reads
    lengths before it waits for previous kernels.
    """
    wait_for_previous(PDL)
    token = tl.program_id(0)
    kv_len = tl.load(b_kv_len_ptr + token)
    table_row_ptr = slot_table_ptr + tl.load(b_row_ptr + token) * stride_table_row
    own_slots_ptr = own_ptr + tl.load(own_row_ptr + token) * stride_own
    count = 0
    for start in range(0, kv_len, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        valid = positions < kv_len
        slots = tl.load(table_row_ptr + positions, mask=valid, other=0)
        is_own = valid & (slots % RANKS == rank)
        places = count + tl.cumsum(is_own.to(tl.int32), axis=0) - 1
        tl.store(own_slots_ptr + places, slots // RANKS, mask=is_own)
        count += tl.sum(is_own.to(tl.int32), axis=0)
    tl.store(own_len_ptr + token, count)


_launch = Launcher(own_slots_kernel, writes=("own", "own_len"), dependents="at the end")


def own_slots_triton(batch: Decodes, own_rows: Tensor, rank: int, ranks: int, own: Tensor, own_lens: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    batch.check("own_slots")
    if not own.stride(1) == batch.slot_table.stride(1) == own_rows.stride(0) == own_lens.stride(0) == 1:
        raise ValueError("own_slots: the last dimension of every tensor must have stride 1")
    if len(batch.rows) == 0:
        return
    _launch(
        (len(batch.rows),),
        (batch.slot_table, batch.rows, batch.kv_lens, own_rows, own, own_lens),
        (batch.slot_table.stride(0),),
        (rank, own.stride(0)),
        RANKS=ranks,
        BLOCK=_BLOCK,
        num_warps=8,
    )


def own_slots_torch(batch: Decodes, own_rows: Tensor, rank: int, ranks: int, own: Tensor, own_lens: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    positions = torch.arange(batch.max_kv_len, device=own.device)
    slots = batch.slot_table[batch.rows, : batch.max_kv_len]
    is_own = (positions < batch.kv_lens[:, None]) & (slots % ranks == rank)
    torch.sum(is_own, dim=1, dtype=torch.int32, out=own_lens)
    tokens, found = is_own.nonzero(as_tuple=True)
    places = is_own.cumsum(1)[tokens, found] - 1
    # Attention in torch reads the first entry of an empty context.
    own.zero_()
    own[own_rows[tokens], places] = slots[tokens, found] // ranks


own_slots = register(own_slots_torch, mutates=("own", "own_lens"), triton=own_slots_triton)
