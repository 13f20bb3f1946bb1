"""Matrices of all experts in one tensor are read as if each expert had its own."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.loading import CPU

from text_generation_server.errors import ModelFilesError
from text_generation_server.weights import SafetensorsSource, Slice, StackedSource


@pytest.fixture
def source(tmp_path: Path) -> StackedSource:
    tensors = {
        "layers.0.moe.up.weight": torch.arange(60.0).view(3, 4, 5),
        "layers.0.moe.up.scale": torch.tensor([1.0, 2.0, 3.0]),
        "layers.0.mlp.up.weight": torch.ones(4, 5),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return StackedSource(SafetensorsSource(tmp_path, torch.float32, CPU), ("moe.up.{expert}",), 3)


def test_an_expert_has_its_entry_and_parts_of_it(source: StackedSource) -> None:
    name, whole = "layers.0.moe.up.2.weight", torch.arange(40.0, 60.0).view(4, 5)
    assert source.has(name)
    assert source.shape(name) == (4, 5)
    assert torch.equal(source.read(name, (4, 5)), whole)
    assert torch.equal(source.read(name, (4, 5), Slice(1, 1, 3)), whole[:, 1:3])
    assert torch.equal(source.raw(name, Slice(0, 2, 4)), whole[2:])
    assert torch.equal(source.raw(name), whole)
    assert source.raw("layers.0.moe.up.1.scale").item() == 2.0


def test_other_tensors_are_those_of_the_files(source: StackedSource) -> None:
    assert torch.equal(source.read("layers.0.mlp.up.weight", (4, 5)), torch.ones(4, 5))
    assert not source.has("layers.1.moe.up.0.weight")
    with pytest.raises(ModelFilesError, match=r"`layers\.0\.moe\.up\.weight` has shape \[3, 4, 5\]"):
        source.read("layers.0.moe.up.0.weight", (4, 6))
