"""Tables of a step: each token in one tile of its adapter, each tile in one work item for each page."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray

from text_generation_kernels import AdapterPages, AdapterTables, TableSizes, adapter_tables

PAGES = some.lists(some.lists(some.integers(0, 999), min_size=1, max_size=5), min_size=1, max_size=9)
NONE = AdapterPages.of([])


def _read(tables: AdapterTables, pages: list[list[int]], adapters: NDArray[np.int64]) -> list[int]:
    """The tokens of all tiles, in order, having checked that each tile has one adapter, and its pages in order."""
    tokens: list[int] = []
    items = 0
    for tile, (first, count, item, num_pages) in enumerate(tables.tiles.tolist()):
        if count == 0:
            assert [first, item, num_pages] == [0, 0, 0]
            continue
        assert (first, item) == (len(tokens), items)
        members = tables.order[first : first + count].tolist()
        (adapter,) = set(adapters[members].tolist())
        expected = [] if adapter < 0 else pages[adapter]
        assert tables.work[item : item + num_pages].tolist() == [[page, tile] for page in expected]
        tokens += members
        items += num_pages
    assert (tables.work[items:] == -1).all()
    return tokens


@settings(deadline=None, derandomize=True, database=None)
@given(pages=PAGES, tile_tokens=some.sampled_from([16, 64]), data=some.data())
def test_any_step_fits_the_capacity_of_its_size(
    pages: list[list[int]], tile_tokens: int, data: some.DataObject
) -> None:
    """Tokens keep their order within an adapter, base tokens come first, and none is left out."""
    runs = data.draw(some.lists(some.tuples(some.integers(-1, len(pages) - 1), some.integers(1, 40)), max_size=12))
    adapters = np.repeat([each for each, _ in runs], [length for _, length in runs]).astype(np.int64)
    sizes = TableSizes.of(len(adapters), len(pages), 5, tile_tokens, pages=sum(map(len, pages)))
    assert sizes.work <= TableSizes.of(len(adapters), len(pages), 5, tile_tokens).work
    tables = adapter_tables(adapters, AdapterPages.of(pages), sizes)
    assert [each.dtype for each in tables] == [np.int32] * 3
    assert (tables.tiles.shape, tables.work.shape) == ((sizes.tiles, 4), (sizes.work, 2))
    tokens = _read(tables, pages, adapters)
    assert tokens == sorted(range(len(adapters)), key=lambda token: (adapters[token], token))
    full = tables.tiles[:, 1].tolist()
    assert max(full, default=0) <= tile_tokens
    assert sum(full) == len(adapters)
    needed = TableSizes.needed(adapters, AdapterPages.of(pages), tile_tokens)
    assert needed == (int((tables.tiles[:, 1] > 0).sum()), int((tables.work[:, 0] >= 0).sum()), tile_tokens)
    for found, padded in zip(adapter_tables(adapters, AdapterPages.of(pages), needed), tables, strict=True):
        assert found.tolist() == padded[: len(found)].tolist()


def test_full_tiles_come_first_and_a_page_meets_every_tile_of_its_adapter() -> None:
    adapters = np.array([1] * 18 + [-1] + [0] * 2)
    tables = adapter_tables(adapters, AdapterPages.of([[7], [3, 5]]), TableSizes(5, 6))
    assert tables.order.tolist() == [18, 19, 20, *range(18)]
    assert tables.tiles.tolist() == [[0, 1, 0, 0], [1, 2, 0, 1], [3, 16, 1, 2], [19, 2, 3, 2], [0, 0, 0, 0]]
    assert tables.work.tolist() == [[7, 1], [3, 2], [5, 2], [3, 3], [5, 3], [-1, -1]]


def test_a_step_without_adapters_has_tiles_without_pages() -> None:
    tables = adapter_tables(np.full(17, -1), NONE, TableSizes(3, 0))
    assert tables.tiles.tolist() == [[0, 16, 0, 0], [16, 1, 0, 0], [0, 0, 0, 0]]
    assert tables.work.shape == (0, 2)


def test_what_does_not_fit_is_refused_with_its_numbers() -> None:
    pages = AdapterPages.of([[1, 2]])
    with pytest.raises(ValueError, match=re.escape("adapters must be -1 to 0, and at most 32766 (given: 0 to 1)")):
        adapter_tables(np.array([0, 1]), pages, TableSizes(2, 2))
    with pytest.raises(ValueError, match="2 tiles and 4 work items exceed the capacity of 1 and 4"):
        adapter_tables(np.zeros(17, np.int64), pages, TableSizes(1, 4))
    with pytest.raises(ValueError, match="2 tiles and 4 work items exceed the capacity of 2 and 3"):
        adapter_tables(np.zeros(17, np.int64), pages, TableSizes(2, 3))
