"""What follows from the machine and the model before anything is loaded."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from support.server_config import server_config

from text_generation_server.config.json_object import JsonObject
from text_generation_server.config.model import ModelConfig, parse_model_config
from text_generation_server.config.parallel import ParallelConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine import loading
from text_generation_server.engine.loading import (
    build_engine,
    check_memory,
    choose_device,
    cpu_threads,
    load_into,
)
from text_generation_server.errors import ConfigurationError, OutOfMemory
from text_generation_server.models.builder import DecoderBuilder
from text_generation_server.models.registry import load_model
from text_generation_server.models.sizes import bytes_of_weights


def llama(hidden_size: int, intermediate_size: int) -> ModelConfig:
    sizes = {"vocab_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8}
    sizes |= {"hidden_size": hidden_size, "intermediate_size": intermediate_size}
    return parse_model_config(JsonObject({"architectures": ["LlamaForCausalLM"], **sizes}, "config.json"), None)


SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL = llama(256, 1280)
LARGE = llama(4096, 14336)
CORES = len(os.sched_getaffinity(0))


def test_ranks_share_the_cores_and_a_small_model_has_one() -> None:
    assert cpu_threads(LARGE, 1, None) == CORES
    assert cpu_threads(LARGE, 2 * CORES, None) == 1
    assert cpu_threads(SMALL, 1, None) == 1
    assert cpu_threads(SMALL, 1, 3) == cpu_threads(LARGE, 1, 3) == 3


@pytest.mark.parametrize(
    ("dtype", "world_size", "fits"),
    [("float32", 1, False), ("bfloat16", 1, True), ("float32", 2, False), ("float32", 4, True)],
)
def test_weights_are_compared_with_the_memory_left_before_they_are_read(
    dtype: str, world_size: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedding, 2 of 8 MB in float32, is whole on every rank."""
    (tmp_path / "model.safetensors").write_bytes(bytes(4_000_000))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (4_500_000, 9_000_000))
    model = dataclasses.replace(SMALL, dtype="bfloat16")
    served = getattr(torch, dtype)
    whole = bytes_of_weights(tmp_path, model, served.itemsize, are_read=True)
    arguments = (whole, model, served, torch.device("cuda", 0), ParallelConfig(0, world_size))
    if fits:
        check_memory(*arguments)
    else:
        with pytest.raises(OutOfMemory, match=r"cuda:0 has 0\.0 GiB left: .*--num-shard"):
            check_memory(*arguments)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "OlmoeForCausalLM"])
def test_random_weights_that_do_not_fit_are_refused_before_they_are_made(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is in the folder beside: nobody reads it."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 64, "num_attention_heads": 8}
    config = {"architectures": [architecture], "vocab_size": 64, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"1")
    monkeypatch.setattr(loading, "available_host_memory", lambda: 3 * 2**30)
    with pytest.raises(OutOfMemory, match=r"take \d+\.\d GiB, and the machine has 3\.0 GiB left: use a smaller"):
        build_engine(server_config(tmp_path, {}, load_format="dummy"), tmp_path)


def test_ranks_of_one_host_share_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bytes_of_weights(tmp_path, LARGE, 4, are_read=False)
    assert whole is not None
    monkeypatch.setattr(loading, "available_host_memory", lambda: whole * 3 // 4)
    for ranks in (1, 2):
        with pytest.raises(OutOfMemory, match="the machine has"):
            check_memory(whole, LARGE, torch.float32, torch.device("cpu"), ParallelConfig(0, ranks))


@pytest.mark.parametrize(
    ("architecture", "message"),
    [("LlamaForCausalLM", "the model has no experts: leave it out"), ("OlmoeForCausalLM", "runs through Transformers")],
)
def test_whole_experts_need_a_mixture_of_ours(tmp_path: Path, architecture: str, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], "vocab_size": 64, **SIZES}))
    config = server_config(tmp_path, {}, expert_parallel=True)
    with pytest.raises(ConfigurationError, match=f"--enable-expert-parallel .*{message}"):
        build_engine(config, tmp_path)


def test_a_shard_without_a_device_is_told_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigurationError, match=r"shard 2 of this host, where 2 .* --num-shard to at most 2"):
        choose_device(2)


def test_memory_that_runs_out_while_weights_are_read_is_told_with_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(_: DecoderBuilder, __: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(DecoderBuilder, "build", build)
    device = torch.device("cpu")
    group = TensorParallelGroup(0, 1, device)
    with pytest.raises(OutOfMemory, match=r"the weights do not fit: .* GiB of them are on .* are left; use more"):
        load_into(device, lambda: load_model(tmp_path, SMALL, group, torch.float32, device, "dummy"))
