"""The kernels of latent attention in Triton's interpreter: run with TRITON_INTERPRET=1."""

import importlib

import pytest
import torch
from kernel_support.latent import Contexts, Expansion, Postprocess
from torch import Tensor

from text_generation_kernels.attention.latent_decode_attention import (
    latent_decode_attention_torch,
    latent_decode_attention_triton,
)
from text_generation_kernels.attention.latent_expand import latent_expand_triton
from text_generation_kernels.attention.latent_postprocess import latent_postprocess_triton
from text_generation_kernels.attention.latent_prefill_attention import (
    latent_prefill_attention_torch,
    latent_prefill_attention_triton,
)
from text_generation_kernels.attention.merge_shares import merge_shares_triton
from text_generation_kernels.attention.own_slots import own_slots_torch, own_slots_triton
from text_generation_kernels.attention.requests import Decodes

SIZES = [(4, 16, 8, torch.float32), (17, 40, 12, torch.float16)]


def _decode(contexts: Contexts, deterministic: bool = False) -> Tensor:
    out = contexts.out
    latent_decode_attention_triton(*contexts.decode_arguments(out, deterministic))
    return out


def _prefill(contexts: Contexts, deterministic: bool = False) -> Tensor:
    out = contexts.out
    latent_prefill_attention_triton(*contexts.prefill_arguments(out, deterministic))
    return out


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("heads", "rank", "rope", "dtype"), SIZES, ids=str)
def test_decode(heads: int, rank: int, rope: int, dtype: torch.dtype, deterministic: bool) -> None:
    """At edges of tiles and chunks, and a padded row."""
    contexts = Contexts.of([1] * 6, [1, 63, 64, 0, 65, 300], heads, rank, rope, dtype)
    torch_out = contexts.out
    latent_decode_attention_torch(*contexts.decode_arguments(torch_out))
    contexts.check(_decode(contexts, deterministic), torch_out)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("heads", "rank", "rope", "dtype"), SIZES, ids=str)
def test_shares_of_contexts(heads: int, rank: int, rope: int, dtype: torch.dtype, ranks: int) -> None:
    """Some of one chunk, some of several, and some with nothing on a rank."""
    contexts = Contexts.of([1] * 6, [1, 63, 0, 65, 600, 0], heads, rank, rope, dtype)
    torch_out = contexts.out
    latent_decode_attention_torch(*contexts.decode_arguments(torch_out))
    contexts.check(
        contexts.in_shares(ranks, own_slots_triton, latent_decode_attention_triton, merge_shares_triton), torch_out
    )


def test_slots_of_a_rank_in_long_contexts() -> None:
    torch.manual_seed(0)
    table = torch.randint(1 << 20, (3, 5000), dtype=torch.int32)
    rows, kv_lens = torch.tensor([2, 2, 0, 0]), torch.tensor([4999, 5000, 2048, 0], dtype=torch.int32)
    batch, own_rows = Decodes(table, rows, kv_lens, 5000), torch.tensor([0, 0, 1, 1])
    made = [(torch.zeros(2, 5000, dtype=torch.int32), torch.empty_like(kv_lens)) for _ in range(2)]
    own_slots_triton(batch, own_rows, 3, 4, *made[0])
    own_slots_torch(batch, own_rows, 3, 4, *made[1])
    for own, expected in zip(*made, strict=True):
        assert torch.equal(own, expected)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("heads", "rank", "rope", "dtype"), SIZES, ids=str)
def test_prefill(heads: int, rank: int, rope: int, dtype: torch.dtype, deterministic: bool) -> None:
    """Chunks after prefixes, one that needs several tiles, and one without tokens. Few tokens split their keys."""
    contexts = Contexts.of([5, 3, 0, 17], [5, 600, 9, 20], heads, rank, rope, dtype)
    torch_out = contexts.out
    latent_prefill_attention_torch(*contexts.prefill_arguments(torch_out))
    contexts.check(_prefill(contexts, deterministic), torch_out)


def test_deterministic_decodes_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("text_generation_kernels.attention._chunking")
    monkeypatch.setattr(module, "_DETERMINISTIC_CHUNK", 64)
    several = Contexts.of([1] * 3, [150, 7, 90], 3, 16, 8, torch.float32)
    together = _decode(several, True)
    for index in range(3):
        one, pool = slice(index, index + 1), several.pool
        out = several.q.new_empty(1, 3, 16)
        latent_decode_attention_triton(several.q[one], pool.k, pool.decodes(150, one), several.scale, out, True)
        assert torch.equal(out[0], together[index])


@pytest.mark.parametrize(("heads", "rank", "rope", "key"), [(3, 16, 8, 12), (20, 40, 12, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_postprocess(heads: int, rank: int, rope: int, key: int, dtype: torch.dtype) -> None:
    made = Postprocess.of(heads, rank, rope, key, dtype)
    latent_postprocess_triton(*made.arguments)
    made.check()


@pytest.mark.parametrize(
    ("rank", "rope", "key", "value", "dtype"), [(40, 8, 12, 20, torch.float32), (32, 12, 16, 16, torch.float16)]
)
def test_expand(rank: int, rope: int, key: int, value: int, dtype: torch.dtype) -> None:
    made = Expansion.of(2, rank, rope, key, value, dtype)
    latent_expand_triton(*made.arguments)
    made.check()


def test_nothing_is_written_for_tokens_of_a_request_of_length_0() -> None:
    contexts = Contexts.of([5, 3, 4], [9, 7, 4], 4, 16, 8, torch.float32)
    out, some = contexts.out, contexts.out
    latent_prefill_attention_triton(*contexts.prefill_arguments(out))
    contexts.pool.b_kv_len[1] = 0
    latent_prefill_attention_triton(*contexts.prefill_arguments(some))
    assert some[5:8].isnan().all()
    assert torch.equal(some[:5], out[:5])
    assert torch.equal(some[8:], out[8:])
