"""Collectives of the ranks that share one model: gloo on CPU, NCCL on CUDA, nothing when alone.

Every rank calls the same collectives in the same order; a rank that does not come within the time limit makes the
others fail with `EngineFailed` rather than wait for ever.
"""

import os
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ..config.parallel import ParallelConfig
from ..errors import EngineFailed


class TensorParallelGroup:
    """Made by `init_group`, used by the engine thread alone."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self._device = device

    def all_reduce(self, tensor: Tensor) -> None:
        """Sums `tensor` over the ranks, in place."""
        if self.world_size > 1:
            with self._collective():
                dist.all_reduce(tensor)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """`tensor` [...] of every rank, [world_size, ...], on all of them. Contiguous tensors of one shape."""
        gathered = tensor.new_empty(self.world_size * tensor.shape[0], *tensor.shape[1:])
        with self._collective():
            dist.all_gather_into_tensor(gathered, tensor)
        return gathered.unflatten(0, (self.world_size, -1))

    def all_to_all(self, tensor: Tensor) -> Tensor:
        """`tensor` [world_size, ...], contiguous: entry r goes to rank r. Returns what came, entry r from rank r."""
        received = torch.empty_like(tensor)
        with self._collective():
            dist.all_to_all_single(received, tensor)
        return received

    def min_int(self, value: int) -> int:
        """The smallest `value` of all ranks."""
        return -self.max_ints([-value])[0]

    def max_ints(self, values: Sequence[int]) -> list[int]:
        """The largest of all ranks in each place; every rank gives as many."""
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64, device=self._device)
        with self._collective():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def close(self) -> None:
        """Leaves the group, waiting for nobody. Safe to call twice.

        A communicator of NCCL is left to the end of the process: its own end waits for the other ranks, and for every
        CUDA graph that has captured a collective.
        """
        if self.world_size > 1 and self._device.type != "cuda" and dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _collective(self) -> Generator[None, None, None]:
        try:
            yield
        except RuntimeError as error:
            raise EngineFailed(f"rank {self.rank} lost the group of {self.world_size} shards: {error}") from error


def init_group(parallel: ParallelConfig, device: torch.device, timeout_s: float) -> TensorParallelGroup:
    """Meets the other ranks at `parallel.rendezvous` within `timeout_s`, which then limits every collective too.

    A file in the folder of the sockets needs no port, and nobody else can write to it. Raises EngineFailed when the
    ranks do not come.
    """
    group = TensorParallelGroup(parallel.rank, parallel.world_size, device)
    if parallel.world_size == 1:
        return group
    _stay_on_loopback()
    store = dist.FileStore(str(parallel.rendezvous), parallel.world_size)  # pyright: ignore[reportPrivateImportUsage]
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=parallel.rank,
            world_size=parallel.world_size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if device.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:  # torch raises either, by cause
        raise EngineFailed(
            f"rank {parallel.rank} could not meet the other {parallel.world_size - 1} shards by the file "
            f"{parallel.rendezvous} within {timeout_s:g} s; remove it if an earlier run has left it: {error}"
        ) from error
    return group


def _stay_on_loopback() -> None:
    """The listeners of gloo and NCCL are for the other ranks and ask for no password; all are on this machine.

    What the operator has set counts.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
