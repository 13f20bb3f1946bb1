"""Latent attention as it serves: 16-bit types, in graphs, beside chunks, on the device."""

from pathlib import Path

import pytest
import torch
from kernel_support.latent import Contexts, Expansion, Postprocess
from support.families import larger, write
from support.gpu_engine import alone, build, check, schedule
from support.latent_cases import LATENT_CASES
from torch.nn.attention import SDPBackend, sdpa_kernel

import text_generation_kernels as kernels
from text_generation_kernels.attention.latent_decode_attention import latent_decode_attention_torch
from text_generation_kernels.attention.latent_prefill_attention import latent_prefill_attention_torch
from text_generation_server.layers.infer import expanded

pytestmark = pytest.mark.gpu
SIZES = [(16, 512, 64), (128, 512, 64), (40, 256, 32), (3, 24, 10)]
DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "rank", "rope"), SIZES, ids=str)
@pytest.mark.parametrize("kv_lens", [[5000], [63, 64, 65, 0, 255, 257, 1], [8, 1000, 129] * 20], ids=len)
def test_decode(kv_lens: list[int], heads: int, rank: int, rope: int, dtype: torch.dtype, deterministic: bool) -> None:
    contexts = Contexts.of([1] * len(kv_lens), kv_lens, heads, rank, rope, dtype, "cuda")
    out, torch_out = contexts.out, contexts.out
    kernels.latent_decode_attention(*contexts.decode_arguments(out, deterministic))
    # Torch's faster ways want aligned queries.
    with sdpa_kernel(SDPBackend.MATH):
        latent_decode_attention_torch(*contexts.decode_arguments(torch_out))
    contexts.check(out, torch_out)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "rank", "rope"), SIZES, ids=str)
@pytest.mark.parametrize("kv_lens", [[5000], [63, 64, 1, 0, 255, 257, 0], [8, 1000, 129] * 20], ids=len)
def test_shares_of_contexts(
    kv_lens: list[int], heads: int, rank: int, rope: int, dtype: torch.dtype, ranks: int
) -> None:
    contexts = Contexts.of([1] * len(kv_lens), kv_lens, heads, rank, rope, dtype, "cuda")
    torch_out = contexts.out
    with sdpa_kernel(SDPBackend.MATH):
        latent_decode_attention_torch(*contexts.decode_arguments(torch_out))
    operators = kernels.own_slots, kernels.latent_decode_attention, kernels.merge_shares
    contexts.check(contexts.in_shares(ranks, *operators), torch_out)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "rank", "rope"), SIZES, ids=str)
@pytest.mark.parametrize(("q_lens", "kv_lens"), [([1, 5, 64, 0, 300], [1, 14, 164, 9, 1300]), ([16], [4000])], ids=str)
def test_prefill(
    q_lens: list[int], kv_lens: list[int], heads: int, rank: int, rope: int, dtype: torch.dtype, deterministic: bool
) -> None:
    contexts = Contexts.of(q_lens, kv_lens, heads, rank, rope, dtype, "cuda")
    out, torch_out = contexts.out, contexts.out
    kernels.latent_prefill_attention(*contexts.prefill_arguments(out, deterministic))
    latent_prefill_attention_torch(*contexts.prefill_arguments(torch_out))
    contexts.check(out, torch_out)


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES])
@pytest.mark.parametrize(("heads", "rank", "rope", "key", "value"), [(16, 512, 64, 128, 128), (3, 24, 10, 12, 20)])
def test_expand(heads: int, rank: int, rope: int, key: int, value: int, dtype: torch.dtype) -> None:
    made = Expansion.of(heads, rank, rope, key, value, dtype, "cuda")
    kernels.latent_expand(*made.arguments)
    made.check()


def test_deterministic_results_do_not_depend_on_where_a_prompt_is_cut() -> None:
    contexts = Contexts.of([200], [900], 16, 512, 64, torch.bfloat16, "cuda")
    out = contexts.out
    kernels.latent_prefill_attention(*contexts.prefill_arguments(out, True))
    pool = contexts.pool
    for begin, end in ((0, 77), (77, 78), (78, 200)):
        starts = torch.tensor([0, end - begin], dtype=torch.int32, device="cuda")
        length = torch.tensor([700 + end], dtype=torch.int32, device="cuda")
        piece = contexts.out[begin:end]
        batch = kernels.Chunks(pool.table, pool.b_row, starts, length, end - begin)
        kernels.latent_prefill_attention(contexts.q[begin:end], pool.k, batch, contexts.scale, piece, True)
        assert torch.equal(piece, out[begin:end])


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES])
@pytest.mark.parametrize(("heads", "rank", "rope"), SIZES, ids=str)
def test_postprocess(heads: int, rank: int, rope: int, dtype: torch.dtype) -> None:
    made = Postprocess.of(heads, rank, rope, 128, dtype, "cuda")
    kernels.latent_postprocess(*made.arguments)
    made.check()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the ids of the schedules."""
    path = tmp_path_factory.mktemp("deepseek")
    write(LATENT_CASES["deepseek v3"], larger("deepseek v3", 384), path)
    return path


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
def test_schedules_change_no_token(folder: Path, graphs: tuple[int, ...] | None) -> None:
    """In deterministic mode: chunks beside decodes, prefixes that are computed, pauses."""
    engine = build(folder, torch.bfloat16, deterministic=True, cuda_graphs=graphs)
    expected = alone(engine, 20)
    assert len({tuple(tokens) for tokens in expected}) > 15
    for seed in range(60):
        check(schedule(engine, seed, numbers=20, count=4, pause=0.03), expected, seed)


def test_graphs_and_expanded_contexts_change_no_token_in_the_default_mode(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 nothing hangs on the last bits of this model."""
    monkeypatch.setattr(expanded, "LEAST_TOKENS", 1 << 20)
    expected = alone(build(folder, torch.float32, cuda_graphs=()), 20)
    monkeypatch.setattr(expanded, "WORTH", 0.1)
    monkeypatch.setattr(expanded, "LEAST_TOKENS", 16)
    engine = build(folder, torch.float32)
    for seed in range(3):
        assert check(schedule(engine, seed, numbers=20, count=15, pause=0.02), expected, seed) > 8
