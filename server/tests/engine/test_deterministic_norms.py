"""Norms of queries and keys over the whole width give a deterministic engine the same bits in every batch, also where
torch adds in an order that depends on how many sums there are, as it does on a GPU.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.families import PROMPTS, model_of, write
from support.family_cases import CASES
from support.generating import generations, warm_engine
from support.loading import load
from support.router import Stream
from torch import Tensor


def results(streams: list[Stream]) -> list[tuple[list[int], list[float], list[float]]]:
    return [(each.tokens, each.logprobs, each.prompt_logprobs) for each in streams]


def test_results_are_the_same_to_the_bit_alone_and_in_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(CASES["olmo2"], model_of("olmo2"), tmp_path)
    engine = warm_engine(load(tmp_path), monkeypatch, deterministic=True)
    summed = Tensor.sum

    def summed_by_a_card(x: Tensor, *how: Any, **more: Any) -> Tensor:
        total = summed(x, *how, **more)
        return total * (1 + len(x) * 2**-16) if how == ((1, 2),) else total

    monkeypatch.setattr(torch.Tensor, "sum", summed_by_a_card)
    alone = [results(generations(engine, index, chunk=32, pause=0.0))[0] for index in range(len(PROMPTS))]
    assert results(generations(engine, *range(len(PROMPTS)), chunk=3, pause=0.0)) == alone
