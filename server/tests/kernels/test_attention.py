"""Both attention operators against the formula, over a pool in which everything unused is NaN."""

import pytest
import torch
from support.pool import Pool, query_starts, strided_q

from text_generation_server import kernels

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 8), (4, 2, 8), (8, 1, 16), (4, 2, 256)], ids=str)
def test_decode(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    pool = Pool([1, 37, 5, 64], kv_heads, head_dim, dtype)
    q = strided_q(4, heads, head_dim, dtype)
    out = torch.full((4, heads, head_dim), float("nan"), dtype=dtype)

    kernels.decode_attention(q, pool.k, pool.v, pool.table, pool.b_row, pool.b_kv_len, 64, head_dim**-0.5, out)

    expected = pool.expected_decode(q, head_dim**-0.5)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_deterministic_decode_gives_the_same_bits_alone_and_in_a_batch() -> None:
    pool = Pool([3, 9, 6], 2, 8, torch.float32)
    q = strided_q(3, 4, 8, torch.float32)
    together = torch.empty(3, 4, 8)
    caches = (pool.k, pool.v, pool.table)
    kernels.decode_attention(q, *caches, pool.b_row, pool.b_kv_len, 9, 1.0, together, True)
    for one in (slice(0, 1), slice(1, 2), slice(2, 3)):
        alone = torch.empty(1, 4, 8)
        kernels.decode_attention(q[one], *caches, pool.b_row[one], pool.b_kv_len[one], 9, 1.0, alone, True)
        assert torch.equal(alone, together[one])


@pytest.mark.parametrize("batch", [1, 3])
def test_decode_of_a_padded_row_gives_zeros(batch: int) -> None:
    pool = Pool([4] * batch, 2, 8, torch.float32)
    q = strided_q(batch, 4, 8, torch.float32)
    out = torch.full((batch, 4, 8), float("nan"))
    kv_len = torch.tensor([4] * (batch - 1) + [0], dtype=torch.int32)
    pool.table[pool.b_row[-1]] = 0
    kernels.decode_attention(q, pool.k, pool.v, pool.table, pool.b_row, kv_len, 4, 1.0, out)
    assert torch.equal(out[-1], torch.zeros(4, 8))
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)], ids=str)
def test_prefill(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    # Whole prompts, a piece after a cached prefix, one last token, and a request without new tokens.
    q_lens, head_dim = [7, 1, 5, 1, 0], 8
    pool = Pool([7, 1, 12, 9, 3], kv_heads, head_dim, dtype)
    q = strided_q(sum(q_lens), heads, head_dim, dtype)
    out = torch.full((sum(q_lens), heads, head_dim), float("nan"), dtype=dtype)

    kernels.prefill_attention(
        q, pool.k, pool.v, pool.table, pool.b_row, query_starts(q_lens), pool.b_kv_len, max(q_lens), head_dim**-0.5, out
    )

    expected = pool.expected_prefill(q, q_lens, head_dim**-0.5)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
