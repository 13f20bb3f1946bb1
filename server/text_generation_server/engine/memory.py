"""Readings of memory, in one way for all devices, and the error when it ran out."""

import gc
from typing import Protocol

import torch

from ..config.host_memory import available_host_memory
from ..config.server import allocator_is_set


class Memory(Protocol):
    """The memory of one rank's device, in bytes. Read by the engine thread; tests put numbers of their own in."""

    name: str
    shared: bool
    """The host's, which all ranks and other programs use as well; nothing can be measured then."""

    def total(self) -> int:
        """What there is; of the host's, what is available."""
        ...

    def free(self) -> int:
        """What nobody has taken: no process, and not the allocator of this one."""
        ...

    def held(self) -> int:
        """What the allocator of this process has taken, with the gaps between its tensors."""
        ...

    def begin_peak(self) -> None:
        """From now on `peak` counts."""
        ...

    def peak(self) -> int:
        """The most that was held since `begin_peak`, once all that was launched is done."""
        ...

    def release(self) -> None:
        """Gives back what is held for no tensor, also for those that only the garbage collector finds."""
        ...


class DeviceMemory:
    """A CUDA device's, of which this process has a part."""

    shared = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.name = str(device)

    def total(self) -> int:
        """All of it."""
        return torch.cuda.mem_get_info(self._device)[1]

    def free(self) -> int:
        """What nobody has taken."""
        return torch.cuda.mem_get_info(self._device)[0]

    def held(self) -> int:
        """With the gaps between tensors."""
        return torch.cuda.memory_reserved(self._device)

    def begin_peak(self) -> None:
        """Forgets earlier peaks."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """Waits for the device."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device)

    def release(self) -> None:
        """Also what only the garbage collector finds."""
        gc.collect()
        torch.cuda.empty_cache()


class HostMemory:
    """The machine's. Nobody knows who takes it, so only what is available counts."""

    name = "the machine"
    shared = True

    def total(self) -> int:
        """What is available."""
        return available_host_memory()

    def free(self) -> int:
        """The same."""
        return available_host_memory()

    def held(self) -> int:
        """Unknown."""
        return 0

    def begin_peak(self) -> None:
        """Nothing counts."""

    def peak(self) -> int:
        """Unknown."""
        return 0

    def release(self) -> None:
        """What only the garbage collector finds."""
        gc.collect()


def memory_of(device: torch.device) -> Memory:
    """That which the tensors of `device` are in."""
    return DeviceMemory(device) if device.type == "cuda" else HostMemory()


def let_segments_grow() -> None:
    """Lets the allocator extend what it has instead of taking a further piece for each size that steps bring: pieces of
    the wrong size would hold gigabytes that no tensor can use. Call it before the first tensor on a device.

    What the operator has set counts.
    """
    if not allocator_is_set():
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")  # pyright: ignore


def is_out_of_memory(error: BaseException) -> bool:
    """True for CUDA's, the CPU allocator's and Python's way of saying it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
