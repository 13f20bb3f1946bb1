"""Ranks that have some positions of latent attention each compute what one rank does that has all of them."""

from functools import partial
from pathlib import Path

import pytest
import torch
from support.driver import Driver
from support.engine_driver import make_engine
from support.families import PROMPTS, larger, model_of, write
from support.family_cases import CASES
from support.loading import load
from support.memory import MIB, ReadHost
from support.ranks import results, single_rank
from support.thread_ranks import thread_groups, together

from text_generation_server.config.model import ModelConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.distributed.algorithms import Algorithm, AlgorithmTable
from text_generation_server.doctor.model import kv_bytes_per_token
from text_generation_server.engine.kv_pool import bytes_per_slot
from text_generation_server.engine.requests import WarmupLimits
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


def test_heads_are_gathered_alike_by_an_all_reduce() -> None:
    """As small messages are, where our one-shot kernel is the fastest."""
    torch.manual_seed(0)
    heads = torch.randn(2, 3, 4, 5)
    expected = heads.transpose(0, 1).flatten(1, 2)
    for algorithms in (AlgorithmTable(), AlgorithmTable((1 << 20,), (Algorithm.ONE_SHOT,))):
        groups = thread_groups(2)
        for group in groups:
            group._algorithms = algorithms
        for found in together([partial(group.gather_heads, heads[group.rank]) for group in groups]):
            assert torch.equal(found, expected)


def test_the_pool_grows_with_the_ranks(tmp_path: Path) -> None:
    """Each rank has the same memory, of which tables and masks take their part."""
    write(CASES["deepseek v3"], larger("deepseek v3", 384), tmp_path)
    asked = WarmupLimits(max_batch_prefill_tokens=32, max_batch_size=256, max_total_tokens=400)

    def slots(group: TensorParallelGroup) -> int:
        engine = make_engine(load(tmp_path, group=group), None, group=group, memory=ReadHost(world_size * 16 * MIB))
        return engine.warmup(asked).limits.max_batch_total_tokens

    for world_size in (2, 4):
        whole, shared = (
            set(together([partial(slots, group) for group in thread_groups(world_size, context_parallel=shares)]))
            for shares in (False, True)
        )
        assert len(whole) == len(shared) == 1
        assert 0.7 * world_size < shared.pop() / whole.pop() <= world_size


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
