"""Ranks that have whole experts compute what one rank does, whatever the experts' layout and number."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from support.families import PROMPTS, made, model_of, write
from support.family_cases import CASES
from support.loading import load
from support.ranks import results, single_rank
from support.thread_ranks import thread_groups, together

from text_generation_server.errors import ConfigurationError


@pytest.mark.parametrize(
    "case",
    [
        "qwen3 moe",
        "qwen2 moe",
        "deepseek v3",
        "deepseek v4",
        "minimax m3",
        "gpt-oss",
        "gpt-oss mxfp4",
        "granite moe",
        "dbrx",
        "hunyuan moe",
        "granite 4 of one group",
        "nemotron 3",
        "nemotron 3 latent",
        "gemma4 experts",
        "llama4",
        "glm 5.3",
        "kimi linear",
        "longcat",
        "step",
    ],
)
def test_four_ranks_equal_one(case: str, tmp_path: Path) -> None:
    write(CASES[case], model_of(case), tmp_path)
    expected_logits, expected_ids = single_rank(tmp_path, PROMPTS, steps=3)
    groups = thread_groups(4, expert_parallel=True)
    works = [partial(results, load(tmp_path, group=group), PROMPTS, 3, group) for group in groups]
    for logits, ids in together(works):
        torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)
        assert ids == expected_ids


def test_a_rank_without_experts_is_refused(tmp_path: Path) -> None:
    case = replace(CASES["mixtral"], values={"num_local_experts": 3, "num_experts_per_tok": 2})
    write(case, made(case), tmp_path)
    message = "4 shards cannot each have one of 3 experts: leave --enable-expert-parallel out"
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path, group=thread_groups(4, expert_parallel=True)[0])
