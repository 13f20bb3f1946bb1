"""Keys and values of 8 and 4 bits in models that run through their class: what that class computes where its cache
gives them back as they would be stored.
"""

import json
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
import torch
from support.driver import Driver, greedy_by_turns
from support.fallback_cases import FALLBACK_CASES
from support.families import PROMPTS, Case, made, model_of, write
from support.family_cases import CASES
from support.loading import load
from support.stored_cache import TYPES, StoredCache, said
from support.thread_ranks import thread_groups, together

from text_generation_server.config.fallback import FallbackConfig
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.kv_cache import QuantisedKvCache, quantised_kv_cache
from text_generation_server.engine.kv_pool import bytes_per_slot
from text_generation_server.errors import ConfigurationError
from text_generation_server.models.fallback import check_runnable
from text_generation_server.models.fallback.model import FallbackModel

# Attention rotates, the class does, and the class does in part of each head. A number may be rounded the other way
# where ours and theirs differ in the last bit.
NAMES = ["apertus", "helium", "persimmon", "olmoe"]
LIMIT = {"fp8_e4m3fn": 5e-3, "fp8_e5m2": 1e-2, "int8": 1e-3, "int4": 2e-2}


@pytest.mark.parametrize("dtype", get_args(QuantisedKvCache))
@pytest.mark.parametrize("name", NAMES)
def test_the_class_says_the_same(name: str, dtype: QuantisedKvCache, tmp_path: Path) -> None:
    reference = model_of(name)
    write(FALLBACK_CASES[name], reference, tmp_path)
    model = load(tmp_path, kv_cache=dtype)
    assert isinstance(model, FallbackModel)
    prompts = {str(index): prompt for index, prompt in enumerate(PROMPTS)}
    computed = Driver(model).prefill(prompts, all_logits=True).log_softmax(-1)
    expected = torch.cat([said(reference, StoredCache(TYPES[dtype]), prompt) for prompt in PROMPTS])
    with torch.inference_mode():
        plain = torch.cat([reference(torch.tensor([prompt])).logits[0] for prompt in PROMPTS]).log_softmax(-1)
    apart = (computed - expected).abs().mean()
    assert apart < LIMIT[dtype]
    assert apart < 0.5 * (computed - plain).abs().mean()


@pytest.mark.parametrize("name", NAMES)
def test_greedy_ids_are_the_same_while_requests_join_and_on_two_ranks(name: str, tmp_path: Path) -> None:
    write(FALLBACK_CASES[name], model_of(name), tmp_path)
    alone = load(tmp_path, kv_cache="int8")
    expected = greedy_by_turns(Driver(alone), PROMPTS, steps=4)
    for prompt, ids in zip(PROMPTS, expected, strict=True):
        assert greedy_by_turns(Driver(alone), [prompt], steps=4) == [ids]
    groups = thread_groups(2)
    models = [load(tmp_path, group=group, kv_cache="int8") for group in groups]
    pairs = zip(models, groups, strict=True)
    works = [partial(greedy_by_turns, Driver(model, group=group), PROMPTS, steps=4) for model, group in pairs]
    assert together(works) == [expected, expected]


def test_slots_take_half_the_room_and_their_scales(tmp_path: Path) -> None:
    write(FALLBACK_CASES["apertus"], model_of("apertus"), tmp_path)
    plain, model = load(tmp_path, torch.bfloat16), load(tmp_path, torch.bfloat16, kv_cache="fp8_e4m3fn")
    assert bytes_per_slot(model) == bytes_per_slot(plain) // 2 + len(model.caches) * model.caches[0].kv_heads * 2 * 2


def test_layers_that_read_what_others_made_read_it_unchanged(tmp_path: Path) -> None:
    """Of Gemma 3n; its class hands them the same tensors."""
    reference = model_of("gemma3n")
    write(CASES["gemma3n"], reference, tmp_path)
    computed = [
        Driver(load(tmp_path, impl="transformers", kv_cache=dtype)).prefill({"a": PROMPTS[4]}, all_logits=True)
        for dtype in (None, "int8")
    ]
    assert 0 < (computed[0] - computed[1]).abs().mean() < 0.02 * computed[0].abs().mean()


def test_heads_that_are_no_whole_words_are_refused(tmp_path: Path) -> None:
    case = Case("", "arcee", {"head_dim": 6})
    write(case, made(case), tmp_path)
    config = read_model_config(tmp_path)
    assert isinstance(config, FallbackConfig)
    assert quantised_kv_cache("int8", config) == "int8"
    with pytest.raises(ConfigurationError, match=r"--kv-cache-dtype int8 needs heads .* multiple of 4.* keys of 6"):
        check_runnable(config, kv_cache="int8")
    with pytest.raises(ConfigurationError, match=r"--kv-cache-dtype int8 needs heads .* multiple of 4"):
        load(tmp_path, kv_cache="int8")
    with pytest.raises(ConfigurationError, match=r"int4 needs heads .* multiple of 8.*: set --kv-cache-dtype int8"):
        load(tmp_path, kv_cache="int4")


def test_what_the_checkpoint_wants_is_left_with_a_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(FALLBACK_CASES["arcee"], model_of("arcee"), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    wanted = {"type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": False, "symmetric": True}
    values["quantization_config"] = {"quant_method": "compressed-tensors", "kv_cache_scheme": wanted}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert quantised_kv_cache("auto", read_model_config(tmp_path)) is None
    assert "--kv-cache-dtype fp8_e4m3fn" in caplog.text
