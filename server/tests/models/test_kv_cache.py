"""Keys and values of 8 and 4 bits: what Transformers computes where its cache gives them back as they are stored."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama
from support.driver import Driver, greedy_by_turns
from support.families import model_of, write
from support.family_cases import CASES
from support.loading import load
from support.oracle import oracle
from support.stored_cache import TYPES, StoredCache, said
from support.thread_ranks import thread_groups, together
from torch import Tensor
from transformers import LlamaForCausalLM

from text_generation_kernels import KV_CODES
from text_generation_server.config.kv_cache import QuantisedKvCache, kv_cache_bytes, quantised_kv_cache
from text_generation_server.config.model import ModelConfig
from text_generation_server.doctor.model import kv_bytes_per_token
from text_generation_server.engine.kv_pool import allocate_pool, bytes_per_slot
from text_generation_server.errors import ConfigurationError, ModelFilesError
from text_generation_server.layers.infer import CacheShape
from text_generation_server.models import CausalLM

PROMPTS = [list(range(5, 25)), [7], [99, 3, 64, 12, 81], list(range(40, 110)), [11, 11, 11]]
# A number may be rounded the other way where ours and theirs differ in the last bit.
LIMIT = {"fp8_e4m3fn": 2e-3, "fp8_e5m2": 4e-3, "int8": 5e-4, "int4": 1e-2}
# How far 8 and 4 bits are from 32: mean difference of log-probabilities.
CLOSE = {"fp8_e4m3fn": 0.05, "fp8_e5m2": 0.1, "int8": 0.02, "int4": 0.3}


def greedy(model: LlamaForCausalLM, dtype: torch.dtype, prompt: list[int], steps: int) -> list[int]:
    ids = list(prompt)
    for _ in range(steps):
        ids.append(int(said(model, StoredCache(dtype), ids)[-1].argmax()))
    return ids[len(prompt) :]


def computed(model: CausalLM, ids: list[int], pieces: int = 1 << 20) -> Tensor:
    """Log-probabilities at the ends of pieces of so many tokens."""
    driver = Driver(model)
    driver.register("a", ids)
    ends = [driver.extend("a", min(pieces, len(ids) - start)) for start in range(0, len(ids), pieces)]
    return torch.cat(ends).log_softmax(-1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, initializer_range=0.1)


@pytest.mark.parametrize("name", get_args(QuantisedKvCache))
def test_transformers_says_the_same(folder: Path, name: QuantisedKvCache) -> None:
    reference, model = oracle(folder), load(folder, kv_cache=name)
    whole = Driver(model).prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)}, all_logits=True)
    expected = torch.cat([said(reference, StoredCache(TYPES[name]), prompt) for prompt in PROMPTS])
    assert (whole.log_softmax(-1) - expected).abs().mean() < LIMIT[name]

    with torch.inference_mode():
        plain = torch.cat([reference(torch.tensor([prompt])).logits[0] for prompt in PROMPTS]).log_softmax(-1)
    assert LIMIT[name] < (whole.log_softmax(-1) - plain).abs().mean() < CLOSE[name]

    for size in (1, 7, 64):
        ends = [min(end, 70) - 1 for end in range(size, 70 + size, size)]
        pieces = computed(model, PROMPTS[3], size)
        assert (pieces - said(reference, StoredCache(TYPES[name]), PROMPTS[3])[ends]).abs().mean() < LIMIT[name]


@pytest.mark.parametrize("name", get_args(QuantisedKvCache))
def test_greedy_ids_are_the_same_while_requests_join_and_leave_and_on_two_ranks(
    folder: Path, name: QuantisedKvCache
) -> None:
    reference = oracle(folder)
    expected = [greedy(reference, TYPES[name], prompt, 6) for prompt in PROMPTS]
    assert greedy_by_turns(Driver(load(folder, kv_cache=name)), PROMPTS, steps=6) == expected

    def on_rank(group: Any) -> list[list[int]]:
        return greedy_by_turns(Driver(load(folder, group=group, kv_cache=name), group=group), PROMPTS, steps=6)

    assert together([lambda group=group: on_rank(group) for group in thread_groups(2)]) == [expected, expected]


def calibrated(folder: Path, out: Path, scales: dict[str, Tensor]) -> Path:
    """The model with an fp8 KV cache in its configuration, and these tensors beside its own."""
    out.mkdir()
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    group = {"targets": ["Nothing"], "weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "kv_cache_scheme": {"type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": False, "symmetric": True},
    }
    (out / "config.json").write_text(json.dumps(config))
    save_file(load_file(folder / "model.safetensors") | scales, out / "model.safetensors")
    return out


def scales_of(layers: int, k: list[float], v: list[float]) -> dict[str, Tensor]:
    return {
        f"model.layers.{layer}.self_attn.{kind}_scale": torch.tensor(values)
        for layer in range(layers)
        for kind, values in (("k", k), ("v", v))
    }


def asked(folder: Path) -> QuantisedKvCache | None:
    return quantised_kv_cache("auto", ModelConfig.from_folder(folder))


@pytest.mark.parametrize(("k", "v"), [([0.02], [0.01]), ([0.02, 0.03], [0.01, 0.004])], ids=["tensor", "heads"])
def test_scales_of_the_checkpoint_are_used(folder: Path, tmp_path: Path, k: list[float], v: list[float]) -> None:
    reference = oracle(folder)
    layers, heads = reference.config.num_hidden_layers, int(reference.config.num_key_value_heads or 0)
    made = calibrated(folder, tmp_path / "made", scales_of(layers, k, v))
    model = load(made, kv_cache=asked(made))
    each = [torch.tensor(values).bfloat16().expand(layers, heads) for values in (k, v)]
    given = (each[0].float(), each[1].float())
    expected = said(reference, StoredCache(torch.float8_e4m3fn, given), PROMPTS[0])
    assert (computed(model, PROMPTS[0], 1) - expected).abs().mean() < LIMIT["fp8_e4m3fn"]

    # A rank has those of its heads, and no slot has one of its own.
    ranks = together([lambda group=group: load(made, group=group, kv_cache="fp8_e4m3fn") for group in thread_groups(2)])
    stacked = torch.stack((each[0][0], each[1][0]), dim=-1)
    for rank, part in enumerate(ranks):
        assert torch.equal(part.caches[0].given_scales, stacked[rank : rank + 1])  # type: ignore[arg-type]
    assert bytes_per_slot(ranks[0]) == layers * 2 * ranks[0].caches[0].head_dim
    # They say nothing about another type.
    for other in ("int8", "int4"):
        assert load(made, kv_cache=other).caches[0].given_scales is None


def test_checkpoints_without_scales_and_with_wrong_ones(folder: Path, tmp_path: Path) -> None:
    layers = oracle(folder).config.num_hidden_layers
    assert asked(folder) is None
    wrong = {"unset": [-1.0], "0 in 16 bits": [1e-42], "infinite in 16 bits": [3.4e38]}
    for name, scales in {"none": {}, **{name: scales_of(layers, k, [1.0]) for name, k in wrong.items()}}.items():
        made = calibrated(folder, tmp_path / name, scales)
        assert asked(made) == "fp8_e4m3fn"
        assert load(made, kv_cache="fp8_e4m3fn").caches[0].given_scales is None
    made = calibrated(folder, tmp_path / "wrong", scales_of(layers, [1.0] * 3, [1.0]))
    with pytest.raises(ModelFilesError, match=r"k_scale.*one for each of 2 heads"):
        load(made, kv_cache="fp8_e4m3fn")


@pytest.mark.parametrize(("name", "parts", "scales"), [("int8", 2, 2), ("int4", 4, 4)])
def test_slots_take_half_or_a_quarter_of_the_room_and_their_scales(
    folder: Path, name: QuantisedKvCache, parts: int, scales: int
) -> None:
    plain, model = load(folder, torch.bfloat16), load(folder, torch.bfloat16, kv_cache=name)
    shape = model.caches[0]
    assert bytes_per_slot(model) == bytes_per_slot(plain) // parts + len(model.caches) * shape.kv_heads * 2 * scales
    assert kv_bytes_per_token(ModelConfig.from_folder(folder), 1, name) == bytes_per_slot(model)
    pool = allocate_pool(model, 5, 1)
    caches = [each for cache in pool.caches for each in (cache.k, cache.v, cache.scales) if each is not None]
    assert sum(each.nbytes for each in caches) == 6 * bytes_per_slot(model)
    assert not any(each.any() for each in caches)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256, 512])
def test_int4_has_more_than_three_times_the_slots_of_16_bits(head_dim: int) -> None:
    size = CacheShape(1, head_dim, head_dim, KV_CODES["int4"]).bytes_per_slot(torch.bfloat16)
    assert size == 2 * kv_cache_bytes("int4", head_dim)
    factor = 4 * head_dim / size
    assert factor > 3.3
    assert factor >= 3.55 or head_dim not in (64, 128, 256, 512)


def test_heads_that_are_no_whole_words_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_llama(tmp_path_factory, head_dim=6)
    with pytest.raises(ConfigurationError, match=r"--kv-cache-dtype int8 needs heads .* multiple of 4"):
        quantised_kv_cache("int8", ModelConfig.from_folder(folder))
    folder = tiny_llama(tmp_path_factory, head_dim=12)
    with pytest.raises(ConfigurationError, match=r"int4 needs heads .* multiple of 8.* have 12: .* int8"):
        quantised_kv_cache("int4", ModelConfig.from_folder(folder))
    assert quantised_kv_cache("int8", ModelConfig.from_folder(folder)) == "int8"


@pytest.mark.parametrize("codes", [None, "fp8_e4m3fn", "int4"])
def test_layers_that_read_the_cache_of_others_take_no_slots(codes: QuantisedKvCache | None, tmp_path: Path) -> None:
    """Of five layers of Gemma 4 the last two; one of the others has heads of twice the size."""
    write(CASES["gemma4 small"], model_of("gemma4 small"), tmp_path)
    model = load(tmp_path, kv_cache=codes)
    assert [cache.head_dim for cache in model.caches] == [8, 16, 8]
    config = ModelConfig.from_folder(tmp_path)
    assert bytes_per_slot(model) == kv_bytes_per_token(config, 1, codes or 4)
    assert len(greedy_by_turns(Driver(model), [[5, 6, 7, 8, 9, 10], [11]], 3)) == 2
