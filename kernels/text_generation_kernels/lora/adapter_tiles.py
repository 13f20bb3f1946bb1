"""Tables that tell `lora_shrink` and `lora_expand` which tokens of a step use which rank pages; the host builds them.

Tokens are sorted by adapter and cut into tiles of one adapter each. Shrink computes a work item for each pair of tile
and page of its adapter, expand a tile at a time. Tokens without adapter have tiles without pages, so that expand writes
their zeros. Capacities are fixed by the graph that reads the tables: entries that are not needed are empty.

- `order` [tokens]: the tokens, sorted by adapter, those of one adapter in their own order.
- `tiles` [capacity, 4]: first place in `order`; tokens, 0 in an empty tile; first work item; pages.
- `work` [capacity, 2]: page and tile; both -1 in an empty item.

All are int32. 256 tokens of 64 adapters take 30 us of one core, 8,192 tokens 70 us.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..runtime.batches import tile_capacity

TILE_TOKENS = 16
"""Tokens of a tile; 64 where a step has many tokens of one adapter, so that fewer tiles read each page."""
_MOST_ADAPTERS = 2**15 - 2
"""numpy sorts 16-bit numbers by counting digits, many times as fast as others."""
Ints = NDArray[np.int32]


class AdapterPages(NamedTuple):
    """The pages of adapters 0, 1, ...: of adapter i `pages[starts[i]:starts[i + 1]]`."""

    starts: Ints
    pages: Ints

    @classmethod
    def of(cls, pages: Sequence[Sequence[int]]) -> "AdapterPages":
        """From the pages of each adapter."""
        starts = np.cumsum([0, *map(len, pages)], dtype=np.int32)
        return cls(starts, np.array([page for each in pages for page in each], dtype=np.int32))


class AdapterTables(NamedTuple):
    """What the kernels read, as the module says."""

    order: Ints
    tiles: Ints
    work: Ints


class TableSizes(NamedTuple):
    """Capacities of the tables, and the tokens of a tile."""

    tiles: int
    work: int
    tile_tokens: int = TILE_TOKENS

    @classmethod
    def of(
        cls, tokens: int, adapters: int, most_pages: int, tile_tokens: int = TILE_TOKENS, pages: int | None = None
    ) -> "TableSizes":
        """What any `tokens` tokens of at most `adapters` adapters with at most `most_pages` pages each can need, of
        which all together have at most `pages`.
        """
        adapters = min(tokens, adapters)
        first = adapters * most_pages if pages is None else min(adapters * most_pages, pages)
        # Every adapter has a first tile, and t tokens have (t - 1) // tile_tokens more.
        work = first + max(0, tokens - 1) // tile_tokens * most_pages
        return cls(tile_capacity(tokens, adapters + 1, tile_tokens), work, tile_tokens)

    @classmethod
    def needed(cls, adapters: NDArray[np.integer], pages: AdapterPages, tile_tokens: int = TILE_TOKENS) -> "TableSizes":
        """What exactly these tokens need; the arguments are those of `adapter_tables`."""
        counts = np.bincount(adapters + 1, minlength=len(pages.starts))
        tiles = -(-counts // tile_tokens)
        return cls(int(tiles.sum()), int(tiles @ np.diff(pages.starts, prepend=0)), tile_tokens)


def adapter_tables(adapters: NDArray[np.integer], pages: AdapterPages, sizes: TableSizes) -> AdapterTables:
    """The tables of a step whose token t uses adapter `adapters[t]`, -1 for none.

    Raises ValueError for an adapter that `pages` does not have, and where a capacity is too small.
    """
    known, height = len(pages.starts) - 1, sizes.tile_tokens
    if len(adapters) and not (adapters.min() >= -1 and adapters.max() < known <= _MOST_ADAPTERS):
        raise ValueError(
            f"adapter_tables: adapters must be -1 to {known - 1}, and at most {_MOST_ADAPTERS} "
            f"(given: {adapters.min()} to {adapters.max()})"
        )
    groups = adapters.astype(np.int16) + np.int16(1)
    order = np.argsort(groups, kind="stable").astype(np.int32)
    counts = np.bincount(groups, minlength=known + 1)
    # Of each tile: its group, where that ends in `order`, and its own first place.
    group, member = _members(-(-counts // height))
    ends = np.cumsum(counts)
    first = (ends - counts)[group] + member * height
    tile_pages = np.diff(pages.starts, prepend=0)[group]
    # Of each work item: its tile, and which of its pages.
    tile, index = _members(tile_pages)
    if len(group) > sizes.tiles or len(tile) > sizes.work:
        raise ValueError(
            f"adapter_tables: {len(group)} tiles and {len(tile)} work items exceed the capacity of {sizes.tiles} and "
            f"{sizes.work}"
        )
    tiles, work = np.zeros((sizes.tiles, 4), np.int32), np.full((sizes.work, 2), -1, np.int32)
    written = tiles[: len(group)]
    written[:, 0], written[:, 1] = first, np.minimum(ends[group] - first, height)
    written[:, 2], written[:, 3] = np.cumsum(tile_pages) - tile_pages, tile_pages
    work[: len(tile), 0], work[: len(tile), 1] = pages.pages[pages.starts[group[tile] - 1] + index], tile
    return AdapterTables(order, tiles, work)


def _members(counts: NDArray[np.integer]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For each of `counts.sum()` members of groups that have `counts`: its group, and its number in it."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
