"""Checkpoints with the configurations that are published, as users start them: nothing but the folder."""

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama
from support.compressed import preset, rounding
from support.loading import load
from support.oracle import oracle
from support.packed_files import write_packed
from support.probabilities import PROMPTS, log_probabilities, of_groups
from support.published_quantised import PUBLISHED, SIZES, Published
from support.thread_ranks import thread_groups
from torch import nn

from text_generation_server.config.kv_cache import quantised_kv_cache
from text_generation_server.config.model import ModelConfig


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, **SIZES, initializer_range=0.1)


def written(plain: Path, folder: Path, published: Published) -> dict[str, torch.Tensor]:
    """Writes the checkpoint, and returns the weights that it stands for."""
    meant = write_packed(plain, folder, published.case)
    if published.file:
        (folder / published.file).write_text(json.dumps(published.config))
    path = folder / "model.safetensors"
    beside = {f"model.layers.{layer}.{end}": each for layer in (0, 1) for end, each in published.beside.items()}
    save_file({**load_file(path), **{name: each.clone() for name, each in beside.items()}}, path)
    return meant


def round_inputs(model: nn.Module, folder: Path, preset_name: str) -> None:
    """Makes the reference round what 8-bit matrices read."""
    stored = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if preset_name and ({f"{name}.weight_scale", f"{name}.weight_scale_inv"} & set(stored)):
            inputs = preset(preset_name).input_activations
            assert inputs is not None
            static = stored.get(f"{name}.input_scale", stored.get(f"{name}.activation_scale"))
            module.register_forward_pre_hook(rounding(inputs, None if static is None else static.float().view(1)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_all_that_is_needed(
    plain: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    published = PUBLISHED[name]
    meant = written(plain, tmp_path / "made", published)
    model = oracle(plain)
    model.load_state_dict(meant)
    round_inputs(model, tmp_path / "made", published.inputs)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([ids])).logits[0] for ids in PROMPTS]).log_softmax(-1)
    assert quantised_kv_cache("auto", ModelConfig.from_folder(tmp_path / "made")) == published.kv_cache
    with caplog.at_level(logging.WARNING):
        loaded = load(tmp_path / "made")
    # AutoGPTQ's biases are zeros, but nothing says so before they are read.
    assert bool(caplog.records) == (name == "TheBloke GPTQ")
    for computed in (log_probabilities(loaded), *of_groups(tmp_path / "made", thread_groups(2))):
        if published.inputs:
            # What is rounded otherwise is apart, and each rank measures the scales of its own part of the inputs.
            assert (computed - expected).abs().mean() < (0.02 if published.inputs == "FP8" else 0.15)
        else:
            torch.testing.assert_close(computed, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["nvidia FP8", "nvidia FP8 in config.json", "neuralmagic FP8-KV of AutoFP8"])
def test_scales_of_keys_and_values_are_found_by_their_published_names(plain: Path, tmp_path: Path, name: str) -> None:
    written(plain, tmp_path / "made", PUBLISHED[name])
    given = load(tmp_path / "made", kv_cache="fp8_e4m3fn").caches[0].given_scales
    assert given is not None
    values = [float(each.flatten()[0]) for each in PUBLISHED[name].beside.values()]
    torch.testing.assert_close(given, torch.tensor([[values[0], values[-1]]] * 2).bfloat16())
