"""Published checkpoints with one value or one tensor replaced: they load, or are refused with a message of ours."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama
from support.loading import load
from support.packed_files import write_packed
from support.published_quantised import PUBLISHED, SIZES
from torch import Tensor

from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.quantisation import read_schemes
from text_generation_server.errors import ConfigurationError, ModelFilesError, UnsupportedModel

OURS = ConfigurationError, ModelFilesError, UnsupportedModel
VALUES: list[Any] = [None, -1, 0, 2**70, 1.5, float("nan"), True, "", "x", "re:[", [], ["re:["], [[1]], {}, {"-:[": {}}]
MATRIX = "model.layers.0.mlp.down_proj."


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, **SIZES, num_hidden_layers=1, vocab_size=64)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of all values within."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*path, key))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_wrong_value_of_a_configuration_is_an_error_of_ours(name: str) -> None:
    for *outer, last in places(PUBLISHED[name].config):
        for value in VALUES:
            config = copy.deepcopy(PUBLISHED[name].config)
            holder: Any = config
            for key in outer:
                holder = holder[key]
            holder[last] = value
            with suppress(*OURS):
                schemes = read_schemes(JsonObject({"quantization_config": config}, "config.json"))
                assert schemes.align(MATRIX, "model.layers.0.self_attn.q_proj", "lm_head") > 0


def damaged(tensor: Tensor) -> Iterator[Tensor | None]:
    """None: it is not there."""
    yield None
    yield tensor.new_zeros((0,))
    yield tensor[None]
    yield tensor.float() if tensor.dtype != torch.float32 else tensor.to(torch.int32)
    yield torch.full(tensor.shape, 2**62)
    yield torch.full(tensor.shape, 255, dtype=torch.uint8)
    if tensor.dim():
        yield tensor[:-1]


@pytest.mark.parametrize("name", [name for name, published in PUBLISHED.items() if not published.file])
def test_a_damaged_tensor_is_an_error_of_ours(plain: Path, tmp_path: Path, name: str) -> None:
    write_packed(plain, tmp_path / "made", PUBLISHED[name].case)
    path = tmp_path / "made" / "model.safetensors"
    state = load_file(path)
    refused = 0
    for key in [key for key in state if key.startswith(MATRIX)]:
        for tensor in damaged(state[key]):
            others = {other: each for other, each in state.items() if other != key}
            save_file(others if tensor is None else {**others, key: tensor.contiguous()}, path)
            try:
                load(tmp_path / "made")
            except OURS:
                refused += 1
    assert refused
