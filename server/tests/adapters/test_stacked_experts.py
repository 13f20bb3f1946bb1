"""Adapters of what only some families have: experts whose gates lie in one tensor (Step 3.5), and indexers."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from support.adapters_on_device import on_device
from support.driver import Driver
from support.families import PROMPTS, model_of, write
from support.family_cases import CASES
from support.loading import load
from support.thread_ranks import ThreadGroup, thread_groups, together
from torch import Tensor, nn

from text_generation_server.errors import AdapterError

PARTS = ("gate_proj", "up_proj", "down_proj")


class Matrices(nn.Module):
    """The matrices of one kind of all experts, as the authors of Step 3.5 keep them."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


def write_step(folder: Path) -> Path:
    write(CASES["step"], model_of("step"), folder)
    return folder


def write_experts(base: Path, adapter: Path, merged: Path) -> None:
    """An adapter of PEFT of all experts, and the model into which PEFT has merged it."""
    stored = load_file(base / "model.safetensors")
    root = nn.Module()
    for name, tensor in stored.items():
        module, _, last = name.removesuffix(".weight").rpartition(".")
        if module.endswith(".moe") and last in PARTS:
            owner = root
            for each in module.split("."):
                if not hasattr(owner, each):
                    owner.add_module(each, nn.Module())
                owner = getattr(owner, each)
            owner.add_module(last, Matrices(tensor.clone()))
    targets = [f"moe.{part}.weight" for part in PARTS]
    trained = get_peft_model(root, LoraConfig(r=3, lora_alpha=4, target_modules=[], target_parameters=targets))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2, generator=generator)
    trained.save_pretrained(adapter)
    whole = trained.merge_and_unload().state_dict()
    assert whole.keys() < stored.keys()
    merged.mkdir()
    save_file(stored | whole, merged / "model.safetensors")
    (merged / "config.json").write_bytes((base / "config.json").read_bytes())


def logits(folder: Path, group: ThreadGroup, merge: Path | None = None, beside: Path | None = None) -> Tensor:
    model = load(folder, group=group, merge_adapter=merge)
    checker = None if beside is None else on_device(model, [beside])
    used = {} if beside is None else {"a": 1}
    return Driver(model, max_tokens=32, group=group, adapters=used, checker=checker).prefill({"a": PROMPTS[-1]})


@pytest.mark.parametrize(("ranks", "expert_parallel"), [(1, False), (2, False), (2, True)])
def test_experts_in_one_tensor_are_those_of_peft(ranks: int, expert_parallel: bool, tmp_path: Path) -> None:
    base, adapter, merged = write_step(tmp_path / "base"), tmp_path / "adapter", tmp_path / "merged"
    write_experts(base, adapter, merged)
    expected, plain = (logits(each, thread_groups(1)[0]) for each in (merged, base))
    assert (expected - plain).abs().max() > 1e-3
    for how in ({"merge": adapter}, {"beside": adapter}):
        works = [partial(logits, base, group, **how) for group in thread_groups(ranks, expert_parallel)]
        for found in together(works):
            torch.testing.assert_close(found, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)


def test_experts_of_another_number_are_refused(tmp_path: Path) -> None:
    base = write_step(tmp_path / "base")
    adapter = write_pair(tmp_path / "adapter", "model.layers.1.moe.gate_proj", (2, 32), (20, 2))
    with pytest.raises(AdapterError, match=r"moe.gate_proj` has factors .* which do not fit 6 experts of \[20, 32\]"):
        load(base, merge_adapter=adapter)


@pytest.mark.parametrize("part", ["wq_b", "wk", "weights_proj"])
def test_an_adapter_of_an_indexer_is_for_merging_alone(part: str, tmp_path: Path) -> None:
    base, module = tmp_path / "base", f"model.layers.1.self_attn.indexer.{part}"
    write(CASES["deepseek v3.2"], model_of("deepseek v3.2"), base)
    outputs, inputs = load_file(base / "model.safetensors")[f"{module}.weight"].shape
    adapter = write_pair(tmp_path / "adapter", module, (2, inputs), (outputs, 2))
    with pytest.raises(AdapterError, match=rf"changes `{module}.weight`, which .* --merge-adapter"):
        on_device(load(base), [adapter])
    # Long enough for positions to be left out.
    group = thread_groups(1)[0]
    assert (logits(base, group, merge=adapter) - logits(base, group)).abs().max() > 1e-4


def write_pair(folder: Path, module: str, a: tuple[int, int], b: tuple[int, int]) -> Path:
    folder.mkdir()
    generator = torch.Generator().manual_seed(3)
    shapes = {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}
    factors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(factors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    return folder
