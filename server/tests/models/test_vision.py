"""Every vision tower against transformers: rows of items of several sizes, in whatever slices their blocks are run."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from support.vision_cases import TOKEN, VISION_CASES, Item, expected, views_of
from transformers import PreTrainedModel

from text_generation_server.config.model import ModelConfig
from text_generation_server.errors import InvalidRequest
from text_generation_server.models.encoder import Encoder
from text_generation_server.models.vision import load_encoder
from text_generation_server.weights import SafetensorsSource

Loaded = tuple[Encoder, PreTrainedModel, Path]


@pytest.fixture(scope="session")
def load_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    """The encoder of a case as its saved files give it, transformers' model, and the folder."""

    @cache
    def loaded(name: str) -> Loaded:
        folder = tmp_path_factory.mktemp("vision")
        model = VISION_CASES[name].write(folder)
        config = ModelConfig.from_folder(folder)
        assert config.text_alone == ""
        assert config.vision is not None
        source = SafetensorsSource(folder, torch.float32, torch.device("cpu"))
        encoder = load_encoder(config.vision, source)
        assert encoder is not None
        return encoder, model, folder

    return loaded


def encode(encoder: Encoder, views: list[torch.Tensor], item: Item, slices: int = 10**6) -> torch.Tensor:
    state = encoder.begin(views, item.grid)
    for first in range(0, encoder.layers, slices):
        encoder.run(state, first, min(slices, encoder.layers - first))
    return encoder.finish(state)


@pytest.mark.parametrize("name", VISION_CASES)
def test_rows_are_those_of_transformers(name: str, load_case: Callable[[str], Loaded]) -> None:
    case, (encoder, model, _) = VISION_CASES[name], load_case(name)
    for item in case.items:
        views = views_of(item.views)
        rows = encode(encoder, views, item)
        assert rows.shape == (encoder.rows(item.views, item.grid), encoder.levels, encoder.hidden)
        torch.testing.assert_close(rows, expected(case, model, views, item), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", VISION_CASES)
def test_slices_change_no_bit(name: str, load_case: Callable[[str], Loaded]) -> None:
    encoder, _, _ = load_case(name)
    item = VISION_CASES[name].items[-1]
    views = views_of(item.views, seed=1)
    whole = encode(encoder, views, item)
    for slices in range(1, encoder.layers):
        assert torch.equal(encode(encoder, views, item, slices), whole)


@pytest.mark.parametrize("name", VISION_CASES)
def test_views_of_other_sizes_are_refused_by_their_numbers(name: str, load_case: Callable[[str], Loaded]) -> None:
    encoder, _, _ = load_case(name)
    good = VISION_CASES[name].items[0].views[0]
    for size in VISION_CASES[name].refused:
        with pytest.raises(InvalidRequest, match=rf"`views\[1\]` is {size[0]} x {size[1]}"):
            encoder.rows([good, size])
    with pytest.raises(InvalidRequest, match="`views` is empty"):
        encoder.rows([])


@pytest.mark.parametrize("name", VISION_CASES)
def test_encoders_say_what_they_are(name: str, load_case: Callable[[str], Loaded]) -> None:
    encoder, _, _ = load_case(name)
    values = {"token_id": TOKEN, "hidden": 32, "levels": 1, "whole_spans": False, "axes": False}
    for key, value in {**values, **VISION_CASES[name].values}.items():
        assert getattr(encoder, key) == value
