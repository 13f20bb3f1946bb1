"""The kernels of an indexer in Triton's interpreter: run with TRITON_INTERPRET=1."""

import importlib

import pytest
import torch
from kernel_support.indexer import Choice, Contexts, Postprocess

from text_generation_kernels.attention.block_scores import block_scores_triton
from text_generation_kernels.attention.index_postprocess import index_postprocess_triton
from text_generation_kernels.attention.index_scores import index_scores_triton
from text_generation_kernels.attention.top_slots import top_slots_triton


@pytest.mark.parametrize("queries", [False, True])
@pytest.mark.parametrize(("heads", "size", "rope"), [(3, 16, 8), (20, 40, 12), (2, 8, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_postprocess(heads: int, size: int, rope: int, dtype: torch.dtype, queries: bool) -> None:
    made = Postprocess.of(heads, size, rope, dtype, queries=queries)
    index_postprocess_triton(*made.arguments)
    made.check()


@pytest.mark.parametrize(("heads", "size", "dtype"), [(4, 16, torch.float32), (17, 40, torch.float16)], ids=str)
def test_scores(heads: int, size: int, dtype: torch.dtype) -> None:
    """At edges of tiles, of several tiles, of padded rows and where there is no choice."""
    contexts = Contexts.of([1, 63, 64, 0, 65, 300, 128, 129], heads, size, dtype)
    scores = contexts.scores
    index_scores_triton(*contexts.arguments(scores, 63))
    contexts.check(scores, 63)


@pytest.mark.parametrize(("heads", "size", "block", "dtype"), [(4, 16, 64, torch.float32), (2, 40, 20, torch.float16)])
def test_scores_of_blocks(heads: int, size: int, block: int, dtype: torch.dtype) -> None:
    contexts = Contexts.of([1, 63, 64, 0, 65, 300, 128, 129, 192, 193], heads, size, dtype)
    for local in (1, 2):
        scores = contexts.block_scores(block)
        block_scores_triton(*contexts.block_arguments(scores, block, 2, local))
        contexts.check_blocks(scores, block, 2, local)


def test_scores_do_not_depend_on_the_other_tokens() -> None:
    several = Contexts.of([150, 7, 90], 3, 16, torch.float32)
    together = several.scores
    index_scores_triton(*several.arguments(together, 8))
    for token in (0, 2):
        one, kv_len = slice(token, token + 1), several.pool.kv_lens[token]
        alone = torch.empty(1, kv_len)
        batch = several.pool.decodes(kv_len, one)
        index_scores_triton(several.q[one], several.weights[one], several.pool.k, batch, 8, alone)
        assert torch.equal(alone[0], together[token, :kv_len])


@pytest.mark.parametrize("sms", [1, 10])
@pytest.mark.parametrize("k", [1, 5, 64])
def test_slots(k: int, sms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of several blocks, at their edges, and of several parts, whose histograms are added up."""
    module = importlib.import_module("text_generation_kernels.attention.top_slots")
    monkeypatch.setattr(module, "_BLOCK", 16)
    monkeypatch.setattr(module, "num_sms", lambda _: sms)
    choice = Choice.of([1, 63, 64, 0, 65, 300, 128, 129, 200, 190], k)
    slots = choice.slots
    top_slots_triton(*choice.arguments(slots))
    choice.check(slots)


def test_any_scores_choose_slots_of_the_context() -> None:
    choice = Choice.of([90], 8)
    choice.scores[0, ::2] = float("nan")
    slots = choice.slots
    top_slots_triton(*choice.arguments(slots))
    assert len(set(slots[0].tolist()) & set(choice.pool.slots(0).tolist())) == 8
