"""Every vision tower against transformers: rows of items of several sizes, in whatever slices their blocks are run."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from support.loading import load
from support.vision_cases import TOKEN, VISION_CASES, Item, expected, views_of
from transformers import PreTrainedModel

from text_generation_server.errors import InvalidRequest
from text_generation_server.models.encoder import Encoder

Loaded = tuple[Encoder, PreTrainedModel]


@pytest.fixture(scope="session")
def load_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    """The encoder of a case, of a model as its saved files give it, and the model of transformers."""

    @cache
    def loaded(name: str) -> Loaded:
        folder = tmp_path_factory.mktemp("vision")
        model = VISION_CASES[name].write(folder)
        return encoder_of(folder), model

    return loaded


def encoder_of(folder: Path, dtype: torch.dtype = torch.float32) -> Encoder:
    encoder = load(folder, dtype).encoder
    assert encoder is not None
    return encoder


def encode(encoder: Encoder, views: list[torch.Tensor], item: Item, slices: int = 10**6) -> torch.Tensor:
    state = encoder.begin(views, item.grid)
    for first in range(0, encoder.layers, slices):
        encoder.run(state, first, min(slices, encoder.layers - first))
    return encoder.finish(state)


@pytest.mark.parametrize("name", VISION_CASES)
def test_rows_are_those_of_transformers(name: str, load_case: Callable[[str], Loaded]) -> None:
    case, (encoder, model) = VISION_CASES[name], load_case(name)
    for item in case.items:
        views = views_of(item.views)
        rows = encode(encoder, views, item)
        assert rows.shape == (encoder.rows(item.views, item.grid), encoder.levels, encoder.hidden)
        torch.testing.assert_close(rows, expected(case, model, views, item), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", VISION_CASES)
def test_slices_change_no_bit(name: str, load_case: Callable[[str], Loaded]) -> None:
    encoder, _ = load_case(name)
    item = VISION_CASES[name].items[-1]
    views = views_of(item.views, seed=1)
    whole = encode(encoder, views, item)
    for slices in range(1, encoder.layers):
        assert torch.equal(encode(encoder, views, item, slices), whole)


@pytest.mark.parametrize("name", VISION_CASES)
def test_views_of_other_sizes_are_refused_by_their_numbers(name: str, load_case: Callable[[str], Loaded]) -> None:
    encoder, _ = load_case(name)
    good = VISION_CASES[name].items[0].views[0]
    for size in VISION_CASES[name].refused:
        with pytest.raises(InvalidRequest, match=rf"`views\[1\]` is {size[0]} x {size[1]}"):
            encoder.rows([good, size])
    with pytest.raises(InvalidRequest, match="`views`"):
        encoder.rows([])


@pytest.mark.parametrize("name", VISION_CASES)
def test_encoders_say_what_they_are(name: str, load_case: Callable[[str], Loaded]) -> None:
    encoder, _ = load_case(name)
    values = {"token_id": TOKEN, "hidden": 32, "levels": 1, "whole_spans": False, "axes": False}
    for key, value in {**values, **VISION_CASES[name].values}.items():
        assert getattr(encoder, key) == value


@pytest.mark.parametrize("name", VISION_CASES)
def test_a_sample_is_an_item_of_about_so_many_pixels(name: str, load_case: Callable[[str], Loaded]) -> None:
    encoder, _ = load_case(name)
    for pixels in (1, 1000, 40000):
        sample = encoder.sample(pixels)
        total = sum(height * width for height, width in sample)
        assert total <= pixels or total == sum(height * width for height, width in encoder.sample(1))
        assert total > pixels / 2 or pixels < 2000
        rows = encode(encoder, views_of(sample), Item(sample))
        assert len(rows) == encoder.rows(sample)


@pytest.mark.parametrize("name", ["llava next", "llava onevision"])
@pytest.mark.parametrize("grid", [(5, 8), (3, 7), (0, 8), (4, 9)])
def test_grids_that_no_frame_leaves_are_refused(
    name: str, grid: tuple[int, int], load_case: Callable[[str], Loaded]
) -> None:
    encoder, _ = load_case(name)
    with pytest.raises(InvalidRequest, match=rf"`grid_height` x `grid_width` is {grid[0]} x {grid[1]}"):
        encoder.rows([(16, 16), (16, 32)], grid)


def test_grids_of_positions_are_those_of_the_view(load_case: Callable[[str], Loaded]) -> None:
    encoder, _ = load_case("qwen3 vl")
    assert encoder.rows([(16, 24)], (2, 3)) == 6
    with pytest.raises(InvalidRequest, match="`grid_height` x `grid_width` is 3 x 2"):
        encoder.rows([(16, 24)], (3, 2))


@pytest.mark.parametrize("name", VISION_CASES)
def test_rows_have_the_type_of_the_model(name: str, tmp_path: Path) -> None:
    case = VISION_CASES[name]
    model = case.write(tmp_path)
    item = case.items[0]
    views = views_of(item.views)
    rows = encode(encoder_of(tmp_path, torch.bfloat16), views, item)
    assert rows.dtype == torch.bfloat16
    wanted = expected(case, model, views, item)
    assert (rows.float() - wanted).norm() < case.rounding * wanted.norm()
