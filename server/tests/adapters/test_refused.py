"""Adapters that are not computed, are incomplete or do not fit are refused by name, with what to do."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.adapters import AdapterCase, rewrite, write_adapter, write_base
from support.loading import CPU, load
from torch import Tensor

from text_generation_server.adapters import BaseModel, Delta, ModelTensors, read_adapter
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.model import ModelConfig
from text_generation_server.errors import AdapterError, ConfigurationError
from text_generation_server.weights import SafetensorsSource

Q = "base_model.model.model.layers.0.self_attn.q_proj"
PLAIN = AdapterCase("llama", {"target_modules": ["q_proj", "down_proj"]})
Tensors = dict[str, Tensor]
TYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a base, written once."""
    root = tmp_path_factory.mktemp("bases")
    return cache(lambda name: write_base(name, root / name))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that nobody changes."""
    folder = tmp_path_factory.mktemp("plain")
    write_adapter(PLAIN, folder)
    return folder


@pytest.fixture
def adapter(plain: Path, tmp_path: Path) -> Path:
    """An adapter that a test may damage."""
    for path in plain.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def base_model(folder: Path) -> BaseModel:
    """What an adapter is read for."""
    config = read_model_config(folder)
    assert isinstance(config, ModelConfig)
    files = SafetensorsSource(folder, torch.float32, CPU)
    return BaseModel(files, ModelTensors.of(config.decoder, config.names, files))


CONFIGURATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"peft_type": "LOHA"}, r"`peft_type` is 'LOHA', and only LORA"),
    "alora": ({"alora_invocation_tokens": [1, 2]}, r"`alora_invocation_tokens` asks for activated LoRA"),
    "qalora": ({"use_qalora": True}, r"`use_qalora` asks for QA-LoRA"),
    "bdlora": ({"use_bdlora": {"nblocks": 2}}, r"`use_bdlora` asks for block-diagonal"),
    "kasa": ({"kasa_config": {"beta": 1}}, r"`kasa_config` asks for KaSA"),
    "velora": ({"velora_config": {"scale": 1}}, r"`velora_config` asks for VeLoRA"),
    "monteclora": ({"monteclora_config": {"a": 1}}, r"`monteclora_config` asks for MonteCLoRA"),
    "replication": ({"layer_replication": [[0, 1]]}, r"`layer_replication` asks for"),
    "arrow": ({"arrow_config": {"top_k": 1}}, r"`arrow_config` asks for Arrow"),
    "megatron": ({"megatron_config": {"a": 1}}, r"`megatron_config` asks for layers of Megatron"),
    "pissa": ({"init_lora_weights": "pissa_niter_4"}, r"`init_lora_weights` 'pissa_niter_4' has changed the base"),
    "olora": ({"init_lora_weights": "olora"}, r"path_initial_model_for_weight_conversion"),
    "corda": ({"init_lora_weights": "corda"}, r"'corda' has changed the base"),
    "loftq": ({"init_lora_weights": "loftq"}, r"'loftq' has changed the base"),
    "lora_ga": ({"init_lora_weights": "lora_ga"}, r"'lora_ga' has changed the base"),
    "new key": ({"use_tomorrow": True}, r"`use_tomorrow` is not known"),
    "alpha": ({"lora_alpha": "high"}, r"`lora_alpha` must be a number above 0, at most 1e\+09, not 'high'"),
    "huge alpha": ({"lora_alpha": 1e308}, r"`lora_alpha` must be a number above 0, at most 1e\+09"),
    "bias": ({"bias": "some"}, r"`bias` must be none, all or lora_only"),
    "slow pattern": ({"alpha_pattern": {"(a+)+": 1}}, r"the pattern '\(a\+\)\+' repeats a group"),
    "large pattern": ({"alpha_pattern": {"a{99999999999}": 1}}, r"is no regular expression"),
    "broken pattern": ({"alpha_pattern": {"(": 1}}, r"is no regular expression"),
    "dora without": ({"use_dora": True}, r"`use_dora` is true, but `.*` has no tensor for it"),
    "lora_bias without": ({"lora_bias": True}, r"`lora_bias` is true, but `.*` has no tensor for it"),
    "not saved": ({"modules_to_save": ["lm_head"]}, r"`modules_to_save` names 'lm_head', but no tensor of it"),
    "no rows": ({"trainable_token_indices": [3]}, r"`trainable_token_indices` names 'embed_tokens', but its rows"),
    "a token twice": ({"trainable_token_indices": [3, 3]}, r"names a token twice"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations(name: str, adapter: Path, base_folder: Callable[[str], Path]) -> None:
    changes, message = CONFIGURATIONS[name]
    rewrite(adapter, **changes)
    with pytest.raises(AdapterError, match=message):
        read_adapter(adapter, base_model(base_folder("llama")))


def _put(name: str, tensor: Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensor}


def _without(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: each for name, each in tensors.items() if name not in names}


def _moved(before: str, after: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(before, after): each for name, each in tensors.items()}


def _ending(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor([0.5] * 127 + [value], dtype=dtype).view(4, 32)


FILES: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "half a pair": (_without(f"{Q}.lora_B.weight"), r"`model\.layers\.0\.self_attn\.q_proj` has no `lora_B`"),
    "no A": (_without(f"{Q}.lora_A.weight"), r"has no `lora_A`: the file is incomplete"),
    "ranks differ": (_put(f"{Q}.lora_A.weight", torch.ones(3, 32)), r"factors \[3, 32\] and \[32, 4\], which do not"),
    "other sizes": (_put(f"{Q}.lora_A.weight", torch.ones(4, 30)), r"`.*q_proj\.weight` of the model is \[32, 32\]"),
    **{
        f"{value} in {dtype}": (_put(f"{Q}.lora_A.weight", _ending(value, dtype)), r"holds NaN or infinite numbers")
        for value in (math.nan, -math.nan, math.inf, -math.inf)
        for dtype in TYPES
    },
    "integers": (_put(f"{Q}.lora_A.weight", torch.ones(4, 32, dtype=torch.int32)), r"has type I32"),
    "empty": (_put(f"{Q}.lora_A.weight", torch.ones(0, 32)), r"is empty: its training has saved a shard"),
    "vector": (_put(f"{Q}.lora_A.weight", torch.ones(32)), r"which do not multiply"),
    "high rank": (
        lambda all: {
            **all,
            f"{Q}.lora_A.weight": torch.ones(300, 32),
            f"{Q}.lora_B.weight": torch.ones(32, 300),
        },
        r"has rank 300, and at most 256",
    ),
    "stray magnitude": (_put(f"{Q}.lora_magnitude_vector", torch.ones(32)), r"`use_dora` is false, but .* a tensor"),
    "stray bias": (_put(f"{Q}.lora_B.bias", torch.ones(32)), r"`lora_bias` is false, but .* a tensor"),
    "magnitude alone": (
        _put("base_model.model.model.layers.0.self_attn.k_proj.lora_magnitude_vector", torch.ones(16)),
        r"k_proj\.lora_magnitude_vector` belong to no pair",
    ),
    "other method": (
        _put(f"{Q}.lora_E", torch.ones(4, 1)),
        r"`model\.layers\.0\.self_attn\.q_proj\.lora_E` belong to no",
    ),
    "no such layer": (_moved("layers.1", "layers.7"), r"`model\.layers\.7\.\S+` belong to no part of this model"),
    "no such module": (_moved("down_proj", "dense"), r"dense`.* belong to no part of this model"),
    "unknown wrapper": (_moved("model.layers", "vision_tower.layers"), r"belong to no part of this model"),
    "two beginnings": (
        _moved("base_model.model.model.layers.0", "base_model.model.layers.0"),
        r"names of its modules begin differently",
    ),
    "token without index": (
        _put("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", torch.ones(2, 32)),
        r"`trainable_token_indices` does not say which tokens",
    ),
    "more tokens": (
        _put("base_model.model.model.embed_tokens.weight", torch.ones(101, 32)),
        r"tokens that the adapter adds need a model with as many rows",
    ),
    "bias of none": (_put(f"{Q}.base_layer.bias", torch.ones(32)), r"replaces `\S+q_proj\.bias`, which the model"),
    "two ways": (_put(f"{Q}.weight", torch.ones(32, 32)), r"q_proj\.weight` of the model is changed in two ways"),
    "nothing": (lambda _: {}, r"the file has no tensors"),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, adapter: Path, base_folder: Callable[[str], Path]) -> None:
    change, message = FILES[name]
    rewrite(adapter, change)
    with pytest.raises(AdapterError, match=message):
        read_adapter(adapter, base_model(base_folder("llama")))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_greatest_numbers_of_a_type_are_read(
    dtype: torch.dtype, adapter: Path, base_folder: Callable[[str], Path]
) -> None:
    greatest = torch.finfo(dtype).max
    for value in (greatest, -greatest):
        rewrite(adapter, _put(f"{Q}.lora_A.weight", _ending(value, dtype)))
        read = read_adapter(adapter, base_model(base_folder("llama")))
        delta = read.changes["model.layers.0.self_attn.q_proj.weight"]
        assert isinstance(delta, Delta)
        assert torch.equal(delta.a, _ending(value, dtype))


def test_folders(adapter: Path, base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    base = base_model(base_folder("llama"))
    with pytest.raises(AdapterError, match=r"is a model, not an adapter: a folder with adapter_config\.json"):
        read_adapter(base_folder("llama"), base)
    with pytest.raises(AdapterError, match=r"nowhere holds no adapter"):
        read_adapter(tmp_path / "nowhere", base)
    weights = adapter / "adapter_model.safetensors"
    torch.save(load_file(weights), adapter / "adapter_model.bin")
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    with pytest.raises(AdapterError, match=r"is damaged or not a safetensors file"):
        read_adapter(adapter, base)
    weights.write_bytes(b"\xff\xff\xff\xff\0\0\0\0" + content)
    with pytest.raises(AdapterError, match=r"its header has 4294967295 bytes"):
        read_adapter(adapter, base)
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name, entry = next((name, entry) for name, entry in header.items() if "dtype" in entry)
    listed = json.dumps({**header, name: list(entry.values())}).encode()
    weights.write_bytes(len(listed).to_bytes(8, "little") + listed + content[8 + size :])
    with pytest.raises(AdapterError, match=r"its header has tensors that are no objects"):
        read_adapter(adapter, base)
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(AdapterError, match=r"pointer of Git LFS"):
        read_adapter(adapter, base)
    weights.unlink()
    with pytest.raises(AdapterError, match=r"is a pickle, which is only read of an adapter that the operator names"):
        read_adapter(adapter, base)
    (adapter / "adapter_model.bin").write_bytes(b"no pickle")
    with pytest.raises(AdapterError, match=r"is damaged, or holds more than tensors"):
        read_adapter(adapter, base, allow_pickle=True)
    (adapter / "adapter_model.bin").unlink()
    with pytest.raises(AdapterError, match=r"has no adapter_model\.safetensors"):
        read_adapter(adapter, base)
    (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(AdapterError, match=r"adapter_config\.json is not valid JSON"):
        read_adapter(adapter, base)


def test_another_size_of_model(adapter: Path, base_folder: Callable[[str], Path]) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": "org/large"}))
    rewrite(
        adapter,
        lambda all: (
            {name: torch.cat([each, each], -1) for name, each in all.items() if "_A" in name}
            | {name: each for name, each in all.items() if "_B" in name}
        ),
    )
    with pytest.raises(AdapterError, match=r"the adapter is of another model \(it was trained on 'org/large'\)"):
        read_adapter(adapter, base_model(base_folder("llama")))


def test_experts_of_another_number(base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    case = AdapterCase("qwen3 moe", {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"]})
    write_adapter(case, tmp_path)
    rewrite(tmp_path, lambda all: {name: each[:15] if "_A" in name else each[:, :15] for name, each in all.items()})
    with pytest.raises(AdapterError, match=r"\[15, 20\] and \[32, 15\], which fit none of 4 experts from 32 to 20"):
        read_adapter(tmp_path, base_model(base_folder("qwen3 moe")))


def test_dora_of_experts(base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    case = AdapterCase("qwen3 moe", {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"]})
    write_adapter(case, tmp_path)
    rewrite(
        tmp_path,
        lambda all: (
            all
            | {name.replace("lora_A.weight", "lora_magnitude_vector"): torch.ones(32) for name in all if "_A" in name}
        ),
    )
    with pytest.raises(AdapterError, match=r"`\S+\.mlp\.experts`: experts have neither DoRA nor biases"):
        read_adapter(tmp_path, base_model(base_folder("qwen3 moe")))


def test_weights_that_are_not_plain(adapter: Path, base_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """A checkpoint with one matrix in 8 bits stands for all quantised ones: what counts is how a tensor is stored."""
    folder = tmp_path / "fp8"
    folder.mkdir()
    for path in base_folder("llama").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    tensors[f"{name}_scale"] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(AdapterError, match=r"`\S+q_proj\.weight`, which is not stored in 16 or 32 bits: .*--quantize"):
        load(folder, merge_adapter=adapter)


def test_random_weights(adapter: Path, base_folder: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigurationError, match=r"--merge-adapter needs weights of files"):
        load(base_folder("llama"), dummy=True, merge_adapter=adapter)


def test_the_same_tensors_have_the_same_hash(adapter: Path, base_folder: Callable[[str], Path]) -> None:
    base = base_model(base_folder("llama"))
    first = read_adapter(adapter, base).digest
    assert read_adapter(rewrite(adapter, peft_version="0.1"), base).digest == first
    assert read_adapter(rewrite(adapter, lora_alpha=7), base).digest != first
    rewrite(adapter, lambda all: {name: each + 1e-3 for name, each in all.items()}, lora_alpha=6)
    assert read_adapter(adapter, base).digest != first


def test_a_file_that_is_overwritten_while_it_is_used_harms_nobody(
    base_folder: Callable[[str], Path], adapter: Path
) -> None:
    """A mapped file that somebody cuts off would end the process."""
    base = base_model(base_folder("llama"))
    read, other = read_adapter(adapter, base), read_adapter(adapter, base)
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    assert read.digest == other.digest
    for name, change in read.changes.items():
        assert isinstance(change, Delta)
        assert change.a.isfinite().all(), name
