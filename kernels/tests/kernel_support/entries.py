"""Entries of compressed attention, and what they must be."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .pool import Pool

EPS = 1e-3


@dataclass(frozen=True)
class Entries:
    """Requests of which each has one new token, the last one."""

    pool: Pool
    rate: int
    offsets: Tensor
    weight: Tensor
    cos_sin: Tensor
    before: Tensor
    """The cache as it was."""

    @classmethod
    def of(
        cls, kv_lens: list[int], rate: int, series: int, size: int, rope: int, dtype: torch.dtype, device: str = "cpu"
    ) -> "Entries":
        pool = Pool(kv_lens, 2 * series, size, dtype, device)
        offsets = torch.randn(series * rate, size).to(device)
        angles = torch.rand(max(kv_lens) + 1, rope // 2) * 6
        cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).to(device)
        return cls(pool, rate, offsets, torch.rand(size).to(device) + 0.5, cos_sin, pool.k.clone())

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.pool.k, self.pool.decodes(), self.rate, self.offsets, self.weight, EPS, self.cos_sin

    def check(self) -> None:
        """Entries are their formula, and nothing else has changed."""
        expected, close = self.before.clone(), {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
        for row, kv_len in zip(self.pool.b_row.tolist(), self.pool.kv_lens, strict=True):
            if kv_len and kv_len % self.rate == 0:
                slots = self.pool.table[row, :kv_len].long()
                expected[slots[-1], 0] = self._entry(slots, kv_len).to(expected.dtype)
        limit = close[expected.dtype]
        torch.testing.assert_close(self.pool.k, expected, atol=limit, rtol=limit, equal_nan=True)

    def _entry(self, slots: Tensor, kv_len: int) -> Tensor:
        cache, rate, rope = self.before.double(), self.rate, self.cos_sin.shape[1]
        read = [cache[slots[-rate:], :2]]
        if cache.shape[1] == 4:
            read.insert(0, cache[slots[-2 * rate : -rate], 2:])
        values, logits = torch.cat(read).unbind(1)
        mean = ((logits + self.offsets[-len(values) :].double()).softmax(dim=0) * values).sum(dim=0)
        normalised = mean / (mean.square().mean() + EPS).sqrt() * self.weight.double()
        x, y, still = normalised.split((rope // 2, rope // 2, len(mean) - rope))
        cos, sin = self.cos_sin[kv_len - rate].double().chunk(2)
        return torch.cat((x * cos - y * sin, y * cos + x * sin, still))
