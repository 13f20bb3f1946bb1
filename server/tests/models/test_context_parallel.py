"""Ranks that have some positions of latent attention each compute what one rank does that has all of them."""

from functools import partial
from pathlib import Path

import pytest
import torch
from support.driver import Driver
from support.families import PROMPTS, model_of, write
from support.family_cases import CASES
from support.loading import load
from support.ranks import results, single_rank
from support.thread_ranks import thread_groups, together

from text_generation_server.config.model import ModelConfig
from text_generation_server.doctor.model import kv_bytes_per_token
from text_generation_server.engine.kv_pool import bytes_per_slot
from text_generation_server.layers.infer import expanded


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(
    "case", ["deepseek v2", "deepseek v3", "kimi k2", "kimi linear", "longcat", "minicpm3", "youtu"]
)
def test_ranks_equal_one(case: str, world_size: int, tmp_path: Path) -> None:
    """Beside recurrent layers too."""
    write(CASES[case], model_of(case), tmp_path)
    expected_logits, expected_ids = single_rank(tmp_path, PROMPTS, steps=6)
    groups = thread_groups(world_size, context_parallel=True)
    models = [load(tmp_path, group=group) for group in groups]
    works = [partial(results, model, PROMPTS, 6, group) for model, group in zip(models, groups, strict=True)]
    for logits, ids in together(works):
        torch.testing.assert_close(logits, expected_logits, atol=2e-4, rtol=2e-4)
        assert ids == expected_ids
    config = ModelConfig.from_folder(tmp_path)
    expected_bytes = kv_bytes_per_token(config, world_size, 4, context_parallel=True)
    assert {bytes_per_slot(model) for model in models} == {expected_bytes}
    assert expected_bytes < kv_bytes_per_token(config, world_size, 4)


@pytest.mark.parametrize("long", [False, True], ids=["absorbed", "expanded"])
@pytest.mark.parametrize("queried", [(), ("cut",), ("cut", "other")], ids=["contexts come", "some", "queries go"])
def test_chunks_behind_a_prefix_equal_a_whole_prompt(
    queried: tuple[str, ...], long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(CASES["deepseek v3"], model_of("deepseek v3"), tmp_path)
    if long:
        monkeypatch.setattr(expanded, "WORTH", 0.1)
        monkeypatch.setattr(expanded, "LEAST_TOKENS", 2)
    prompt, other = PROMPTS[-1], PROMPTS[0]
    assert len(prompt) > 4

    def computed(driver: Driver) -> torch.Tensor:
        driver.register("cut", prompt)
        driver.extend("cut", len(prompt) - 3)
        last = driver.extend("cut", 3)
        return torch.cat((last, driver.prefill({"other": other})))

    expected = computed(Driver(load(tmp_path), max_tokens=64))
    groups = thread_groups(2, context_parallel=True)
    drivers = [Driver(load(tmp_path, group=group), max_tokens=64, group=group, queried=queried) for group in groups]
    for found in together([partial(computed, driver) for driver in drivers]):
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)
