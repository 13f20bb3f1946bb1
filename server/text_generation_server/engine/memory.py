"""Readings of memory, with one interface for all devices, and the errors of allocators."""

import gc
from typing import Protocol

import torch

from ..config.host_memory import available_host_memory
from ..config.server import allocator_is_set


class Memory(Protocol):
    """The memory of one rank's device, in bytes. The engine thread reads it; tests replace it."""

    name: str
    shared: bool
    """Whether it is the host's memory, which all ranks and other programs share; nothing can be measured then."""

    def total(self) -> int:
        """Returns all memory; of the host's, what is available."""
        ...

    def free(self) -> int:
        """Returns the memory that no process has taken, this process's allocator included."""
        ...

    def held(self) -> int:
        """Returns what the allocator of this process has taken, with the gaps between its tensors."""
        ...

    def begin_peak(self) -> None:
        """Begins to measure `peak`."""
        ...

    def peak(self) -> int:
        """Returns the maximum of `held` since `begin_peak`, once all that was launched is done."""
        ...

    def release(self) -> None:
        """Gives back memory that the allocator holds for no tensor, unreachable tensors included."""
        ...


class DeviceMemory:
    """The memory of a CUDA device, which other processes may use too."""

    shared = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.name = str(device)

    def total(self) -> int:
        """See `Memory`."""
        return torch.cuda.mem_get_info(self._device)[1]

    def free(self) -> int:
        """See `Memory`."""
        return torch.cuda.mem_get_info(self._device)[0]

    def held(self) -> int:
        """See `Memory`."""
        return torch.cuda.memory_reserved(self._device)

    def begin_peak(self) -> None:
        """See `Memory`."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """See `Memory`."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device)

    def release(self) -> None:
        """See `Memory`."""
        gc.collect()
        torch.cuda.empty_cache()


class HostMemory:
    """The memory of the machine. Nothing tells which process takes it, so only available memory counts."""

    name = "the machine"
    shared = True

    def total(self) -> int:
        """See `Memory`."""
        return available_host_memory()

    def free(self) -> int:
        """See `Memory`."""
        return available_host_memory()

    def held(self) -> int:
        """See `Memory`: unknown, so 0."""
        return 0

    def begin_peak(self) -> None:
        """See `Memory`: does nothing."""

    def peak(self) -> int:
        """See `Memory`: unknown, so 0."""
        return 0

    def release(self) -> None:
        """See `Memory`."""
        gc.collect()


def memory_of(device: torch.device) -> Memory:
    """Returns the memory of the tensors of `device`."""
    return DeviceMemory(device) if device.type == "cuda" else HostMemory()


def let_segments_grow() -> None:
    """Sets torch's allocator to expandable segments, unless the operator has set it: without them, segments of the
    wrong size would hold gigabytes that no tensor can use. Call it before the first tensor on a device.
    """
    if not allocator_is_set():
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")  # pyright: ignore


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is an out-of-memory error of CUDA, of torch's CPU allocator or of Python."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
