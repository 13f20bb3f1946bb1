"""A model of ours beside the class of transformers that it comes from."""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from support.driver import Driver
from support.families import PROMPTS, Case, logits_of, made, model_of, write
from support.generating import generations
from support.loading import load
from text_generation_server.engine.engine import Engine
from text_generation_server.models import CausalLM


def checkpoints(root: Path, cases: Mapping[str, Case]) -> Callable[[str], Path]:
    """Gives the folder of a case below `root`, which is written when it is first asked for."""

    @cache
    def folder(name: str) -> Path:
        write(cases[name], model_of(name), root / name)
        return root / name

    return folder


def assert_logits_are_equal(case: Case, reference: PreTrainedModel, model: CausalLM) -> None:
    """Of every token of every prompt, computed together."""
    expected = [logits_of(case, reference, prompt) for prompt in PROMPTS]
    driver = Driver(model, max_tokens=32)
    logits = driver.prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)}, all_logits=True)
    torch.testing.assert_close(logits, torch.cat(expected), atol=2e-4, rtol=2e-4)


def assert_generations_are_equal(case: Case, reference: PreTrainedModel, engine: Engine, rank: int = 0) -> None:
    """Greedy ids and their log-probabilities: alone, in a batch, in chunks, and after pauses. Of several ranks all
    generate, and the first compares: the others have no log-probabilities.
    """
    together = generations(engine, 0, 1, 2, 3, 4, chunk=3, pause=0.1)
    (alone,) = generations(engine, 4, chunk=64, pause=0.0)
    if rank > 0:
        return
    for each in together:
        logprobs = logits_of(case, reference, each.ids)[:-1].log_softmax(-1)
        first = len(each.prompt) - 1
        assert each.tokens == logprobs[first:].argmax(-1).tolist()
        expected = logprobs[torch.arange(len(logprobs)), each.ids[1:]].tolist()
        assert each.logprobs == pytest.approx(expected[first:], abs=1e-3)
    assert alone.tokens == together[4].tokens


def assert_whole_context_is_equal(case: Case, folder: Path, cuts: Collection[int], positions: int = 64) -> None:
    """Prompts that end at each of `cuts`, whole, then decodes to the last position, and a prompt in pieces of seven."""
    reference = made(case)
    write(case, reference, folder)
    ids = [(31 * index + index // 7) % 90 + 4 for index in range(positions)]
    expected, last = logits_of(case, reference, ids), positions - 4
    driver, lengths = Driver(load(folder), max_tokens=positions), sorted({*cuts, last})
    found = driver.prefill({str(length): ids[:length] for length in lengths}, all_logits=True)
    _close(found, torch.cat([expected[:length] for length in lengths]))
    for length in range(last, positions):
        driver.ids[str(last)].append(ids[length])
        _close(driver.decode([str(last)])[0], expected[length])
    driver.register("cut", ids)
    for first in range(0, positions - 1, 7):
        _close(driver.extend("cut", 7)[0], expected[first + 6])


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)
