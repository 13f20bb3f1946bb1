"""16-bit copies of weight-only quantised matrices for prefill: whether shards keep them, and their size."""

from typing import Literal

from .model import ModelConfig
from .quantisation import Packed
from .sizes import matrices

DequantisedCopies = Literal["auto", "on", "off"]
"""`auto` keeps copies where memory is ample."""
_MOST_SHARE = 5
"""Copies under `auto` take at most 1 / `_MOST_SHARE` of what is left for the KV pool (docs/quantisation.md)."""


def are_affordable(size: int, room: int) -> bool:
    """Whether `auto` allows copies of `size` bytes in `room` bytes for the KV pool."""
    return size * _MOST_SHARE <= room


def copied_bytes(config: ModelConfig, itemsize: int) -> int:
    """Estimates the bytes of all ranks' copies, without W8A8 matrices, which GPUs without FP8 copy too."""
    schemes, names = config.schemes, config.names
    total = 0
    for index in range(len(config.decoder.layers)):
        for name, elements in matrices(config, index, experts=False):
            scheme = schemes.of(f"{names.prefixes[0]}{name}")
            # A matrix without a name is kept with 16 bits anyway.
            if name and scheme is not None and (isinstance(scheme, Packed) or scheme.activations == "none"):
                total += elements * itemsize
    return total
