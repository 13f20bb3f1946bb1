import shutil
from pathlib import Path

import torch
from support.driver import Driver
from support.loading import CPU, load

from text_generation_server.weights import DummySource, Slice


def test_parts_are_those_of_the_same_tensor_on_every_rank() -> None:
    whole = DummySource(torch.float32, CPU).read("a.weight", (12, 8))
    parts = [DummySource(torch.float32, CPU).read("a.weight", (12, 8), Slice(0, i, i + 4)) for i in (0, 4, 8)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(DummySource(torch.float32, CPU).read("b.weight", (12, 8)), whole)


def test_a_model_needs_its_configuration_alone(llama_folder: Path, tmp_path: Path) -> None:
    shutil.copy(llama_folder / "config.json", tmp_path)
    logits = Driver(load(tmp_path, dummy=True)).prefill({"a": [1, 2, 3]})
    assert logits.isfinite().all()
    assert torch.equal(logits, Driver(load(tmp_path, dummy=True)).prefill({"a": [1, 2, 3]}))
