"""Lamport exchange: kernels of several ranks pass data to each other through peer memory while they run.

Values themselves signal their arrival (the "Lamport" all-reduce of FlashInfer and TensorRT-LLM, after Lamport, 1977): a
buffer is full of one bit pattern that nobody sends, and a reader polls until no word holds it any more. There are no
flags, fences or barriers, and a word is read as soon as it arrives.

Each rank has three sets of buffers, which calls use in rotation. A call also clears the set of the previous call, which
this rank has read. Peers write to that set two calls later, and none gets there without what this rank sends in
the call between, after the clearing. So a fast rank never overwrites what a slow one has yet to read. The device counts
calls, so a graph may be replayed, and calls of all sizes may follow each other.

A reader that waits longer than the limit reports to the host that the group is lost. From then on nobody waits, so
kernels end, with meaningless results. Used by the kernels of this room and by `send_linear`.
"""

# pyright: basic, reportArgumentType=false
from dataclasses import dataclass

import torch
from torch import Tensor

from ..runtime.triton import cuda, tl, triton

SETS = 3
NOTHING = 0x8000
"""Every 16 bits of an empty buffer: -0.0 or, twice, a float32 of 5e-41. Both are sent as 0.0."""
_PROGRAMS = tl.constexpr(1 << 16)
"""More than the thread blocks of any call."""

# Words of the control block.
_CALLS = tl.constexpr(0)  # calls so far * _PROGRAMS + thread blocks of this call that have arrived
_LOST = tl.constexpr(1)  # 1 once the group is lost: nobody waits any more
_LIMIT = tl.constexpr(2)  # most ns that a reader waits
_REPORT = tl.constexpr(3)  # address of an int32 in host memory that is set with _LOST
_USED = tl.constexpr(4)  # 4-byte words used of each set
_BUFFERS = tl.constexpr(16)  # buffer addresses of all ranks, in a cache line that is never written
LIMIT, REPORT, BUFFERS = 2, 3, 16
MOST_VALUES = 1 << 15
"""Most values that one thread block receives at a time: a row of each rank."""
CHECKED = 64
"""Polls of a reader between two looks at the clock."""


@dataclass(frozen=True)
class Exchange:
    """The buffers of all ranks as one rank sees them. Kernels of all ranks use it in the same order, one at a time."""

    rank: int
    world_size: int
    control: Tensor
    """int64 [BUFFERS + world_size] on the device; see `control_block`."""
    set_bytes: int
    """Size of one of the three sets, a multiple of 16."""

    def constants(self, x: Tensor) -> dict[str, object]:
        """Constexprs of kernels that send or receive elements like those of `x`."""
        wide = x.element_size() == 4
        return {
            "WORLD": self.world_size,
            "SET_BYTES": self.set_bytes,
            "BITS": tl.int32 if wide else tl.int16,
            "NOTHING": (NOTHING << 16 | NOTHING) - (1 << 32) if wide else NOTHING - (1 << 16),
        }


def control_block(addresses: list[int], report: int, device: torch.device) -> Tensor:
    """State that kernels keep from call to call. `addresses`: of the buffers of each rank, `SETS` sets each, full of
    `NOTHING`; `report`: address of an int32 in host memory that the device can write to.
    """
    words = torch.zeros(BUFFERS + len(addresses), dtype=torch.int64)
    words[REPORT] = report
    words[BUFFERS:] = torch.tensor(addresses)
    return words.to(device)


@triton.jit
def take_turn(control_ptr):
    """The set of this call. Every thread block calls this once, after the wait for previous kernels."""
    count = tl.num_programs(0)
    ticket = tl.atomic_add(control_ptr + _CALLS, 1, sem="relaxed")
    if ticket % _PROGRAMS == count - 1:
        tl.atomic_add(control_ptr + _CALLS, _PROGRAMS - count, sem="relaxed")
    return (ticket // _PROGRAMS) % 3


@triton.jit
def turn_of(control_ptr):
    """The set of the next call, or of one that `pass_turn` will end. The load bypasses L1."""
    return ((tl.load(control_ptr + _CALLS, volatile=True) // _PROGRAMS) % 3).to(tl.int32)


@triton.jit
def pass_turn(control_ptr):
    """Ends a call of a single thread block that took `turn_of`."""
    tl.store(control_ptr + _CALLS, tl.load(control_ptr + _CALLS, volatile=True) + _PROGRAMS)


@triton.jit
def boxes_of(
    control_ptr, size, RANK: tl.constexpr, WORLD: tl.constexpr, SET_BYTES: tl.constexpr, BITS: tl.constexpr
):  # fmt: skip
    """Where this rank's `size` values of the next call belong in the memory of each rank, its own too.

    Call it after the wait for previous kernels. The receiver does not pass the turn before everything has arrived.
    """
    turn = turn_of(control_ptr)
    boxes = ()
    for peer in tl.static_range(WORLD):
        box = buffer_at(address_of(control_ptr, peer), turn, SET_BYTES, BITS) + RANK * size
        boxes = boxes + (box,)  # noqa: RUF005 - Triton knows no unpacking
    return boxes


@triton.jit
def send_to_all(boxes, values, places, valid, WORLD: tl.constexpr, BITS: tl.constexpr, NOTHING: tl.constexpr):
    """Sends values to all ranks."""
    words = words_to_send(values, BITS, NOTHING)
    for peer in tl.static_range(WORLD):
        tl.store(boxes[peer] + places, words, mask=valid)


@triton.jit
def address_of(control_ptr, rank):
    """Address of a rank's buffers."""
    return tl.load(control_ptr + _BUFFERS + rank)


@triton.jit
def buffer_at(address, turn, SET_BYTES: tl.constexpr, BITS: tl.constexpr):
    """Pointer to set `turn` of the buffers at `address`."""
    return tl.multiple_of((address + turn * SET_BYTES).to(tl.pointer_type(BITS)), 16)


@triton.jit
def words_to_send(values, BITS: tl.constexpr, NOTHING: tl.constexpr):
    """Bits of values, none of them `NOTHING`."""
    bits = values.to(BITS, bitcast=True)
    return tl.where(bits == NOTHING, 0, bits)


@triton.jit
def clear_last(control_ptr, address, turn, used, SET_BYTES: tl.constexpr, CLEAR: tl.constexpr):
    """Clears what the previous call used of this rank's buffers, and records the `used` words of this call."""
    last = (turn + 2) % 3
    program = tl.program_id(0)
    count = tl.load(control_ptr + _USED + last, volatile=True).to(tl.int32)
    buffer_ptr = buffer_at(address, last, SET_BYTES, tl.int32)
    for start in range(program * CLEAR, count, tl.num_programs(0) * CLEAR):
        words = start + tl.arange(0, CLEAR)
        tl.store(buffer_ptr + words, tl.full([CLEAR], -2147450880, tl.int32), mask=words < count)
    if program == 0:
        tl.store(control_ptr + _USED + turn, used)


@triton.jit
def receive(source_ptr, valid, control_ptr, NOTHING: tl.constexpr, CHECKED: tl.constexpr):
    """The words at `source_ptr` where `valid`, once all have arrived; anything when the group is lost.

    The clock is read once in CHECKED polls. Where that is 0, as in the interpreter, which has no clock, each poll
    counts as 1 us.
    """
    words = tl.load(source_ptr, mask=valid, other=0, volatile=True)
    missing = tl.max((words == NOTHING).to(tl.int32))
    if missing != 0:
        begin = tl.zeros([], dtype=tl.int64)
        if CHECKED != 0:
            begin = cuda.globaltimer()
        turns = 0
        while missing != 0:
            words = tl.load(source_ptr, mask=valid, other=0, volatile=True)
            missing = tl.max((words == NOTHING).to(tl.int32))
            turns += 1
            if CHECKED != 0:
                if turns % CHECKED == 0:
                    missing *= waiting(control_ptr, cuda.globaltimer() - begin)
            else:
                missing *= waiting(control_ptr, turns * 1000)
    return words


@triton.jit
def announce_kernel(flag_ptr):
    """Increments a flag: the earlier work of this stream is done."""
    tl.atomic_add(flag_ptr, 1, sem="release", scope="sys")


@triton.jit
def wait_for_flag(flag_ptr, count: tl.constexpr, control_ptr, CHECKED: tl.constexpr):
    """Waits until `count` ranks have announced, or the group is lost. What they wrote before is visible then."""
    came = tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys")
    if came < count:
        begin = tl.zeros([], dtype=tl.int64)
        if CHECKED != 0:
            begin = cuda.globaltimer()
        turns = 0
        missing = 1
        while missing != 0:
            missing = (tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys") < count).to(tl.int32)
            turns += 1
            if CHECKED != 0:
                if turns % CHECKED == 0:
                    missing *= waiting(control_ptr, cuda.globaltimer() - begin)
            else:
                missing *= waiting(control_ptr, turns * 1000)


@triton.jit
def waiting(control_ptr, waited):
    """1 while there is time; else 0, after a report to the host."""
    more = (waited <= tl.load(control_ptr + _LIMIT, volatile=True)) & (tl.load(control_ptr + _LOST, volatile=True) == 0)
    if not more:
        tl.store(control_ptr + _LOST, 1)
        tl.store(tl.load(control_ptr + _REPORT).to(tl.pointer_type(tl.int32)), 1)
    return more.to(tl.int32)
