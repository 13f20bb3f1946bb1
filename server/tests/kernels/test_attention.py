"""Both attention operators against the formula, over a pool in which everything unused is NaN."""

import pytest
import torch
from support import reference
from torch import Tensor

from text_generation_server import kernels

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}


class Pool:
    """Scattered contexts of several requests."""

    def __init__(self, kv_lens: list[int], kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        num_slots, longest = sum(kv_lens) + 1, max(kv_lens) + 3
        order = torch.randperm(num_slots - 1)
        unused = num_slots - 1
        self.k, self.v = (torch.randn(num_slots, kv_heads, head_dim).to(dtype) for _ in range(2))
        self.k[unused] = self.v[unused] = float("nan")
        self.b_row = torch.randperm(len(kv_lens) + 2)[: len(kv_lens)]
        self.table = torch.full((len(kv_lens) + 2, longest), unused, dtype=torch.int32)
        self.kv_lens = kv_lens
        start = 0
        for row, kv_len in zip(self.b_row.tolist(), kv_lens, strict=True):
            self.table[row, :kv_len] = order[start : start + kv_len].int()
            start += kv_len

    def expected(self, request: int, context: int, q: Tensor, scale: float) -> Tensor:
        """Attention of all heads of one token over the first `context` tokens of a request."""
        slots = self.table[self.b_row[request], :context].long()
        group = q.shape[0] // self.k.shape[1]
        heads = [
            reference.attention(q[head], self.k[slots, head // group], self.v[slots, head // group], scale)
            for head in range(q.shape[0])
        ]
        return torch.stack(heads)


def _strided_q(tokens: int, heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Queries as they lie in the fused QKV product: with other data between tokens."""
    return torch.randn(tokens, 3 * heads * head_dim).to(dtype)[:, : heads * head_dim].view(tokens, heads, head_dim)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 8), (4, 2, 8), (8, 1, 16), (4, 2, 256)], ids=str)
def test_decode(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    pool = Pool([1, 37, 5, 64], kv_heads, head_dim, dtype)
    q = _strided_q(4, heads, head_dim, dtype)
    out = torch.full((4, heads, head_dim), float("nan"), dtype=dtype)
    kv_len = torch.tensor(pool.kv_lens, dtype=torch.int32)

    kernels.decode_attention(q, pool.k, pool.v, pool.table, pool.b_row, kv_len, 64, head_dim**-0.5, out)

    expected = torch.stack([pool.expected(i, n, q[i], head_dim**-0.5) for i, n in enumerate(pool.kv_lens)])
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("batch", [1, 3])
def test_decode_of_a_padded_row_gives_zeros(batch: int) -> None:
    pool = Pool([4] * batch, 2, 8, torch.float32)
    q = _strided_q(batch, 4, 8, torch.float32)
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
    q_lens, kv_lens, head_dim = [7, 1, 5, 1, 0], [7, 1, 12, 9, 3], 8
    pool = Pool(kv_lens, kv_heads, head_dim, dtype)
    q = _strided_q(sum(q_lens), heads, head_dim, dtype)
    out = torch.full((sum(q_lens), heads, head_dim), float("nan"), dtype=dtype)
    starts = torch.tensor([0, *q_lens]).cumsum(0).int()
    kv_len = torch.tensor(kv_lens, dtype=torch.int32)

    kernels.prefill_attention(
        q, pool.k, pool.v, pool.table, pool.b_row, starts, kv_len, max(q_lens), head_dim**-0.5, out
    )

    expected = [
        pool.expected(request, kv_lens[request] - q_len + 1 + index, q[int(starts[request]) + index], head_dim**-0.5)
        for request, q_len in enumerate(q_lens)
        for index in range(q_len)
    ]
    torch.testing.assert_close(out.double(), torch.stack(expected), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
