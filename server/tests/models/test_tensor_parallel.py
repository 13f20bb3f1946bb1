"""Several ranks over gloo compute what one does."""

from pathlib import Path

import pytest
import torch
from support.checkpoints import tiny_llama
from support.loading import CPU
from support.ranks import all_ranks, single_rank

from text_generation_server.config import ParallelConfig
from text_generation_server.distributed import TensorParallelGroup, init_group
from text_generation_server.errors import ConfigurationError, EngineFailed
from text_generation_server.layers.weights import HeadSplit


def test_two_ranks_equal_one(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    folders = [
        tiny_llama(tmp_path_factory),
        tiny_llama(tmp_path_factory, num_key_value_heads=1, vocab_size=131, intermediate_size=95),
        tiny_llama(tmp_path_factory, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, vocab_size=131),
    ]
    first, second = all_ranks(folders, world_size=2, out=tmp_path)
    for folder, (logits, ids), (other_logits, other_ids) in zip(folders, first, second, strict=True):
        expected_logits, expected_ids = single_rank(folder)
        assert torch.equal(logits, other_logits)
        torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)
        assert ids == other_ids == expected_ids


@pytest.mark.parametrize(
    ("num_kv_heads", "world_size", "expected"),
    [
        (4, 2, [(0, 4, 0, 2), (4, 8, 2, 4)]),
        (2, 4, [(0, 2, 0, 1), (2, 4, 0, 1), (4, 6, 1, 2), (6, 8, 1, 2)]),
        (1, 2, [(0, 4, 0, 1), (4, 8, 0, 1)]),
    ],
)
def test_every_query_head_is_on_the_rank_that_holds_its_keys(
    num_kv_heads: int, world_size: int, expected: list[tuple[int, ...]]
) -> None:
    splits = [HeadSplit.of(8, num_kv_heads, TensorParallelGroup(rank, world_size, CPU)) for rank in range(world_size)]
    assert [(s.q_start, s.q_stop, s.kv_start, s.kv_stop) for s in splits] == expected


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "world_size"), [(8, 4, 3), (6, 6, 4), (12, 3, 2)])
def test_heads_that_cannot_be_shared_are_refused(num_heads: int, num_kv_heads: int, world_size: int) -> None:
    with pytest.raises(ConfigurationError, match="--num-shard"):
        HeadSplit.of(num_heads, num_kv_heads, TensorParallelGroup(0, world_size, CPU))


def test_a_missing_rank_is_an_error_after_the_time_limit(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"by the file .*rendezvous within 1 s"):
        init_group(ParallelConfig(0, 2, tmp_path / "rendezvous"), CPU, timeout_s=1)
