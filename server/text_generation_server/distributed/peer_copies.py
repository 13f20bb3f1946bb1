"""Sums of two ranks by copy engines, which leave all processors of a device to the kernels that run meanwhile.

With two ranks, sending everything takes as many bytes as any other way. Each copies its part into memory of the other
and sets a flag behind it; the kernel that goes on waits for the flag and adds up (`kernels/peer_add_norm.py`).
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _SymmetricMemory  # pyright: ignore[reportPrivateUsage]

from ..kernels import announce
from ..kernels._exchange import Exchange
from .under_way import CopiedSum, SumUnderWay

PLACES = 4
"""Buffers that sums use in turn, two of which are under way at a time: what is copied to the first one was asked for
after the third one's content had come, and that was sent after the first one's content was used."""
PLACE_BYTES = 36 << 20
"""Half of a step of 4,096 tokens of prompts and some hundred decodes, of 8,192 values with 16 bits each."""
_FLAG_WORDS = 4
"""int32 words from one flag to the next: kernels take pointers to 16 bytes."""


class PeerCopies:
    """Buffers of both ranks. Engine thread only; made by both together."""

    def __init__(self, exchange: Exchange, device: torch.device) -> None:
        self._exchange = exchange
        self._stream = torch.cuda.Stream(device)
        flags = PLACES * _FLAG_WORDS * 4
        self._buffer = _SymmetricMemory.empty_strided_p2p((PLACES * PLACE_BYTES + flags,), (1,), torch.uint8, device)
        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("the group is not there")
        self._handle = _SymmetricMemory.rendezvous(self._buffer, group.group_name)
        self._buffer.zero_()
        torch.cuda.synchronize(device)

    def fits(self, x: Tensor) -> bool:
        """Whether `begin` takes it."""
        return x.is_contiguous() and x.nbytes <= PLACE_BYTES and x.data_ptr() % 16 == 0

    def begin(self, x: Tensor, place: int) -> SumUnderWay:
        """Begins to sum `x` [tokens, hidden]. Both ranks use the places in the order 0, 1, 2, 3, 0, and so on; at most
        two sums are under way at a time.
        """
        rank = self._exchange.rank
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._part(1 - rank, place, x).copy_(x)
            announce(self._flag(1 - rank, place))
            done = torch.cuda.Event()
            done.record()
        return CopiedSum(x, done, self._part(rank, place, x), self._flag(rank, place), self._exchange)

    def _part(self, rank: int, place: int, x: Tensor) -> Tensor:
        """Memory of `rank` for what is like `x`."""
        return self._handle.get_buffer(rank, x.shape, x.dtype, place * PLACE_BYTES // x.element_size())

    def _flag(self, rank: int, place: int) -> Tensor:
        first = PLACES * PLACE_BYTES // 4 + place * _FLAG_WORDS
        return self._handle.get_buffer(rank, (1,), torch.int32, first)
