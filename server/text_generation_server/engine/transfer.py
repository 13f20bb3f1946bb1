"""Asynchronous copies of small data to the device and back.

Copies of pinned memory are queued on the current stream. torch's allocator of pinned memory reuses a block only once
the copies from or to it are done, so nobody has to keep it until then.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(host: NDArray[Any], device: torch.device) -> Tensor:
    """Queues a copy to the device and returns it, ready for all that is queued later."""
    if device.type != "cuda":
        return torch.from_numpy(host)
    return torch.from_numpy(host).pin_memory().to(device, non_blocking=True)


def overwrite(destination: Tensor, host: NDArray[Any]) -> None:
    """Queues a copy of `host` over a tensor of its length."""
    source = torch.from_numpy(host)
    destination.copy_(source.pin_memory() if destination.device.type == "cuda" else source, non_blocking=True)


class Readback:
    """A queued copy to the host, for which any thread may wait later."""

    def __init__(self, source: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if source.device.type != "cuda":
            self._host = source
            return
        self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        self._host.copy_(source, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> Tensor:
        """Waits for the copy, and returns the values. Other threads run meanwhile."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
