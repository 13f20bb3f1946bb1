"""Codes of 1 to 8 bits, packed into words of 32 bits, the lowest bits first."""

from dataclasses import dataclass
from math import gcd
from typing import Literal

import torch
from torch import Tensor

_WORD = 32


@dataclass(frozen=True)
class Packing:
    """How codes are packed along the last dimension of a tensor of words.

    - "dense": one stream of bits, so that codes of 3, 5, 6 or 7 bits may begin in one word and end in the next.
    - "padded": bits of a word that hold no whole code stay empty.
    - "planes": of 32 codes, the lowest 4 bits (2 bits of 3-bit codes) come first, then the next 2 and 1, as in
      GPTQModel.

    All three are the same for 1, 2, 4 and 8 bits.
    """

    bits: int
    layout: Literal["dense", "padded", "planes"] = "dense"

    @property
    def _unit(self) -> tuple[int, int]:
        """The fewest codes that fill whole words, and the number of these words."""
        if self.layout == "padded":
            return _WORD // self.bits, 1
        common = gcd(self.bits, _WORD) if self.layout == "dense" else 1
        return _WORD // common, self.bits // common

    def words(self, count: int) -> int:
        """Returns how many words `count` codes need."""
        return -(-count // (_WORD // self.bits)) if self.layout == "padded" else -(-count * self.bits // _WORD)

    def span(self, start: int, stop: int, count: int) -> tuple[int, int, int]:
        """Returns the words that hold codes `start` to `stop` of `count`: first word, end, and the number of codes in
        them before `start`.
        """
        codes, words = self._unit
        first, last = start // codes, -(-stop // codes)
        return first * words, min(last * words, self.words(count)), start - first * codes

    def unpack(self, words: Tensor, count: int, skip: int = 0) -> Tensor:
        """Unpacks [..., W] int32 to [..., count] uint8, without the first `skip` codes."""
        if 8 % self.bits == 0:
            codes = _from_bytes(words, self.bits)
        elif self.layout == "planes":
            codes = _from_planes(_padded(words, self.bits), self.bits)
        else:
            codes = _from_words(_padded(words, self._unit[1]), self.bits, self._unit[0])
        return codes[..., skip : skip + count]


def packing_of(words: int, count: int, bits: int) -> Packing | None:
    """Returns the packing with which `count` codes fill exactly `words` words, dense if both do. None: neither does."""
    layouts = (Packing(bits), Packing(bits, "padded"))
    return next((each for each in layouts if each.words(count) == words), None)


def halves(packed: Tensor, upper_first: bool = False) -> Tensor:
    """Unpacks bytes [..., B] to their 4-bit codes [..., 2 * B]."""
    low, high = packed & 15, packed >> 4
    return torch.stack((high, low) if upper_first else (low, high), dim=-1).flatten(-2)


def _padded(words: Tensor, unit: int) -> Tensor:
    """Pads words with zeros to [..., units, unit]."""
    return torch.nn.functional.pad(words, (0, -words.shape[-1] % unit)).unflatten(-1, (-1, unit))


def _from_bytes(words: Tensor, bits: int) -> Tensor:
    """Unpacks codes that never cross a byte, without intermediate values wider than a byte."""
    # Only a copy is contiguous for certain: `contiguous` ignores dimensions of size 1.
    held = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 8:
        return held
    return torch.stack([(held >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)], dim=-1).flatten(-2)


def _from_planes(units: Tensor, bits: int) -> Tensor:
    """Unpacks planes: [..., units, bits] words."""
    codes = torch.zeros(*units.shape[:-1], _WORD, dtype=torch.uint8, device=units.device)
    shift = 0
    while shift < bits:
        width = next(width for width in (4, 2, 1) if shift + width <= bits)
        codes |= _from_bytes(units[..., shift : shift + width], width) << shift
        shift += width
    return codes.flatten(-2)


def _from_words(units: Tensor, bits: int, count: int) -> Tensor:
    """Unpacks [..., units, words] to `count` codes of each unit."""
    mask = (1 << bits) - 1
    codes = torch.empty(*units.shape[:-1], count, dtype=torch.uint8, device=units.device)
    for place in range(count):
        word, shift = divmod(place * bits, _WORD)
        held = units[..., word] >> shift
        if (low := _WORD - shift) < bits:
            # A shift to the right extends the sign.
            held = (held & ((1 << low) - 1)) | (units[..., word + 1] << low)
        codes[..., place] = held & mask
    return codes.flatten(-2)
