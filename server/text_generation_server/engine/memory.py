"""How much memory there is, and telling that it ran out."""

import os
from pathlib import Path

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """True for CUDA's, the CPU allocator's and Python's way of saying it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def release_memory(device: torch.device) -> None:
    """Gives cached blocks back to the device, so that what failed does not make the next call fail."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def device_memory(device: torch.device) -> int:
    """Bytes that the device has, or, of the host's, those that are available."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else available_host_memory()


def available_host_memory() -> int:
    """Bytes that this process can still use: the least of the machine's and of the control group's."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        available = min(available, int(limit.read_text()) - int(used.read_text()))
    return max(available, 0)
