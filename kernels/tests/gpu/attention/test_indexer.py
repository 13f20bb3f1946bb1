"""The Triton kernels of an indexer as they serve: through the dispatcher, on the device."""

import pytest
import torch
from kernel_support.indexer import Choice, Contexts, Postprocess

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [False, True])
@pytest.mark.parametrize(("heads", "size", "rope"), [(64, 128, 64), (32, 128, 64), (5, 40, 12)], ids=str)
def test_postprocess(heads: int, size: int, rope: int, dtype: torch.dtype, queries: bool) -> None:
    made = Postprocess.of(heads, size, rope, dtype, "cuda", queries)
    kernels.index_postprocess(*made.arguments)
    made.check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "size"), [(64, 128), (32, 128), (5, 40)], ids=str)
@pytest.mark.parametrize("kv_lens", [[9000], [2047, 2048, 2049, 0, 1, 5000], [3000, 100] * 40], ids=len)
def test_scores(kv_lens: list[int], heads: int, size: int, dtype: torch.dtype) -> None:
    contexts = Contexts.of(kv_lens, heads, size, dtype, "cuda")
    scores = contexts.scores
    kernels.index_scores(*contexts.arguments(scores, 2048))
    # Dot products of 128 elements, added up over 64 heads.
    expected = contexts.expected(2048)
    close = 1e-3 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(scores.double(), expected, atol=close, rtol=close, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "size", "block"), [(4, 128, 128), (1, 128, 128), (2, 40, 20)], ids=str)
@pytest.mark.parametrize("kv_lens", [[9000], [2047, 2048, 2049, 0, 1, 5000], [3000, 100] * 40], ids=len)
def test_scores_of_blocks(kv_lens: list[int], heads: int, size: int, block: int, dtype: torch.dtype) -> None:
    contexts = Contexts.of(kv_lens, heads, size, dtype, "cuda")
    scores = contexts.block_scores(block)
    kernels.block_scores(*contexts.block_arguments(scores, block, 16, 1))
    contexts.check_blocks(scores, block, 16, 1)


@pytest.mark.parametrize("k", [1, 64, 2048])
@pytest.mark.parametrize("kv_lens", [[40_000], [2047, 2048, 2049, 0, 1, 5000, 4096, 8193], [3000, 100] * 40], ids=len)
def test_slots(kv_lens: list[int], k: int) -> None:
    choice = Choice.of(kv_lens, k, "cuda")
    slots = choice.slots
    kernels.top_slots(*choice.arguments(slots))
    choice.check(slots)


def test_a_graph_chooses_by_what_is_there_when_it_is_replayed() -> None:
    choice = Choice.of([40, 3000], 64, "cuda")
    slots, batch = choice.slots, choice.pool.decodes()
    kernels.top_slots(choice.scores, batch, slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.top_slots(choice.scores, batch, slots)
    choice.scores.copy_(torch.randn_like(choice.scores))
    graph.replay()
    choice.check(slots)


def test_scores_do_not_depend_on_the_other_tokens() -> None:
    several = Contexts.of([3000, 7, 2500] * 20, 64, 128, torch.bfloat16, "cuda")
    together = several.scores
    kernels.index_scores(*several.arguments(together, 2048))
    for token in (0, 2):
        one, kv_len = slice(token, token + 1), several.pool.kv_lens[token]
        alone = torch.empty(1, kv_len, device="cuda")
        batch = several.pool.decodes(kv_len, one)
        kernels.index_scores(several.q[one], several.weights[one], several.pool.k, batch, 2048, alone)
        assert torch.equal(alone[0], together[token, :kv_len])
