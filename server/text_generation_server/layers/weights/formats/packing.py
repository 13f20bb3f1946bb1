"""Codes of 1 to 8 bits in words of 32, the lowest bits first."""

from dataclasses import dataclass
from math import gcd
from typing import Literal

import torch
from torch import Tensor

_WORD = 32


@dataclass(frozen=True)
class Packing:
    """How codes lie along the last dimension of a tensor of words.

    "dense": one stream of bits, so that codes of 3, 5, 6 or 7 bits may begin in one word and end in the next.
    "padded": bits of a word that hold no whole code are left empty. "planes": of 32 codes, the lowest 4 bits (2 of
    codes of 3) come first, then the next 2 and 1, as GPTQModel has them. All are the same for 1, 2, 4 and 8 bits.
    """

    bits: int
    layout: Literal["dense", "padded", "planes"] = "dense"

    @property
    def _unit(self) -> tuple[int, int]:
        """The fewest codes that fill whole words, and these words."""
        if self.layout == "padded":
            return _WORD // self.bits, 1
        common = gcd(self.bits, _WORD) if self.layout == "dense" else 1
        return _WORD // common, self.bits // common

    def words(self, count: int) -> int:
        """How many words `count` codes need."""
        return -(-count // (_WORD // self.bits)) if self.layout == "padded" else -(-count * self.bits // _WORD)

    def span(self, start: int, stop: int, count: int) -> tuple[int, int, int]:
        """The words from which codes `start` to `stop` of `count` can be unpacked: first word, end, and how many codes
        come before `start` in them.
        """
        codes, words = self._unit
        first, last = start // codes, -(-stop // codes)
        return first * words, min(last * words, self.words(count)), start - first * codes

    def unpack(self, words: Tensor, count: int, skip: int = 0) -> Tensor:
        """[..., W] int32 to [..., count] uint8, without the first `skip` codes."""
        if 8 % self.bits == 0:
            codes = _from_bytes(words, self.bits)
        elif self.layout == "planes":
            codes = _from_planes(_padded(words, self.bits), self.bits)
        else:
            codes = _from_words(_padded(words, self._unit[1]), self.bits, self._unit[0])
        return codes[..., skip : skip + count]


def packing_of(words: int, count: int, bits: int) -> Packing | None:
    """The way in which `count` codes fill exactly `words` words: dense where both do. None: neither does."""
    ways = (Packing(bits), Packing(bits, "padded"))
    return next((way for way in ways if way.words(count) == words), None)


def halves(packed: Tensor, upper_first: bool = False) -> Tensor:
    """[..., B] bytes to the 4-bit codes [..., 2 * B] in them."""
    low, high = packed & 15, packed >> 4
    return torch.stack((high, low) if upper_first else (low, high), dim=-1).flatten(-2)


def _padded(words: Tensor, unit: int) -> Tensor:
    """[..., units, unit]"""
    return torch.nn.functional.pad(words, (0, -words.shape[-1] % unit)).unflatten(-1, (-1, unit))


def _from_bytes(words: Tensor, bits: int) -> Tensor:
    """Of codes that never leave their byte; without anything wider than a byte on the way."""
    # Only a copy is sure to have neighbours next to each other: `contiguous` ignores dimensions of size 1.
    held = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 8:
        return held
    return torch.stack([(held >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)], dim=-1).flatten(-2)


def _from_planes(units: Tensor, bits: int) -> Tensor:
    """[..., units, bits] words"""
    codes = torch.zeros(*units.shape[:-1], _WORD, dtype=torch.uint8, device=units.device)
    shift = 0
    while shift < bits:
        width = next(width for width in (4, 2, 1) if shift + width <= bits)
        codes |= _from_bytes(units[..., shift : shift + width], width) << shift
        shift += width
    return codes.flatten(-2)


def _from_words(units: Tensor, bits: int, count: int) -> Tensor:
    """[..., units, words] to `count` codes of each unit."""
    mask = (1 << bits) - 1
    codes = torch.empty(*units.shape[:-1], count, dtype=torch.uint8, device=units.device)
    for place in range(count):
        word, shift = divmod(place * bits, _WORD)
        held = units[..., word] >> shift
        if (low := _WORD - shift) < bits:
            # A shift to the right brings copies of the sign along.
            held = (held & ((1 << low) - 1)) | (units[..., word + 1] << low)
        codes[..., place] = held & mask
    return codes.flatten(-2)
