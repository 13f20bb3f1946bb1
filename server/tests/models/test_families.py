"""Every family against transformers: greedy ids are equal alone, batched, in chunks, after pauses and on two ranks."""

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import pytest
import torch
from support.comparing import assert_generations_are_equal, assert_logits_are_equal, checkpoints
from support.families import PROMPTS, model_of
from support.family_cases import CASES
from support.generating import generations, warm_engine
from support.loading import load
from support.ranks import Results, all_ranks, results, single_rank
from support.thread_ranks import thread_groups, together

from text_generation_server.models import CausalLM


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a case, written once."""
    return checkpoints(tmp_path_factory.mktemp("families"), CASES)


@pytest.fixture(params=list(CASES), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model_for(folder_of: Callable[[str], Path]) -> Callable[[str], CausalLM]:
    """Loads a case; the last one is kept. Pytest would keep `model` for a test that gets its `name` from its own list,
    whatever the name is.
    """
    return lru_cache(maxsize=1)(lambda name: load(folder_of(name)))


@pytest.fixture
def model(name: str, model_for: Callable[[str], CausalLM]) -> CausalLM:
    return model_for(name)


def test_logits_are_those_of_transformers(name: str, model: CausalLM) -> None:
    assert_logits_are_equal(CASES[name], model_of(name), model)


def test_greedy_ids_and_their_probabilities_are_those_of_transformers(
    name: str, model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_generations_are_equal(CASES[name], model_of(name), warm_engine(model, monkeypatch))


DETERMINISTIC = [
    "gemma2",
    "olmo2",
    "cohere plus",
    "bloom",
    "gpt2",
    "deepseek v3",
    "deepseek v3.2",
    "deepseek v4",
    "deepseek v4 other",
    "glm 5.2",
    "jamba",
    "nemotron 3",
    "qwen3 next",
    "granite 4",
    "falcon h1",
    "olmo hybrid",
    "ministral 3",
    "mistral 4",
    "trinity",
    "laguna",
    "step",
    "kimi linear",
    "ling 2.5",
    "ling 2.5 whole norm",
    "ling 3",
    "ling 3 elements",
    "glm 5.3",
    "longcat",
    "minimax text 01",
    "gemma3n",
    "gemma4 small",
    "gemma4 experts",
    "nemotron 3 latent",
    "mimo v2",
    "solar",
    "zamba 2",
]


@pytest.mark.parametrize("name", DETERMINISTIC, scope="module")
def test_deterministic_results_do_not_depend_on_chunks_or_batch(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit."""
    engine = warm_engine(model, monkeypatch, deterministic=True)
    together = generations(engine, 0, 1, 2, 3, 4, chunk=2, pause=0.1)
    for index, each in enumerate(together):
        (alone,) = generations(engine, index, chunk=64, pause=0.0)
        assert (each.tokens, each.logprobs) == (alone.tokens, alone.logprobs)


@pytest.fixture(scope="session")
def shards(folder_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Results]]:
    """What each of two ranks computes for every case."""
    folders = [folder_of(name) for name in CASES]
    results = all_ranks(folders, 2, tmp_path_factory.mktemp("ranks"), PROMPTS, steps=2)
    return [dict(zip(CASES, result, strict=True)) for result in results]


def test_two_ranks_compute_what_one_does(
    name: str, folder_of: Callable[[str], Path], shards: list[dict[str, Results]]
) -> None:
    expected_logits, expected_ids = single_rank(folder_of(name), PROMPTS, steps=2)
    (first, ids), (second, other_ids) = (results[name] for results in shards)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected_logits, atol=2e-4, rtol=2e-4)
    assert ids == other_ids == expected_ids


LAYOUTS = ["chatglm", "codegen", "cohere plus", "dbrx", "deepseek v3", "falcon 40b", "falcon 7b", "internlm2"]
LAYOUTS += ["olmo2 one kv head", "phi3", "qwen2 moe", "qwen3 next", "qwen3.5", "stablelm 12b", "starcoder"]
LAYOUTS += [
    "minimax m2",
    "decilm",
    "deepseek v4",
    "falcon h1",
    "gemma3n other",
    "gemma4 experts",
    "gemma4 small",
    "glm 5.3",
    "glm 5.3 other",
    "kimi linear",
    "laguna elements",
    "ling",
    "ling 2",
    "ling 2.5 whole norm",
    "ling 3",
    "llama4 maverick",
    "longcat",
    "mimo v2",
    "mimo v2.5",
    "minimax 01",
    "olmo hybrid",
    "olmo hybrid with rope",
    "ministral 3",
    "step",
    "trinity",
    "zamba 2 of one block",
]
"""One of each way in which queries, keys and values are stored and normalised."""


@pytest.mark.parametrize("name", LAYOUTS, scope="module")
def test_four_ranks_hold_copies_of_what_they_cannot_share(
    name: str, model: CausalLM, folder_of: Callable[[str], Path]
) -> None:
    """Of two key-value heads, or of one."""
    expected_logits, expected_ids = results(model, PROMPTS, 2)
    works = [partial(results, load(folder_of(name), group=group), PROMPTS, 2, group) for group in thread_groups(4)]
    for logits, ids in together(works):
        torch.testing.assert_close(logits, expected_logits, atol=2e-4, rtol=2e-4)
        assert ids == expected_ids
