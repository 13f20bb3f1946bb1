"""Items that are encoded together, and alone."""

import numpy as np
import pytest
import torch
from support.media import PATCH, FakeEncoder

from text_generation_server.engine.media_plans import MediaLimits
from text_generation_server.engine.media_pool import MediaPool
from text_generation_server.engine.media_requests import Encode, MediaPut

SIZES = [(4, 8), (8, 8), (4, 4)]
ENCODES = [Encode(0, 0, 3, 0, 2), Encode(1, 0, 3, 2, 4), Encode(2, 0, 3, 6, 1)]


def _pool(packs: bool, max_pixels: int = 128) -> tuple[MediaPool, FakeEncoder]:
    encoder, random = FakeEncoder(8), np.random.default_rng(0)
    pool = MediaPool(encoder, MediaLimits(rows=16, max_pixels=max_pixels), torch.float32, torch.device("cpu"), packs)
    for item, (height, width) in enumerate(SIZES):
        pixels = random.integers(256, size=3 * height * width, dtype=np.uint8)
        grid = height // PATCH, width // PATCH
        pool.put(MediaPut(item, ((height, width),), grid, height * width // PATCH**2, pixels))
    return pool, encoder


def test_items_that_are_encoded_together_have_rows_of_their_own() -> None:
    (alone, one_each), (together, all_at_once) = _pool(False), _pool(True)
    found = [[(each.row, each.rows) for each in pool.encode(ENCODES)] for pool in (alone, together)]
    assert found == [[(0, 2), (2, 4), (6, 1)]] * 2
    assert (one_each.runs, all_at_once.runs) == ([(0, 3)] * 3, [(0, 3)])
    torch.testing.assert_close(together.rows, alone.rows)


@pytest.mark.parametrize(
    ("encodes", "runs"),
    [
        # The last one is cut.
        ([*ENCODES[:2], Encode(2, 0, 1, 6, 1)], [(0, 3), (0, 1)]),
        # A cut one goes on, and whole ones follow.
        ([Encode(0, 0, 2, 0, 2)], [(0, 2)]),
    ],
)
def test_items_that_are_cut_are_encoded_alone(encodes: list[Encode], runs: list[tuple[int, int]]) -> None:
    pool, encoder = _pool(True)
    pool.encode(encodes)
    assert encoder.runs == runs
    if len(encodes) == 1:
        pool.encode([Encode(0, 2, 1, 0, 2), *ENCODES[1:]])
        assert encoder.runs[1:] == [(2, 1), (0, 3)]


def test_no_more_pixels_than_the_largest_item_has_are_encoded_together() -> None:
    pool, encoder = _pool(True, max_pixels=96)
    pool.encode(ENCODES)
    assert encoder.runs == [(0, 3), (0, 3)]
