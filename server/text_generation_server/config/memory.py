"""Estimate of whether a model fits into memory, from files and devices, before anything is loaded."""

import subprocess
from pathlib import Path

from ..errors import OutOfMemory
from .host_memory import total_host_memory

_GIB = 2**30


def check_fits(needed: int, available: int, room: str, is_shared: bool = False) -> None:
    """Raises OutOfMemory when weights of `needed` bytes are more than `available`. `room` says whose memory that is,
    with `{}` for how much. With `is_shared`, all shards share this memory, so that more shards do not help.
    """
    if needed > available:
        remedy = "use " if is_shared else "use more shards (--num-shard), "
        raise OutOfMemory(
            f"the weights take {needed / _GIB:.1f} GiB, and {room.format(f'{available / _GIB:.1f} GiB')}: "
            f"{remedy}a smaller --dtype, or a smaller model"
        )


def check_machine(size: int | None) -> None:
    """Raises OutOfMemory when weights of `size` bytes are larger than all devices of this machine together. An unknown
    size is no error: the model is checked again before it is loaded.
    """
    if size is None:
        return
    devices = cuda_memory()
    if devices:
        check_fits(size, sum(devices), f"all {len(devices)} CUDA devices together have {{}}")
    elif not has_cuda_devices():
        check_fits(size, total_host_memory(), "this machine has {}", is_shared=True)


def cuda_memory() -> list[int]:
    """Returns the bytes of every CUDA device, from `nvidia-smi`, because torch takes seconds to load."""
    try:
        return [int(mib) * 2**20 for mib in _of_every_device("memory.total")]
    except ValueError:
        return []


def driver_version() -> str | None:
    """Returns the version of the NVIDIA driver, such as `580.95.05`; None without devices or without `nvidia-smi`."""
    return next(iter(_of_every_device("driver_version")), None)


def _of_every_device(field: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []


def has_cuda_devices() -> bool:
    """Whether the machine has an NVIDIA device. `cuda_memory` may miss it where `nvidia-smi` is missing."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
