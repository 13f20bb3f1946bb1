"""A model of ours beside the class of transformers that it comes from."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from support.driver import Driver
from support.families import PROMPTS, Case, logits_of, model_of, write
from support.generating import generations
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
