"""Rotary embedding: the table of cosines and sines for every position, under every supported scaling.

All scalings but one change the frequencies once. "dynamic" (NTK-aware, community work of 2023, as in Transformers)
makes the base a function of the sequence's length once that passes the pre-training length. Here position p is
always rotated with the base for length p + 1. A token's K then depends on its position alone: not on how its prompt
was cut, which batch it was in, or what came later, so cached K stays valid.

Results equal those of Transformers for prompts within the pre-training length, however far generation then goes. They
differ for longer prompts, whose positions Transformers all rotates with the base of the whole prompt.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..config.rotary import QueryGrowth, RopeSpec

_AT_ONCE = 1024


class RopeTable:
    """The table of one rotary embedding, for as many positions as requests may have."""

    def __init__(
        self, rope: RopeSpec | None, head_dim: int, device: torch.device, growth: QueryGrowth | None = None
    ) -> None:
        """`growth` is that of queries that nothing rotates."""
        self._rope = rope
        self._growth = growth if rope is None else rope.query_growth
        self._head_dim = head_dim
        self._device = device
        self.cos_sin = torch.empty(0, head_dim, dtype=torch.float32, device=device)
        """[positions, head_dim] float32: cosines in the first half of the columns, sines in the second. Element i of a
        head is rotated with element i + head_dim / 2, in the order that `rotary_order` brings them to."""
        self._axes: Tensor | None = None
        if rope is not None and rope.axes:
            rest = [0] * (head_dim // 2 - len(rope.axes))
            self._axes = torch.tensor((*rope.axes, *rest) * 2, device=device)
        self.query_scales: Tensor | None = None
        """[positions] float32: the factor of queries at each position."""

    def resize(self, length: int) -> None:
        """Extends or cuts the table to `length` positions."""
        if len(self.cos_sin) == length:
            return
        if self._rope is None:
            self.cos_sin = _identity(1, self._head_dim, self._device).expand(length, -1)
        else:
            self.cos_sin = cos_sin_table(self._rope, self._head_dim, length, self._device)
        if self._growth is not None:
            self.query_scales = _query_scales(self._growth, length).to(self._device)

    @property
    def has_axes(self) -> bool:
        """Whether pairs of a head count along different axes."""
        return self._axes is not None

    def along_axes(self, positions: Tensor) -> Tensor:
        """Returns rows like those of `cos_sin`, [T, head_dim], for positions [3, T] int64 along the axes. Each pair of
        a head counts along one of these.
        """
        if self._axes is None:
            return self.cos_sin.index_select(0, positions[0])
        return self.cos_sin.gather(0, positions[self._axes].T)

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one more position takes."""
        rotated = 0 if self._rope is None else self._head_dim
        return torch.float32.itemsize * (rotated + (self._growth is not None))


def rotary_order(rope: RopeSpec, head_dim: int) -> list[int]:
    """Returns which element of a stored head belongs at each place, so that the elements of a rotated pair lie at i and
    i + head_dim / 2. Reordering queries and keys alike does not change scores.
    """
    rotated, half = rope.rotary_dim or head_dim, head_dim // 2
    pairs = rotated // 2
    first = list(range(0, rotated, 2)) if rope.interleaved else list(range(pairs))
    second = [element + (1 if rope.interleaved else pairs) for element in first]
    rest = list(range(rotated, head_dim))
    return first + rest[: half - pairs] + second + rest[half - pairs :]


def cos_sin_table(rope: RopeSpec, head_dim: int, length: int, device: torch.device) -> Tensor:
    """Computes [length, head_dim] float32 (`RopeTable`). A position's row does not depend, to the bit, on `length`,
    except with longrope: blocks of one size are computed, because vector instructions may round differently at the end
    of a tensor.
    """
    rotated = rope.rotary_dim or head_dim
    parts = [_block_of(rope, rotated, first, length) for first in range(0, length, _AT_ONCE)]
    if not parts:
        return torch.empty(0, head_dim, device=device)
    angles = torch.cat(parts)[:length]
    if rotated < head_dim:
        identity = _identity(length, head_dim - rotated, angles.device)
        blocks = zip(angles.chunk(2, dim=-1), identity.chunk(2, dim=-1), strict=True)
        angles = torch.cat([part for block in blocks for part in block], dim=-1)
    return angles.to(device)


def _query_scales(growth: QueryGrowth, length: int) -> Tensor:
    """[length] float32."""
    stretches = (torch.arange(length) + growth.first) // growth.length
    return 1 + growth.slope * stretches.float().log1p()


def _identity(length: int, width: int, device: torch.device) -> Tensor:
    """Returns [length, width] of angle 0: cosines 1 and sines 0."""
    row = torch.zeros(width, dtype=torch.float32, device=device)
    row[: width // 2] = 1.0
    return row.repeat(length, 1)


def _block_of(rope: RopeSpec, rotated: int, first: int, length: int) -> Tensor:
    """Computes [_AT_ONCE, rotated], cosines and sines of the positions from `first` on."""
    positions = torch.arange(first, first + _AT_ONCE).float()[:, None]
    if rope.rope_type == "dynamic":
        angles = positions * _dynamic_frequencies(rope, rotated, positions + 1)
    elif rope.rope_type == "longrope":
        angles = positions * _longrope(rope, rotated, length)
    else:
        frequencies = _FREQUENCIES[rope.rope_type](rope, rotated)
        frequencies[len(frequencies) - rope.still_pairs :] = 0.0
        angles = positions * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * _attention_factor(rope)


def _exponents(head_dim: int) -> Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim


def _default(rope: RopeSpec, head_dim: int) -> Tensor:
    return 1.0 / rope.theta ** _exponents(head_dim)


def _linear(rope: RopeSpec, head_dim: int) -> Tensor:
    """Divides positions by the factor (Chen et al., 2023)."""
    return _default(rope, head_dim) / rope.factor


def _llama3(rope: RopeSpec, head_dim: int) -> Tensor:
    """Stretches long waves, keeps short ones, and blends those between (Llama 3.1); Llama 4 has none between, where
    both factors are equal.
    """
    frequencies = _default(rope, head_dim)
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
    if rope.high_freq_factor == rope.low_freq_factor:
        return torch.where(turns > rope.low_freq_factor, frequencies, frequencies / rope.factor)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / rope.factor


def _yarn(rope: RopeSpec, head_dim: int) -> Tensor:
    """Does the same with a ramp over the dimension instead of the wavelength (Peng et al., 2023)."""
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


_FREQUENCIES: dict[str, Callable[[RopeSpec, int], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def _dynamic_frequencies(rope: RopeSpec, head_dim: int, lengths: Tensor) -> Tensor:
    """Returns [N, head_dim / 2], the frequencies for each of `lengths` [N, 1]; the docstring of this file explains
    them.
    """
    original = rope.original_max_position_embeddings
    growth = rope.factor * lengths.clamp(min=original) / original - (rope.factor - 1)
    bases = rope.theta * growth ** (head_dim / (head_dim - 2))
    return 1.0 / bases ** _exponents(head_dim)


def _longrope(rope: RopeSpec, head_dim: int, length: int) -> Tensor:
    """Divides each frequency by a factor (LongRoPE, Ding et al., 2024). There are two sets of factors, for contexts up
    to the original length and beyond. `length`, the longest of a request, chooses for all positions: cached keys must
    be rotated as the queries that read them later.
    """
    factors = rope.long_factors if length > rope.original_max_position_embeddings else rope.short_factors
    return 1.0 / (torch.tensor(factors) * rope.theta ** _exponents(head_dim))


def _attention_factor(rope: RopeSpec) -> float:
    """Returns the factor of q and k by which YaRN and longrope sharpen attention; 1 for other types."""
    if rope.rope_type not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.rope_type == "longrope":
        growth = math.log(max(rope.factor, 1.0)) / math.log(rope.original_max_position_embeddings)
        return math.sqrt(1 + growth)

    if rope.mscale is not None and rope.mscale_all_dim is not None:
        return rope.temperature(rope.mscale) / rope.temperature(rope.mscale_all_dim)
    return rope.temperature(1.0)
