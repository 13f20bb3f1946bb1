"""Adapters of any rank on one site, steps that use them, and what they add, in float64, token by token."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from text_generation_kernels import (
    RANK_UNITS,
    TILE_TOKENS,
    AdapterPages,
    SiteAdapters,
    TableSizes,
    adapter_tables,
    empty_shrunk,
    lora_expand,
    lora_expand_gated,
    lora_shrink,
    part_of_blocks,
    run_of,
)

Range = tuple[int, int, int]
"""First output, end, part."""


@dataclass(frozen=True)
class Site:
    """A layer with adapters. Ranks are those of adapters 0, 1, ...; their pages lie scattered in the pool."""

    ranges: Sequence[Range]
    a: list[Tensor]
    """Of each adapter, `[parts, rank, inputs]`."""
    b: list[Tensor]
    """Of each adapter, `[outputs, rank]`."""
    scales: Tensor
    """`[adapters, parts]`."""
    pages: AdapterPages
    pool_a: Tensor
    pool_b: Tensor
    pool_scale: Tensor

    @cached_property
    def blocks(self) -> Tensor:
        """The part of each block of outputs; it is made once, because a capture cannot bring it to the device."""
        return part_of_blocks(self.ranges, self.pool_b.shape[1], self.pool_b.device)

    @classmethod
    def of(cls, ranks: Sequence[int], ranges: Sequence[Range], inputs: int, dtype: torch.dtype, device: str) -> "Site":
        """Random adapters. Pages that no adapter has are not numbers."""
        parts, outputs = 1 + max(part for *_, part in ranges), max(end for _, end, _ in ranges)
        of_adapter = [-(-rank // RANK_UNITS) for rank in ranks]
        total = sum(of_adapter) + 2
        scattered = torch.randperm(total)[: sum(of_adapter)].split(of_adapter)

        def normal(*shape: int) -> Tensor:
            return (torch.randn(*shape) / shape[-1] ** 0.5).to(dtype).to(device)

        a, b = [normal(parts, rank, inputs) for rank in ranks], [normal(outputs, rank) for rank in ranks]
        scales = torch.rand(len(ranks), parts).to(device) + 0.5

        def pool(*shape: int, dtype: torch.dtype) -> Tensor:
            """Pages with something between them, as in a server, where other sites have theirs there."""
            size = math.prod(shape)
            every = torch.full((total, -(-size // 64) * 64 + 64), float("nan"), dtype=dtype, device=device)
            return every[:, :size].unflatten(1, shape)

        pool_a = pool(parts, RANK_UNITS, inputs, dtype=dtype)
        pool_b, pool_scale = pool(outputs, RANK_UNITS, dtype=dtype), pool(parts, dtype=torch.float32)
        for adapter, own in enumerate(scattered):
            for index, page in enumerate(own.tolist()):
                units = slice(index * RANK_UNITS, min((index + 1) * RANK_UNITS, ranks[adapter]))
                width = units.stop - units.start
                pool_a[page], pool_b[page], pool_scale[page] = 0, 0, scales[adapter]
                pool_a[page, :, :width] = a[adapter][:, units]
                pool_b[page, :, :width] = b[adapter][:, units]
        pages = AdapterPages.of([own.tolist() for own in scattered])
        return cls(ranges, a, b, scales, pages, pool_a, pool_b, pool_scale)

    def step(self, adapters: Sequence[int], tile_tokens: int = TILE_TOKENS, room: int = 0) -> "Step":
        """The tables of tokens that use these adapters, -1 for none, with `room` for more entries."""
        used, counts = np.unique(np.array(adapters, dtype=np.int64), return_counts=True)
        tiles = -(-counts // tile_tokens)
        items = tiles * np.where(used < 0, 0, np.diff(self.pages.starts)[used])
        sizes = TableSizes(int(tiles.sum()) + room, int(items.sum()) + room, tile_tokens)
        tables = adapter_tables(np.array(adapters, dtype=np.int64), self.pages, sizes)
        order, tiles, work = (torch.from_numpy(each).to(self.pool_a.device) for each in tables)
        return Step(self, order, tiles, work, tile_tokens)

    def delta(self, x: Tensor, adapters: Sequence[int]) -> Tensor:
        """What adapters add to the outputs of each token."""
        out = x.new_zeros(len(adapters), len(self.b[0]), dtype=torch.float64)
        for token, adapter in enumerate(adapters):
            for first, end, part in self.ranges if adapter >= 0 else ():
                inner = self.a[adapter][part].double() @ x[token].double() * self.scales[adapter, part].double()
                out[token, first:end] = self.b[adapter][first:end].double() @ inner
        return out


@dataclass(frozen=True)
class Step:
    """The tables of a step on the device."""

    site: Site
    order: Tensor
    tiles: Tensor
    work: Tensor
    tile_tokens: int

    def adapters(self, turn: int, words: Tensor, launch: int = 3) -> SiteAdapters:
        """What fused operators read of it, in a step of this number."""
        site, device = self.site, self.order.device
        used = int((self.tiles[:, 1] > 0).sum()), int((self.work[:, 1] >= 0).sum())
        counts = torch.tensor([turn, *used], dtype=torch.int32, device=device)
        pages = site.pool_a, site.pool_b, site.pool_scale, site.blocks if site.pool_a.shape[1] > 1 else None
        tables = self.order, self.tiles, self.work
        return SiteAdapters(*pages, run_of(site.ranges), *tables, counts, words, launch)

    def run(
        self,
        x: Tensor,
        out: Tensor,
        add: bool = False,
        shrink: Callable[..., Any] = lora_shrink,
        expand: Callable[..., Any] = lora_expand,
    ) -> Tensor:
        """Runs both operators, and returns `out`."""
        expand(*self._shrunk(x, shrink), out, add, run_of(self.site.ranges))
        return out

    def run_gated(
        self,
        x: Tensor,
        base: Tensor,
        activation: str,
        shrink: Callable[..., Any] = lora_shrink,
        expand: Callable[..., Any] = lora_expand_gated,
    ) -> Tensor:
        """Runs both operators of a gated MLP, and returns what they make of the sums of the base."""
        out = base.new_full((len(base), base.shape[1] // 2), float("nan"))
        expand(*self._shrunk(x, shrink), base, activation, out, run_of(self.site.ranges))
        return out

    def _shrunk(self, x: Tensor, shrink: Callable[..., Any]) -> tuple[Any, ...]:
        """Returns all that expand reads, up to the tables."""
        site = self.site
        v = empty_shrunk(x, site.pool_a, self.work, self.tile_tokens).fill_(float("nan"))
        tables = (self.order, self.tiles, self.work)
        shrink(x, site.pool_a, site.pool_scale, *tables, v)
        return v, site.pool_b, site.blocks if site.pool_a.shape[1] > 1 else None, *tables
