"""Four shards that keep some positions of latent attention each answer as one shard that keeps all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import Server, serving
from support.families import larger, write
from support.family_cases import CASES
from transformers import AutoTokenizer

NEW_TOKENS = 12
# Prompts in several chunks.
FLAGS = ["--max-batch-prefill-tokens", "16", "--max-batch-total-tokens", "192", "--max-total-tokens", "96"]


@pytest.fixture
def tiny_deepseek(tiny_llama: Path, tmp_path: Path) -> Path:
    """With the tokenizer of the other model."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    folder = tmp_path / "model"
    write(CASES["deepseek v3"], larger("deepseek v3", len(tokenizer)), folder)
    tokenizer.save_pretrained(folder)
    return folder


def answers(server: Server, prompts: list[str]) -> list[list[int]]:
    """Twice, so that the second time prompts are found in the prefix cache."""
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda prompt: server.ids(prompt, max_new_tokens=NEW_TOKENS), prompts[::2] * 2))


def test_four_shards_answer_as_one(tiny_deepseek: Path, tmp_path: Path, prompts: list[str]) -> None:
    for each in ("one", "four"):
        (tmp_path / each).mkdir()
    with serving(tiny_deepseek, tmp_path / "one", *FLAGS) as server:
        expected = answers(server, prompts)
    assert len({tuple(ids) for ids in expected}) > 8
    with serving(tiny_deepseek, tmp_path / "four", "--num-shard", "4", "--enable-context-parallel", *FLAGS) as server:
        assert answers(server, prompts) == expected
        assert server.metric("tgi_prefix_cache_hit_tokens") > 0
