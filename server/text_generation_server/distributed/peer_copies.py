"""Overlapped all-reduces by copy engines, which leave all SMs to the GEMMs that run meanwhile.

Each rank copies its input into the memory of all others and then increments a flag; the kernel that ends the all-reduce
waits for all flags and reduces (`text_generation_kernels/collectives/allreduce_add_norm_peer.py`). With two ranks that
is as many bytes as any algorithm sends; with N ranks it is N / 2 times as many as two-shot, but no kernel has to run in
between, which GEMMs would hold up.
"""

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _SymmetricMemory  # pyright: ignore[reportPrivateUsage]

from text_generation_kernels import announce
from text_generation_kernels.collectives.exchange import Exchange

from .pending import CopiedAllReduce, PendingAllReduce

PLACES = 4
"""Buffers that all-reduces use in rotation, two of them at a time. A copy into the first one is launched after the
third one's content has arrived from all ranks, which sent that after they had used the first one's content."""
MESSAGE_BYTES = 36 << 20
"""Largest message: half of a step of 4,096 prompt tokens and some hundred decodes, of 8,192 16-bit values each."""
_FLAG_WORDS = 4
"""int32 words from one flag to the next: kernels take pointers with 16-byte alignment."""


class _Mapped(Protocol):
    """Memory of all ranks, as torch's symmetric memory maps it."""

    def get_buffer(self, rank: int, sizes: tuple[int, ...], dtype: torch.dtype, storage_offset: int, /) -> Tensor:
        """A tensor in the memory of `rank`; the offset is in elements."""
        ...


class Inboxes:
    """Layout of each rank's memory: for each place a flag, and the inputs of all others side by side in the order of
    their ranks.
    """

    def __init__(self, mapped: _Mapped, rank: int, world_size: int, message_bytes: int = MESSAGE_BYTES) -> None:
        self._mapped = mapped
        self._rank = rank
        self._others = world_size - 1
        self._place_bytes = self._others * message_bytes

    @staticmethod
    def nbytes(world_size: int, message_bytes: int = MESSAGE_BYTES) -> int:
        """Size of one rank's memory."""
        return PLACES * ((world_size - 1) * message_bytes + _FLAG_WORDS * 4)

    def of_peer(self, peer: int, place: int, x: Tensor) -> Tensor:
        """Memory of `peer` for this rank's input, of the shape and type of `x`."""
        before = self._rank - (self._rank > peer)
        return self._mapped.get_buffer(peer, tuple(x.shape), x.dtype, self._first(place, x) + before * x.numel())

    def own(self, place: int, x: Tensor) -> Tensor:
        """[world_size - 1, *x.shape]: the inputs of the other ranks."""
        return self._mapped.get_buffer(self._rank, (self._others, *x.shape), x.dtype, self._first(place, x))

    def flag(self, rank: int, place: int) -> Tensor:
        """[1] int32 in the memory of `rank`: how many inputs have arrived."""
        first = PLACES * self._place_bytes // 4 + place * _FLAG_WORDS
        return self._mapped.get_buffer(rank, (1,), torch.int32, first)

    def _first(self, place: int, x: Tensor) -> int:
        return place * self._place_bytes // x.element_size()


class PeerCopies:
    """Copies inputs to all ranks. Engine thread only; all ranks make it together."""

    def __init__(self, exchange: Exchange, device: torch.device) -> None:
        self._exchange = exchange
        # The next ranks first, so that not all copy to the same one at a time.
        self._peers = [(exchange.rank + step) % exchange.world_size for step in range(1, exchange.world_size)]
        self._stream = torch.cuda.Stream(device)
        size = Inboxes.nbytes(exchange.world_size)
        self._buffer = _SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, device)
        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("torch's process group is not initialised")
        self._inboxes = Inboxes(
            _SymmetricMemory.rendezvous(self._buffer, group.group_name), exchange.rank, exchange.world_size
        )
        self._buffer.zero_()
        torch.cuda.synchronize(device)

    def fits(self, x: Tensor) -> bool:
        """Whether `begin` takes `x`."""
        return x.is_contiguous() and x.nbytes <= MESSAGE_BYTES and x.nbytes % 16 == 0 and x.data_ptr() % 16 == 0

    def begin(self, x: Tensor, place: int) -> PendingAllReduce:
        """Begins to all-reduce `x` [tokens, hidden]. All ranks use the places in the order 0, 1, 2, 3, 0, ...; at most
        two are pending.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for peer in self._peers:
                self._inboxes.of_peer(peer, place, x).copy_(x)
                announce(self._inboxes.flag(peer, place))
            done = torch.cuda.Event()
            done.record()
        others, flag = self._inboxes.own(place, x), self._inboxes.flag(self._exchange.rank, place)
        return CopiedAllReduce(x, done, others, flag, self._exchange)
