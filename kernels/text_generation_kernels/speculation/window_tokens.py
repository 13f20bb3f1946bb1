"""Inputs of a step that computes windows of drafted tokens, gathered by one kernel.

With r = rows[d] and L = length[r], entry j of place d has

    id = last_token[r] (j = 0) or drafts[r, j - 1],  position = L - 1 + j,  kv_len = L + j
    slot = slot_table[r, position]

where j < caps[d], j <= counts[r] and L + j < limits[r]. Other entries are outside the window: the newest token at
position 0, in the dummy slot, attending to nothing.

Called once a step. Bytes floor: about 60 an entry; the launch dominates.
"""

# pyright: basic, reportArgumentType=false
import torch

from ..runtime.launch import Launcher, compiling_only, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from .values import Drafts, Sequences, WindowInputs, Windows

_BLOCK = 64


@triton.jit(do_not_specialize=["number", "dummy"], do_not_specialize_on_alignment=["rows_ptr", "caps_ptr"])
def window_tokens_kernel(
    rows_ptr,  # [D]
    caps_ptr,  # [D]
    last_token_ptr,  # [rows]
    length_ptr,  # [rows]
    slot_table_ptr,  # [rows, positions]
    drafts_ptr,  # [rows, most]
    counts_ptr,  # [rows]
    limits_ptr,  # [rows]
    entry_rows_ptr,  # [D * WIDTH], and so on
    ids_ptr,
    positions_ptr,
    slots_ptr,
    kv_lens_ptr,
    stride_table_row,
    most,
    number,
    dummy,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block gathers BLOCK entries. It does not launch dependents early, because attention kernels read
    positions, slots and lengths before they wait for previous kernels.
    """
    wait_for_previous(PDL)
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = entry < number
    place, j = entry // WIDTH, entry % WIDTH
    row = tl.load(rows_ptr + place, mask=valid, other=0)
    cap = tl.load(caps_ptr + place, mask=valid, other=0)
    length = tl.load(length_ptr + row, mask=valid, other=0)
    count = tl.load(counts_ptr + row, mask=valid, other=0)
    limit = tl.load(limits_ptr + row, mask=valid, other=0)
    inside = valid & (length > 0) & (j < cap) & (j <= count) & (length + j < limit)
    newest = tl.load(last_token_ptr + row, mask=valid, other=0)
    drafted = tl.load(drafts_ptr + row * most + j - 1, mask=inside & (j > 0), other=0)
    position = tl.where(inside, length - 1 + j, 0)
    slot = tl.load(slot_table_ptr + row * stride_table_row + position, mask=inside, other=0)
    tl.store(entry_rows_ptr + entry, row, mask=valid)
    tl.store(ids_ptr + entry, tl.where(inside & (j > 0), drafted, newest), mask=valid)
    tl.store(positions_ptr + entry, position, mask=valid)
    tl.store(slots_ptr + entry, tl.where(inside, slot, dummy).to(tl.int64), mask=valid)
    tl.store(kv_lens_ptr + entry, tl.where(inside, length + j, 0).to(tl.int32), mask=valid)


_launch = Launcher(
    window_tokens_kernel, writes=("entry_rows", "ids", "positions", "slots", "kv_lens"), dependents="at the end"
)


def window_tokens_triton(
    windows: Windows, sequences: Sequences, drafts: Drafts, dummy_slot: int, inputs: WindowInputs
) -> None:
    """Triton implementation."""
    number = inputs.rows.shape[0]
    if number == 0:
        return
    if compiling_only():
        # Operators of torch that follow compute in a compile dry run too, and index with these.
        for each in inputs:
            each.zero_()
    _launch(
        (triton.cdiv(number, _BLOCK),),
        (
            windows.rows, windows.caps, sequences.last_token, sequences.length, sequences.slot_table, drafts.ids,
            drafts.counts, drafts.limits, inputs.rows, inputs.ids, inputs.positions, inputs.slots, inputs.kv_lens,
        ),
        (sequences.slot_table.stride(0), drafts.most),
        (number, dummy_slot),
        WIDTH=windows.width,
        BLOCK=_BLOCK,
        num_warps=2,
    )  # fmt: skip


def window_tokens_torch(
    windows: Windows, sequences: Sequences, drafts: Drafts, dummy_slot: int, inputs: WindowInputs
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    rows = windows.rows.repeat_interleave(windows.width)
    j = torch.arange(windows.width, device=rows.device).repeat(len(windows.rows))
    length = sequences.length[rows]
    inside = (length > 0) & (j < windows.caps.repeat_interleave(windows.width)) & (j <= drafts.counts[rows])
    inside &= length + j < drafts.limits[rows]
    drafted = drafts.ids[rows, (j - 1).clamp_(min=0)]
    positions = torch.where(inside, length - 1 + j, 0)
    inputs.rows.copy_(rows)
    inputs.ids.copy_(torch.where(inside & (j > 0), drafted, sequences.last_token[rows]))
    inputs.positions.copy_(positions)
    inputs.slots.copy_(torch.where(inside, sequences.slot_table[rows, positions].to(torch.int64), dummy_slot))
    inputs.kv_lens.copy_(torch.where(inside, length + j, 0))


window_tokens = by_device(window_tokens_torch, window_tokens_triton)
