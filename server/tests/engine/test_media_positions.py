"""Positions of media against transformers, wherever a prompt is cut."""

import random
from itertools import groupby

import numpy as np
import pytest
import torch
from support.families import model_of

from text_generation_server.engine.media_positions import pool_rows, rope_delta, rope_positions, seen_ends
from text_generation_server.engine.media_requests import MediaSpan


def random_spans(dice: random.Random) -> tuple[tuple[MediaSpan, ...], int]:
    """Some spans, and the length of their prompt."""
    position, spans = dice.randint(0, 3), []
    for _ in range(dice.randint(1, 4)):
        grid = dice.randint(1, 6), dice.randint(1, 6)
        spans.append(MediaSpan(position, grid[0] * grid[1], dice.randint(0, 99), *grid))
        position = spans[-1].end + dice.randint(1, 4)
    return tuple(spans), position


@pytest.mark.parametrize(
    "name", ["qwen2 vl", "qwen2.5 vl", "qwen3 vl", "qwen3 vl moe", "qwen3.5 images", "glm4v", "glm4v moe"]
)
def test_rotary_positions_are_those_of_transformers(name: str) -> None:
    model, dice = model_of(name).model, random.Random(0)
    merged = model.config.vision_config.spatial_merge_size
    for _ in range(40):
        spans, length = random_spans(dice)
        kinds = torch.zeros(1, length, dtype=torch.int32)
        for span in spans:
            kinds[0, span.first : span.end] = 1
        grids = torch.tensor([[1, merged * span.grid_height, merged * span.grid_width] for span in spans])
        expected, delta = model.get_rope_index(kinds.long(), kinds, image_grid_thw=grids)
        assert rope_positions(spans, 0, length).tolist() == expected[:, 0].tolist()
        assert rope_delta(spans) == delta.item()


def test_no_cut_changes_a_position() -> None:
    dice = random.Random(1)
    for _ in range(40):
        spans, length = random_spans(dice)
        whole = rope_positions(spans, 0, length)
        ends = seen_ends(spans, 0, length)
        rows = np.full(length, -1)
        for inside, row in pool_rows(spans, 0, length):
            rows[inside] = np.arange(row, row + inside.stop - inside.start)
        first = dice.randrange(length)
        count = dice.randint(1, length - first)
        cut = slice(first, first + count)
        assert rope_positions(spans, first, count).tolist() == whole[:, cut].tolist()
        assert seen_ends(spans, first, count).tolist() == ends[cut].tolist()
        found = np.full(count, -1)
        for inside, row in pool_rows(spans, first, count):
            found[inside] = np.arange(row, row + inside.stop - inside.start)
        assert found.tolist() == rows[cut].tolist()


def test_a_token_of_a_span_sees_the_whole_span() -> None:
    spans = (MediaSpan(2, 3, 0), MediaSpan(6, 2, 3))
    assert seen_ends(spans, 0, 9).tolist() == [1, 2, 5, 5, 5, 6, 8, 8, 9]


def test_text_after_an_image_goes_on_from_its_longer_side() -> None:
    spans = (MediaSpan(2, 6, 0, 2, 3),)
    along = rope_positions(spans, 0, 10)
    assert [len(list(group)) for _, group in groupby(along[0])] == [1, 1, 6, 1, 1]
    assert along.T.tolist()[2:] == [
        *([2, 2, 2], [2, 2, 3], [2, 2, 4]),
        *([2, 3, 2], [2, 3, 3], [2, 3, 4]),
        *([5, 5, 5], [6, 6, 6]),
    ]
    assert rope_delta(spans) == -3
