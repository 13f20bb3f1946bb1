"""Several ranks over gloo compute what one does."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import tiny_llama
from support.families import model_of, write
from support.family_cases import CASES
from support.latent_cases import LATENT
from support.loading import CPU, load
from support.ranks import PROMPTS, all_ranks, results, single_rank
from support.thread_ranks import thread_groups, together
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

import text_generation_kernels as kernels
from text_generation_server.config import ParallelConfig
from text_generation_server.distributed import PendingAllReduce, TensorParallelGroup, init_group
from text_generation_server.errors import ConfigurationError, EngineFailed
from text_generation_server.layers.weights import HeadSplit


def tiny_model(model_type: str, **values: Any) -> Callable[[], PreTrainedModel]:
    """A random model of two layers."""
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2, "initializer_range": 0.3}

    def made() -> PreTrainedModel:
        torch.manual_seed(0)
        config = CONFIG_MAPPING[model_type](**{**sizes, "max_position_embeddings": 64, **values})
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

    return made


_EXPERTS = {"vocab_size": 257, "num_experts_per_tok": 2, "moe_intermediate_size": 36}
MIXTURES = {
    "qwen3 moe": tiny_model("qwen3_moe", **_EXPERTS, num_experts=5, head_dim=8, num_key_value_heads=4),
    "deepseek v3": tiny_model(
        "deepseek_v3", **_EXPERTS, **LATENT, n_routed_experts=6, n_group=2, topk_group=1, first_k_dense_replace=1
    ),
    "gpt-oss": tiny_model(
        "gpt_oss", vocab_size=257, intermediate_size=36, num_local_experts=5, head_dim=8, num_key_value_heads=4
    ),
}
"""Models whose ranks have whole experts, some one more than others."""


def test_two_ranks_equal_one(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    folders = [
        tiny_llama(tmp_path_factory),
        tiny_llama(tmp_path_factory, num_key_value_heads=1, vocab_size=131, intermediate_size=95),
        tiny_llama(tmp_path_factory, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, vocab_size=131),
    ]
    for name, made in MIXTURES.items():
        made().save_pretrained(tmp_path / name)
        folders.append(tmp_path / name)
    first, second = all_ranks(folders, world_size=2, out=tmp_path, expert_parallel=True)
    for folder, (logits, ids), (other_logits, other_ids) in zip(folders, first, second, strict=True):
        expected_logits, expected_ids = single_rank(folder)
        assert torch.equal(logits, other_logits)
        torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)
        assert ids == other_ids == expected_ids


MORE_RANKS = {
    "uneven": tiny_model(
        "olmo2", vocab_size=509, intermediate_size=95, num_attention_heads=24, num_key_value_heads=3, head_dim=8
    ),
    "tied, few splits of the vocabulary": tiny_model("llama", vocab_size=131, tie_word_embeddings=True),
    "experts": tiny_model("mixtral", vocab_size=257, intermediate_size=36, num_local_experts=5, num_key_value_heads=8),
    "inputs of each layer": tiny_model(
        "gemma4_text",
        **{"vocab_size": 131, "vocab_size_per_layer_input": 131, "intermediate_size": 95, "num_key_value_heads": 1},
        **{"head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 6, "pad_token_id": 0},
    ),
}
"""Models where no size but the number of query heads is divisible by the number of ranks."""


@pytest.mark.parametrize("world_size", [4, 8])
@pytest.mark.parametrize("name", list(MORE_RANKS))
def test_four_and_eight_ranks_equal_one(name: str, world_size: int, tmp_path: Path) -> None:
    MORE_RANKS[name]().save_pretrained(tmp_path)
    expected_logits, expected_ids = single_rank(tmp_path, steps=3)
    groups = thread_groups(world_size)
    works = [partial(results, load(tmp_path, group=group), PROMPTS, 3, group) for group in groups]
    for logits, ids in together(works):
        torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)
        assert ids == expected_ids


@pytest.mark.parametrize(
    ("name", "world_size"),
    [
        ("uneven", 2),
        ("tied, few splits of the vocabulary", 2),
        ("tied, few splits of the vocabulary", 4),
        ("inputs of each layer", 2),
    ],
)
def test_ranks_with_parts_of_the_embedding_equal_ranks_that_have_it_whole(
    name: str, world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit. Of four ranks the last ones have no id at all."""
    MORE_RANKS[name]().save_pretrained(tmp_path)

    def computed() -> list[tuple[torch.Tensor, list[list[int]]]]:
        groups = thread_groups(world_size)
        models = [load(tmp_path, group=group) for group in groups]
        rows = [len(model._embedding._weights.tokens) for model in models]
        held.append(sum(rows) - 2 * world_size)
        return together(
            [partial(results, model, PROMPTS, 3, group) for model, group in zip(models, groups, strict=True)]
        )

    held: list[int] = []
    whole = computed()
    monkeypatch.setattr("text_generation_server.config.sizes.LEAST_CUT_BYTES", 0)
    for (logits, ids), (expected_logits, expected_ids) in zip(computed(), whole, strict=True):
        assert torch.equal(logits, expected_logits)
        assert ids == expected_ids
    assert held[1] == load(tmp_path).vocab_size


@pytest.mark.parametrize("name", ["uneven", "experts", "parallel", "norms with a bias"])
def test_sums_that_products_begin_equal_those_behind_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs as on GPUs that write to each other's memory, where the GEMV of one token sends its partial sums itself."""
    made = MORE_RANKS.get(name) or tiny_model(
        "gpt_neox", vocab_size=131, intermediate_size=96, use_parallel_residual=name == "parallel"
    )
    made().save_pretrained(tmp_path)
    begun: list[int] = []

    def begin(group: TensorParallelGroup, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        if len(x) > 1:
            return None
        total = torch.nn.functional.linear(x, weight, bias)
        group.all_reduce(total)
        begun.append(group.rank)
        return PendingAllReduce(total, None)

    prompts = [[4, 8, 15, 16, 23]]
    expected_logits, expected_ids = single_rank(tmp_path, prompts=prompts, steps=3)
    monkeypatch.setattr(TensorParallelGroup, "begin_gemv_all_reduce", begin)
    groups = thread_groups(2)
    works = [partial(results, load(tmp_path, group=group), prompts, 3, group) for group in groups]
    for logits, ids in together(works):
        torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)
        assert ids == expected_ids
    # Of each layer attention, and the network where it is dense; a part of a sum within a layer is nobody's yet.
    assert (len(begun) == 0) == (name == "parallel")


def test_four_processes_equal_one(tmp_path: Path) -> None:
    folders = [tmp_path / str(index) for index in range(len(MORE_RANKS))]
    for folder, made in zip(folders, MORE_RANKS.values(), strict=True):
        made().save_pretrained(folder)
    ranks = all_ranks(folders, world_size=4, out=tmp_path, steps=3)
    for index, folder in enumerate(folders):
        expected_logits, expected_ids = single_rank(folder, steps=3)
        for found in ranks:
            torch.testing.assert_close(found[index][0], expected_logits, atol=1e-4, rtol=1e-4)
            assert found[index][1] == expected_ids


@pytest.mark.parametrize(
    ("name", "world_size", "small_splits"),
    [("uneven", 2, 1), ("uneven", 4, 1), ("uneven", 8, 1), ("llama", 2, 3)],
)
def test_a_step_in_overlapped_halves_equals_a_whole_one(
    name: str, world_size: int, small_splits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`small_splits` is the number of split-K partials of small GEMMs, which the second half of a step may have."""
    made = MORE_RANKS.get(name) or tiny_model(name, vocab_size=509)
    made().save_pretrained(tmp_path)
    monkeypatch.setattr("text_generation_server.layers.infer.overlapped_halves._TILES", 64)
    begun: list[int] = []
    begin_all_reduce = TensorParallelGroup.begin_all_reduce
    monkeypatch.setattr(
        TensorParallelGroup,
        "begin_all_reduce",
        lambda group, x, place: (begun.append(len(x)), begin_all_reduce(group, x, place))[1],
    )
    prompts = [list(range(7, 62)), list(range(200, 255))]
    expected_logits, expected_ids = single_rank(tmp_path, prompts=prompts, steps=3)
    groups = thread_groups(world_size)
    for group in groups:
        group.overlapped_bytes = 1
    monkeypatch.setattr(kernels, "linear_splits", lambda x, _: small_splits if 1 < len(x) < 64 else 1)
    works = [partial(results, load(tmp_path, group=group), prompts, 3, group) for group in groups]
    for logits, ids in together(works):
        torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)
        assert ids == expected_ids
    assert set(begun) == {64, 110 - 64}


@pytest.mark.parametrize(
    ("num_kv_heads", "world_size", "expected"),
    [
        (4, 2, [(0, 4, (0, 1)), (4, 8, (2, 3))]),
        (2, 4, [(0, 2, (0,)), (2, 4, (0,)), (4, 6, (1,)), (6, 8, (1,))]),
        (1, 2, [(0, 4, (0,)), (4, 8, (0,))]),
    ],
)
def test_every_query_head_is_on_the_rank_that_holds_its_keys(
    num_kv_heads: int, world_size: int, expected: list[tuple[int, ...]]
) -> None:
    splits = [HeadSplit.of(8, num_kv_heads, TensorParallelGroup(rank, world_size, CPU)) for rank in range(world_size)]
    assert [(s.q_start, s.q_stop, s.kv_heads) for s in splits] == expected


def test_a_rank_holds_a_head_as_often_as_equal_groups_of_its_query_heads_need_it() -> None:
    splits = [HeadSplit.of(12, 3, TensorParallelGroup(rank, 2, CPU)) for rank in range(2)]
    assert [split.kv_heads for split in splits] == [(0, 0, 1), (1, 2, 2)]


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "world_size"), [(8, 4, 3), (6, 6, 4)])
def test_heads_that_cannot_be_shared_are_refused(num_heads: int, num_kv_heads: int, world_size: int) -> None:
    with pytest.raises(ConfigurationError, match="--num-shard"):
        HeadSplit.of(num_heads, num_kv_heads, TensorParallelGroup(0, world_size, CPU))


@pytest.mark.parametrize("name", ["gpt2", "gpt neox", "mpt with positions", "stablelm 12b", "gpt-oss", "mixtral"])
@pytest.mark.parametrize("expert_parallel", [False, True])
def test_tensors_that_another_rank_reads_are_no_reason_to_warn(
    name: str, expert_parallel: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Biases of what is summed, norms and experts of their own."""
    write(CASES[name], model_of(name), tmp_path)
    with caplog.at_level(logging.WARNING):
        for group in thread_groups(4, expert_parallel):
            load(tmp_path, group=group)
    assert not [record.getMessage() for record in caplog.records if "not used" in record.getMessage()]


def test_a_missing_rank_is_an_error_after_the_time_limit(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"by the file .*rendezvous within 1 s"):
        init_group(ParallelConfig(0, 2, tmp_path / "rendezvous"), CPU, timeout_s=1)


@pytest.mark.parametrize(("said", "expected"), [(None, "0"), ("1", "1")])
def test_nccl_registers_no_buffers_of_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, expected: str
) -> None:
    """Unless the operator says so: replays over such buffers hang where the allocator's segments grow."""
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", said or "")
    if said is None:
        monkeypatch.delenv("NCCL_GRAPH_REGISTER")
    with pytest.raises(EngineFailed):
        init_group(ParallelConfig(0, 2, tmp_path / "rendezvous"), CPU, timeout_s=1)
    assert os.environ["NCCL_GRAPH_REGISTER"] == expected
