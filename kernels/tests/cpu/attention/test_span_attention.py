"""Attention across spans against the formula, over a pool in which everything unused is NaN."""

from dataclasses import replace

import pytest
import torch
from kernel_support.pool import Pool, strided_q
from torch import Tensor

import text_generation_kernels as kernels

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2}
Q_LENS, KV_LENS = [9, 4, 1, 0], [9, 12, 5, 3]
ENDS = [1, 2, *[6] * 4, 7, 9, 9, *[11] * 3, 12, 5]
"""A whole prompt with two spans, a chunk whose span began before it, and one last token."""


def formula(pool: Pool, q: Tensor, ends: list[int], window: int, scale: float) -> Tensor:
    """One query after the other, in float64."""
    rows: list[Tensor] = []
    for request, (q_len, kv_len) in enumerate(zip(Q_LENS, KV_LENS, strict=True)):
        slots = pool.slots(request)
        for position in range(kv_len - q_len, kv_len):
            seen = slots[max(0, position + 1 - window) if window else 0 : ends[len(rows)]]
            k, v = (each[seen].double().repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (pool.k, pool.v))
            weights = (scale * torch.einsum("hd,khd->hk", q[len(rows)].double(), k)).softmax(-1)
            rows.append(torch.einsum("hk,khd->hd", weights, v))
    return torch.stack(rows)


@pytest.mark.parametrize("codes", [None, torch.uint8])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("window", [0, 3, 6])
def test_tokens_of_a_span_see_its_end(window: int, dtype: torch.dtype, codes: torch.dtype | None) -> None:
    pool = Pool(KV_LENS, 2, 8, dtype, codes=codes)
    q = strided_q(sum(Q_LENS), 4, 8, dtype)
    out = torch.full((sum(Q_LENS), 4, 8), float("nan"), dtype=dtype)
    batch = replace(pool.chunks(Q_LENS), seen_ends=torch.tensor(ENDS))

    kernels.span_attention(q, pool.cache, batch, 8**-0.5, out, window)

    expected = formula(pool, q, ENDS, window, 8**-0.5)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("window", [0, 4])
def test_without_spans_it_is_causal(window: int) -> None:
    pool = Pool(KV_LENS, 2, 8, torch.float32)
    q = strided_q(sum(Q_LENS), 4, 8, torch.float32)
    ends = [end for q_len, kv_len in zip(Q_LENS, KV_LENS, strict=True) for end in range(kv_len - q_len + 1, kv_len + 1)]
    batch = replace(pool.chunks(Q_LENS), seen_ends=torch.tensor(ends))
    spans, causal = (torch.empty(sum(Q_LENS), 4, 8) for _ in range(2))
    kernels.span_attention(q, pool.cache, batch, 0.3, spans, window)
    options = kernels.AttentionOptions(window)
    kernels.prefill_attention(q, pool.cache, batch, 0.3, causal, False, options)
    torch.testing.assert_close(spans, causal)
