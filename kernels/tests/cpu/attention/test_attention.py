"""Both attention operators against the formula, over a pool in which everything unused is NaN."""

import pytest
import torch
from kernel_support.pool import Pool, attention_options, strided_q

import text_generation_kernels as kernels

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 8), (4, 2, 8), (8, 1, 16), (4, 2, 256)], ids=str)
def test_decode(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    pool = Pool([1, 37, 5, 64], kv_heads, head_dim, dtype)
    q = strided_q(4, heads, head_dim, dtype)
    out = torch.full((4, heads, head_dim), float("nan"), dtype=dtype)

    kernels.decode_attention(q, pool.cache, pool.decodes(), head_dim**-0.5, out)

    expected = pool.expected_decode(q, head_dim**-0.5)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_deterministic_decode_gives_the_same_bits_alone_and_in_a_batch() -> None:
    pool = Pool([3, 9, 6], 2, 8, torch.float32)
    q = strided_q(3, 4, 8, torch.float32)
    together = torch.empty(3, 4, 8)
    kernels.decode_attention(q, pool.cache, pool.decodes(), 1.0, together, True)
    for one in (slice(0, 1), slice(1, 2), slice(2, 3)):
        alone = torch.empty(1, 4, 8)
        kernels.decode_attention(q[one], pool.cache, pool.decodes(some=one), 1.0, alone, True)
        assert torch.equal(alone, together[one])


@pytest.mark.parametrize("batch", [1, 3])
def test_decode_of_a_padded_row_gives_zeros(batch: int) -> None:
    pool = Pool([4] * batch, 2, 8, torch.float32)
    q = strided_q(batch, 4, 8, torch.float32)
    out = torch.full((batch, 4, 8), float("nan"))
    pool.b_kv_len[-1] = 0
    pool.table[pool.b_row[-1]] = 0
    kernels.decode_attention(q, pool.cache, pool.decodes(), 1.0, out)
    assert torch.equal(out[-1], torch.zeros(4, 8))
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)], ids=str)
def test_prefill(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    # Whole prompts, a chunk after a cached prefix, one last token, and a request without new tokens.
    q_lens, head_dim = [7, 1, 5, 1, 0], 8
    pool = Pool([7, 1, 12, 9, 3], kv_heads, head_dim, dtype)
    q = strided_q(sum(q_lens), heads, head_dim, dtype)
    out = torch.full((sum(q_lens), heads, head_dim), float("nan"), dtype=dtype)

    kernels.prefill_attention(q, pool.cache, pool.chunks(q_lens), head_dim**-0.5, out)

    expected = pool.expected_prefill(q, q_lens, head_dim**-0.5)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


OPTIONS = ["window", "softcap", "sinks", "slopes", "window softcap", "window sinks", "window softcap sinks slopes"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("names", OPTIONS)
def test_decode_with_options(names: str, deterministic: bool, dtype: torch.dtype) -> None:
    # Contexts around the window, and a padded row.
    pool = Pool([4, 5, 6, 1, 23, 0], 2, 8, dtype)
    q = strided_q(6, 4, 8, dtype)
    out = torch.full((6, 4, 8), float("nan"), dtype=dtype)
    options = attention_options(names, 4, window=5)

    kernels.decode_attention(q, pool.cache, pool.decodes(), 8**-0.5, out, deterministic, options)

    expected = pool.expected_decode(q, 8**-0.5, options)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [1, 5, 100])
@pytest.mark.parametrize("names", OPTIONS)
def test_prefill_with_options(names: str, window: int, dtype: torch.dtype) -> None:
    q_lens = [4, 5, 6, 1, 7, 0]
    pool = Pool([4, 5, 6, 9, 19, 3], 2, 8, dtype)
    q = strided_q(sum(q_lens), 4, 8, dtype)
    out = torch.full((sum(q_lens), 4, 8), float("nan"), dtype=dtype)
    options = attention_options(names, 4, window)

    kernels.prefill_attention(q, pool.cache, pool.chunks(q_lens), 8**-0.5, out, False, options)

    expected = pool.expected_prefill(q, q_lens, 8**-0.5, options)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_long_prompts_with_options() -> None:
    # More queries than are computed at once, their windows across the boundary.
    pool, q = Pool([520], 1, 8, torch.float32), strided_q(500, 2, 8, torch.float32)
    out, options = torch.full((500, 2, 8), float("nan")), attention_options("window softcap", 2, window=40)
    kernels.prefill_attention(q, pool.cache, pool.chunks([500]), 0.3, out, False, options)
    torch.testing.assert_close(out.double(), pool.expected_prefill(q, [500], 0.3, options), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("names", ["", "window", "sinks"])
def test_values_may_have_another_head_size(names: str) -> None:
    pool, q_lens = Pool([3, 9], 2, 16, torch.float32, v_head_dim=8), [3, 4]
    q, options = strided_q(7, 4, 16, torch.float32), attention_options(names, 4, window=2)
    out = torch.full((7, 4, 8), float("nan"))
    kernels.prefill_attention(q, pool.cache, pool.chunks(q_lens), 0.25, out, False, options)
    torch.testing.assert_close(out.double(), pool.expected_prefill(q, q_lens, 0.25, options), atol=1e-5, rtol=1e-5)
    decoded = torch.full((2, 4, 8), float("nan"))
    kernels.decode_attention(q[:2], pool.cache, pool.decodes(), 0.25, decoded, False, options)
    torch.testing.assert_close(decoded.double(), pool.expected_decode(q[:2], 0.25, options), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["window", "softcap"])
def test_negative_options_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"attention: {name} is -1"):
        kernels.AttentionOptions(**{name: -1})
