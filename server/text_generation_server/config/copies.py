"""16-bit copies of weight-only quantised matrices, for steps of many tokens: whether they are kept, and their size."""

from typing import Literal

from .model import ModelConfig
from .quantisation import Packed
from .sizes import matrices

DequantisedCopies = Literal["auto", "on", "off"]
"""`auto`: where memory is ample."""
_MOST_SHARE = 5
"""Copies that nobody asked for take at most one part in so many of what is left for the KV pool. An 8B model of 4 bits
has 13 GiB of them: a tenth of what an H200 has left, a fifth of what a card of 80 GB has.
"""


def are_affordable(size: int, room: int) -> bool:
    """Whether copies of `size` bytes that nobody asked for may take that of the `room` for the KV pool."""
    return size * _MOST_SHARE <= room


def copied_bytes(config: ModelConfig, itemsize: int) -> int:
    """Of all ranks together, about: without matrices of 8 bits whose inputs a card cannot have with 8 bits."""
    schemes, names = config.schemes, config.names
    total = 0
    for index in range(len(config.decoder.layers)):
        for name, elements in matrices(config, index, experts=False):
            scheme = schemes.of(f"{names.prefixes[0]}{names.layer.format(index)}{name}")
            # What has no name is kept with 16 bits alone.
            if name and scheme is not None and (isinstance(scheme, Packed) or scheme.activations == "none"):
                total += elements * itemsize
    return total
