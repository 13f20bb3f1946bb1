"""Every family against transformers: greedy ids are equal alone, batched, in chunks, after pauses and on two ranks."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from support.driver import Driver
from support.families import PROMPTS, logits_of, model_of, write
from support.family_cases import CASES
from support.generating import generations, warm_engine
from support.loading import load
from support.ranks import Results, all_ranks, single_rank

from text_generation_server.models import CausalLM


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a case, written once."""
    root = tmp_path_factory.mktemp("families")

    @cache
    def folder(name: str) -> Path:
        write(CASES[name], model_of(name), root / name)
        return root / name

    return folder


@pytest.fixture(params=list(CASES), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name: str, folder_of: Callable[[str], Path]) -> CausalLM:
    return load(folder_of(name))


def test_logits_are_those_of_transformers(name: str, model: CausalLM) -> None:
    expected = [logits_of(CASES[name], model_of(name), prompt) for prompt in PROMPTS]
    driver = Driver(model, max_tokens=32)
    logits = driver.prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)}, all_logits=True)
    torch.testing.assert_close(logits, torch.cat(expected), atol=2e-4, rtol=2e-4)


def test_greedy_ids_and_their_probabilities_are_those_of_transformers(
    name: str, model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = warm_engine(model, monkeypatch)
    together = generations(engine, 0, 1, 2, 3, 4, chunk=3, pause=0.1)
    for each in together:
        logprobs = logits_of(CASES[name], model_of(name), each.ids)[:-1].log_softmax(-1)
        first = len(each.prompt) - 1
        assert each.tokens == logprobs[first:].argmax(-1).tolist()
        expected = logprobs[torch.arange(len(logprobs)), each.ids[1:]].tolist()
        assert each.logprobs == pytest.approx(expected[first:], abs=1e-3)
    (alone,) = generations(engine, 4, chunk=64, pause=0.0)
    assert alone.tokens == together[4].tokens


@pytest.mark.parametrize("name", ["gemma2", "olmo2", "cohere plus", "bloom", "gpt2"], scope="module")
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
