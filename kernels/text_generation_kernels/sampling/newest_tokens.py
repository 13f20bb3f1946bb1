"""Inputs of a decode step: newest token, position, slot and length of each row, gathered by one kernel.

    ids[i] = last_token[r],  kv_lens[i] = length[r],  positions[i] = max(length[r] - 1, 0)
    slots[i] = slot_table[r, positions[i]]                                      with r = rows[i]

Rows of length 0 pad batches.

Layouts: `rows` int64 `[N]`; `last_token`, `length` int64 by row; `slot_table` int32 `[rows, positions]`, unit stride in
the last dimension; `ids`, `positions`, `slots` int64 `[N]` and `kv_lens` int32 `[N]` are written.

Called once a step. Bytes floor: about 50 a token; the launch dominates, which is why this is one kernel.
"""

# pyright: basic, reportArgumentType=false
from torch import Tensor

from ..runtime.launch import Launcher, compiling_only, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton

_BLOCK = 64


@triton.jit(do_not_specialize=["batch"], do_not_specialize_on_alignment=["rows_ptr"])
def newest_tokens_kernel(
    rows_ptr,  # [batch]
    last_token_ptr,  # [rows]
    length_ptr,  # [rows]
    slot_table_ptr,  # [rows, positions]
    ids_ptr,  # [batch]
    positions_ptr,  # [batch]
    slots_ptr,  # [batch]
    kv_lens_ptr,  # [batch]
    stride_table_row,
    batch,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block gathers BLOCK rows. It does not launch dependents early, because attention kernels read
    positions, slots and lengths before they wait for previous kernels.
    """
    wait_for_previous(PDL)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = index < batch
    row = tl.load(rows_ptr + index, mask=valid, other=0)
    length = tl.load(length_ptr + row, mask=valid, other=0)
    token = tl.load(last_token_ptr + row, mask=valid, other=0)
    position = tl.maximum(length - 1, 0)
    slot = tl.load(slot_table_ptr + row * stride_table_row + position, mask=valid, other=0)
    tl.store(ids_ptr + index, token, mask=valid)
    tl.store(positions_ptr + index, position, mask=valid)
    tl.store(slots_ptr + index, slot.to(tl.int64), mask=valid)
    tl.store(kv_lens_ptr + index, length.to(tl.int32), mask=valid)


_launch = Launcher(newest_tokens_kernel, writes=("ids", "positions", "slots", "kv_lens"), dependents="at the end")


def newest_tokens_triton(
    rows: Tensor,
    last_token: Tensor,
    length: Tensor,
    slot_table: Tensor,
    ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    kv_lens: Tensor,
) -> None:
    """Triton implementation."""
    batch = rows.shape[0]
    if batch == 0:
        return
    if compiling_only():
        # Operators of torch that follow compute in a compile dry run too, and index with these.
        for each in (ids, positions, slots, kv_lens):
            each.zero_()
    _launch(
        (triton.cdiv(batch, _BLOCK),),
        (rows, last_token, length, slot_table, ids, positions, slots, kv_lens),
        (slot_table.stride(0),),
        (batch,),
        BLOCK=_BLOCK,
        num_warps=2,
    )


def newest_tokens_torch(
    rows: Tensor,
    last_token: Tensor,
    length: Tensor,
    slot_table: Tensor,
    ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    kv_lens: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    lengths = length[rows]
    ids.copy_(last_token[rows])
    positions.copy_((lengths - 1).clamp_(min=0))
    slots.copy_(slot_table[rows, positions])
    kv_lens.copy_(lengths)


newest_tokens = by_device(newest_tokens_torch, newest_tokens_triton)
