"""What launch settings need to know of a card. Off a GPU, where kernels are interpreted, it is taken for an H200."""

from functools import cache

import torch


@cache
def num_sms(device: torch.device) -> int:
    """Multiprocessors of the card."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@cache
def shared_kib(device: torch.device) -> int:
    """KiB of shared memory that one program may have: 227 on sm_90, 163 on sm_80, 99 on sm_86 and sm_89."""
    if device.type != "cuda":
        return 227
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin // 1024


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether kernels that are written for compute capability 9.0 alone can run."""
    is_nvidia = device.type == "cuda" and torch.version.cuda is not None
    return is_nvidia and torch.cuda.get_device_capability(device) == (9, 0)


@cache
def has_fp8_gemms(device: torch.device) -> bool:
    """Whether matrix products of float8 exist on the device: on cards from sm_89 on. A CPU computes what they would."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)
