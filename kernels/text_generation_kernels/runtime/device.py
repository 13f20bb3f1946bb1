"""Device properties that kernels and launch settings depend on. Off a GPU, where kernels are interpreted, those of an
H200; of the meta device, whose tensors have no values, those of any card (`meta_device_is`).
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch


class Card(NamedTuple):
    """What the choice of a kernel depends on of the device."""

    shared_kib: int
    """Most shared memory of a thread block, KiB: 227 on sm_90, 163 on sm_80, 99 on sm_86 and sm_89."""
    num_sms: int
    is_hopper: bool
    """Whether kernels for compute capability 9.0 alone can run."""
    has_fp8_gemms: bool
    """Whether the device has float8 GEMMs: cards from sm_89 on. A CPU emulates them."""
    has_block_gemms: bool
    """Whether the library has float8 GEMMs with scales by block: of CUDA 12.9, for compute capability 9.0."""


CARDS = {
    name: Card(shared_kib, num_sms, is_hopper, has_fp8_gemms, has_block_gemms=is_hopper)
    for name, shared_kib, num_sms, is_hopper, has_fp8_gemms in (
        ("h100", 227, 132, True, True),
        ("h200", 227, 132, True, True),
        ("a100", 163, 108, False, False),
        ("l40s", 99, 142, False, True),
        ("l4", 99, 58, False, True),
        ("rtx4090", 99, 128, False, True),
        ("a10", 99, 72, False, False),
        ("rtx3090", 99, 82, False, False),
    )
}
"""Cards that one can ask about without having them."""
_meta: Card | None = None


@cache
def card_of(device: torch.device) -> Card:
    """What the choice of a kernel depends on of `device`."""
    return Card(shared_kib(device), num_sms(device), is_hopper(device), has_fp8_gemms(device), _has_block_gemms(device))


@contextmanager
def meta_device_is(card: Card) -> Generator[None, None, None]:
    """Inside, the meta device has the properties of `card`: layers make of tensors without values what they would make
    of weights on such a card.
    """
    global _meta
    _meta = card
    _forget()
    try:
        yield
    finally:
        _meta = None
        _forget()


@cache
def num_sms(device: torch.device) -> int:
    """See `Card`."""
    if device.type != "cuda":
        return _meta.num_sms if _meta is not None and device.type == "meta" else 132
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def shared_kib(device: torch.device) -> int:
    """See `Card`."""
    if device.type != "cuda":
        return _meta.shared_kib if _meta is not None and device.type == "meta" else 227
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin // 1024


@cache
def is_hopper(device: torch.device) -> bool:
    """See `Card`."""
    if device.type != "cuda":
        return _meta is not None and device.type == "meta" and _meta.is_hopper
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) == (9, 0)


@cache
def has_fp8_gemms(device: torch.device) -> bool:
    """See `Card`."""
    if device.type != "cuda":
        return _meta is None or device.type != "meta" or _meta.has_fp8_gemms
    return torch.cuda.get_device_capability(device) >= (8, 9)


def _has_block_gemms(device: torch.device) -> bool:
    if _meta is not None and device.type == "meta":
        return _meta.has_block_gemms
    toolkit = tuple(int(number) for number in (torch.version.cuda or "0.0").split(".")[:2])
    return is_hopper(device) and toolkit >= (12, 9)


def _forget() -> None:
    for known in (card_of, num_sms, shared_kib, is_hopper, has_fp8_gemms):
        known.cache_clear()
