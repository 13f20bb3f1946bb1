"""How many rows of a mixture of experts each rank computes, where ranks have whole experts each (expert parallelism).

    pairs[r] = number of (token, slot) with starts[r] <= ids[token, slot] < starts[r + 1] and slots[token] != dummy_slot

Layouts: `ids` `[tokens, slots of the mixture]` int32, contiguous, those of `Routing` on the rank that counts them from
the first expert; `slots` `[tokens]` int64, contiguous: where each token's keys and values go, `dummy_slot` for tokens
of no request, as they pad CUDA graphs; `starts` `[ranks + 1]` int32, the first expert of each rank, then the number of
all; `pairs` `[ranks]` int32, written. ValueError for shapes that do not fit.

One rank calls it in a few layers of a model. There is a thread block for each rank; each reads all ids, so that nothing
must be zeroed before and no atomic operation is needed. Latency bounds it.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton

_BLOCK = 2048
"""Ids that a thread block counts at a time: those of 256 tokens with eight experts each."""


def expert_load(ids: Tensor, slots: Tensor, dummy_slot: int, starts: Tensor, pairs: Tensor) -> None:
    """Writes `pairs`. Raises ValueError for shapes that do not fit."""
    if slots.shape != ids.shape[:1] or starts.shape != (len(pairs) + 1,):
        shapes = [tuple(each.shape) for each in (ids, slots, starts, pairs)]
        raise ValueError(f"expert_load: shapes of ids, slots, starts, pairs do not fit: {shapes}")
    _expert_load(ids, slots, dummy_slot, starts, pairs)


@triton.jit(do_not_specialize=["rows", "dummy_slot"], do_not_specialize_on_alignment=["pairs_ptr"])
def expert_load_kernel(
    ids_ptr,  # [rows] int32
    slots_ptr,  # [rows / SLOTS] int64
    starts_ptr,  # [ranks + 1] int32
    pairs_ptr,  # [ranks] int32
    rows,
    dummy_slot,
    SLOTS: tl.constexpr,  # rows of one token
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block counts the rows of one rank."""
    rank = tl.program_id(0)
    members = tl.arange(0, BLOCK)
    wait_for_previous(PDL)
    launch_dependents(PDL)
    first = tl.load(starts_ptr + rank)
    end = tl.load(starts_ptr + rank + 1)
    counts = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, rows, BLOCK):
        row = begin + members
        here = row < rows
        ids = tl.load(ids_ptr + row, mask=here, other=-1)
        slots = tl.load(slots_ptr + row // SLOTS, mask=here, other=0)
        counts += ((ids >= first) & (ids < end) & (slots != dummy_slot)).to(tl.int32)
    tl.store(pairs_ptr + rank, tl.sum(counts, axis=0))


_launch = Launcher(expert_load_kernel, writes=("pairs",), dependents="after the wait")


def expert_load_triton(ids: Tensor, slots: Tensor, dummy_slot: int, starts: Tensor, pairs: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    if not all(each.is_contiguous() for each in (ids, slots, starts, pairs)):
        raise ValueError("expert_load: ids, slots, starts and pairs must be contiguous")
    _launch(
        (len(pairs),),
        (ids, slots, starts, pairs),
        (),
        (ids.numel(), dummy_slot),
        SLOTS=ids.shape[1],
        BLOCK=_BLOCK,
        num_warps=8,
    )


def expert_load_torch(ids: Tensor, slots: Tensor, dummy_slot: int, starts: Tensor, pairs: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    counted = ids[slots != dummy_slot].flatten()
    ranks = torch.bucketize(counted, starts, right=True) - 1
    inside = ranks[(ranks >= 0) & (ranks < len(pairs))]
    pairs.copy_(torch.bincount(inside, minlength=len(pairs)))


_expert_load = by_device(expert_load_torch, expert_load_triton)
