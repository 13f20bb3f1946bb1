"""Rotary embedding: the table of cosines and sines for every position, under every supported scaling.

All scalings but one change the frequencies once. "dynamic" (NTK-aware, community work of 2023, as in Transformers)
makes the base a function of the sequence's length once that passes the pre-training length. Here position p is
always turned with the base for length p + 1. A token's K then depends on its position alone: not on how its prompt
was cut, which batch it was in, or what came later, so cached K stays valid. It equals Transformers for prompts within
the pre-training length, however far generation then goes; for a longer prompt Transformers turns all its positions
with the base of the whole prompt, and the results differ.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..config.model import ModelConfig, RopeScaling

_AT_ONCE = 1024


class RopeTable:
    """The table of one model, for as many positions as its requests may have."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._config = config
        self._device = device
        self.cos_sin = torch.empty(0, config.head_dim, dtype=torch.float32, device=device)
        """[positions, head_dim] float32: cosines in the first half of the columns, sines in the second."""

    def resize(self, length: int) -> None:
        """Makes it `length` positions long."""
        if len(self.cos_sin) != length:
            self.cos_sin = cos_sin_table(self._config, length, self._device)

    @staticmethod
    def bytes_per_position(head_dim: int) -> int:
        """Bytes that one more position takes."""
        return torch.float32.itemsize * head_dim


def cos_sin_table(config: ModelConfig, length: int, device: torch.device) -> Tensor:
    """[length, head_dim] float32, see `RopeTable`. A position's row does not depend, to the bit, on `length`: parts of
    one size are computed, because vector instructions may round differently at the end of a tensor.
    """
    parts = [_part(config, first) for first in range(0, length, _AT_ONCE)]
    return torch.cat(parts)[:length].to(device) if parts else torch.empty(0, config.head_dim, device=device)


def _part(config: ModelConfig, first: int) -> Tensor:
    """Rows of `_AT_ONCE` positions."""
    rope = config.rope
    positions = torch.arange(first, first + _AT_ONCE).float()[:, None]
    if rope.rope_type == "dynamic":
        angles = positions * _dynamic_frequencies(rope, config.head_dim, positions + 1)
    else:
        angles = positions * _FREQUENCIES[rope.rope_type](rope, config.head_dim)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * _attention_factor(rope)


def _exponents(head_dim: int) -> Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim


def _default(rope: RopeScaling, head_dim: int) -> Tensor:
    return 1.0 / rope.theta ** _exponents(head_dim)


def _linear(rope: RopeScaling, head_dim: int) -> Tensor:
    """Positions divided by the factor (Chen et al., 2023)."""
    return _default(rope, head_dim) / rope.factor


def _llama3(rope: RopeScaling, head_dim: int) -> Tensor:
    """Long waves are stretched, short ones kept, and those between blended (Llama 3.1)."""
    frequencies = _default(rope, head_dim)
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / rope.factor


def _yarn(rope: RopeScaling, head_dim: int) -> Tensor:
    """As llama3, with a ramp over the dimension instead of the wave length (Peng et al., 2023)."""
    frequencies = _default(rope, head_dim)

    def dimension(turns: float) -> float:
        waves = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_dim * math.log(waves) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    stretched = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return (1 - stretched) * frequencies + stretched * frequencies / rope.factor


_FREQUENCIES: dict[str, Callable[[RopeScaling, int], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def _dynamic_frequencies(rope: RopeScaling, head_dim: int, lengths: Tensor) -> Tensor:
    """[N, head_dim / 2]: frequencies for each of `lengths` [N, 1], see the head of this file."""
    original = rope.original_max_position_embeddings
    growth = rope.factor * lengths.clamp(min=original) / original - (rope.factor - 1)
    bases = rope.theta * growth ** (head_dim / (head_dim - 2))
    return 1.0 / bases ** _exponents(head_dim)


def _attention_factor(rope: RopeScaling) -> float:
    """YaRN sharpens attention by scaling q and k alike; other types leave them."""
    if rope.rope_type != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.mscale is not None and rope.mscale_all_dim is not None:
        return temperature(rope.mscale) / temperature(rope.mscale_all_dim)
    return temperature(1.0)
