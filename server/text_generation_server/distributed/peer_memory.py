"""Peer memory that the ranks write to while kernels run: torch's symmetric memory, without NVLink multicast.

Ranks exchange handles of their allocations through the store of their group, and map those of the others.
"""

import os

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _SymmetricMemory  # pyright: ignore[reportPrivateUsage]

from text_generation_kernels.collectives.exchange import LIMIT, NOTHING, SETS, Exchange, control_block

from .peer_copies import PeerCopies

SET_BYTES = 16 << 20
"""Size of one of the three sets: two ranks send messages of up to 8 MiB, and of up to 16 MiB by whole rows."""


class PeerMemory:
    """Buffers of all ranks, and the report that one of them stopped sending. Engine thread only, except for `lost`.

    All ranks make it together. Raises RuntimeError where the devices cannot map each other's memory.
    """

    def __init__(self, rank: int, world_size: int, device: torch.device, limit_s: float) -> None:
        # Nothing here uses multicast, and setting it up can fail on its own.
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        self._buffer = _SymmetricMemory.empty_strided_p2p((SETS * SET_BYTES // 2,), (1,), torch.int16, device)
        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("torch's process group is not initialised")
        self._handle = _SymmetricMemory.rendezvous(self._buffer, group.group_name)
        self._buffer.fill_(NOTHING - (1 << 16))
        # The device writes to it while kernels run.
        self._report = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._control = control_block(self._handle.buffer_ptrs, self._report.data_ptr(), device)
        self._aside = torch.cuda.Stream(device)
        self.exchange = Exchange(rank, world_size, self._control, SET_BYTES)
        self.copies = PeerCopies(self.exchange, device)
        """For all-reduces that overlap with GEMMs."""
        self.limit_waits(limit_s)
        torch.cuda.synchronize(device)

    @property
    def lost(self) -> bool:
        """Whether a rank did not come in time. Read after each step, on any thread."""
        return bool(self._report[0] != 0)

    def limit_waits(self, seconds: float) -> None:
        """Limits how long kernels wait for another rank, including those that wait now."""
        limit = torch.tensor([int(seconds * 1e9)]).pin_memory()
        with torch.cuda.stream(self._aside):
            self._control[LIMIT : LIMIT + 1].copy_(limit, non_blocking=True)


def can_map(world_size: int) -> bool:
    """Whether this rank's device can write to those of all others, all of them visible to this process."""
    count = torch.cuda.device_count()
    here = torch.cuda.current_device()
    return count >= world_size and all(
        torch.cuda.can_device_access_peer(here, other) for other in range(world_size) if other != here
    )


def peer_memory(rank: int, world_size: int, device: torch.device, limit_s: float) -> "PeerMemory | str":
    """The peer memory, or why this rank has none."""
    try:
        return PeerMemory(rank, world_size, device, limit_s)
    except RuntimeError as error:
        return str(error)
