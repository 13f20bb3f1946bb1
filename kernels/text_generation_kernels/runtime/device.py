"""Device properties that launch settings depend on. Off a GPU, where kernels are interpreted, those of an H200."""

from functools import cache

import torch


@cache
def num_sms(device: torch.device) -> int:
    """SMs of the card."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@cache
def shared_kib(device: torch.device) -> int:
    """Most shared memory of a thread block, KiB: 227 on sm_90, 163 on sm_80, 99 on sm_86 and sm_89."""
    if device.type != "cuda":
        return 227
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin // 1024


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether kernels for compute capability 9.0 alone can run."""
    is_nvidia = device.type == "cuda" and torch.version.cuda is not None
    return is_nvidia and torch.cuda.get_device_capability(device) == (9, 0)


@cache
def has_fp8_gemms(device: torch.device) -> bool:
    """Whether the device has float8 GEMMs: cards from sm_89 on. A CPU emulates them."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)
