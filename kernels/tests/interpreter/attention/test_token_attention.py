"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support.pool import Pool, attention_options
from torch import Tensor

from text_generation_kernels import NO_PROLOGUE, NewTokens, QkvPrologue
from text_generation_kernels.attention.attention_options import NO_OPTIONS, AttentionOptions
from text_generation_kernels.attention.qkv_postprocess import qkv_postprocess_torch
from text_generation_kernels.attention.token_attention import token_attention_torch, token_attention_triton

EPS = 1e-5


def _check(
    kv_len: int,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float16,
    options: AttentionOptions = NO_OPTIONS,
    with_bias: bool = False,
    norms: str = "",
    max_kv_len: int = 500,
) -> None:
    """About as far from the formula as torch in the same type, which also rounds after its bias; caches as torch leaves
    them.
    """
    pool = Pool([kv_len], kv_heads, head_dim, dtype)
    size = (heads + 2 * kv_heads) * head_dim
    qkv = torch.randn(1, size).to(dtype)
    bias = torch.randn(size).to(dtype) if with_bias else None
    weights = _norms(norms, heads, kv_heads, head_dim, dtype)
    prologue = QkvPrologue(bias, *weights, EPS, norms.endswith("after"))
    angles, slot = 6 * torch.rand(kv_len, head_dim // 2), pool.slots(0)[-1:].clone()
    tokens = NewTokens(torch.cat((angles.cos(), angles.sin()), dim=-1), torch.tensor([kv_len - 1]), slot)
    batch, scale = pool.decodes(max_kv_len), head_dim**-0.5
    first, second = pool.k.clone(), pool.v.clone()
    results: list[tuple[Tensor, ...]] = []
    for operator in (token_attention_torch, token_attention_triton):
        pool.k.copy_(first)
        pool.v.copy_(second)
        # What was in the slot before means nothing.
        pool.k[slot] = pool.v[slot] = float("nan")
        out = torch.full((1, heads, head_dim), float("nan"), dtype=dtype)
        operator(qkv.clone(), prologue, tokens, pool.cache, batch, scale, out, options)
        results.append((out, pool.k.clone(), pool.v.clone()))
    turned = qkv.clone()
    qkv_postprocess_torch(turned, prologue, tokens, pool.cache)
    expected = pool.expected_decode(turned[:, : heads * head_dim].view(1, heads, head_dim), scale, options)
    (torch_out, *torch_caches), (out, *caches) = results
    assert (out.double() - expected).abs().max() <= 2 * (torch_out.double() - expected).abs().max() + 1e-3
    for cache, torch_cache in zip(caches, torch_caches, strict=True):
        torch.testing.assert_close(cache, torch_cache, atol=2e-3, rtol=2e-3, equal_nan=True)


def _norms(
    norms: str, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """Weights as `norms` says: none, one for all heads, or one for each."""
    if not norms:
        return None, None
    shapes = [(count, head_dim) if "each" in norms else (head_dim,) for count in (heads, kv_heads)]
    q_norm, k_norm = (1 + 0.1 * torch.randn(shape) for shape in shapes)
    return q_norm.to(dtype), k_norm.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kv_len", [1, 2, 64, 65, 66, 129, 400])
def test_contexts_at_tile_and_chunk_boundaries(kv_len: int, dtype: torch.dtype) -> None:
    _check(kv_len, dtype=dtype)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(2, 2, 8), (17, 1, 64), (14, 2, 96), (8, 1, 256)])
def test_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    _check(130, heads, kv_heads, head_dim)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("norms", ["", "shared", "each", "shared after", "each after"])
def test_bias_and_norms_of_heads(norms: str, with_bias: bool) -> None:
    _check(70, norms=norms, with_bias=with_bias, head_dim=24)


@pytest.mark.parametrize("names", ["window", "softcap", "sinks", "slopes", "window softcap sinks slopes"])
@pytest.mark.parametrize("kv_len", [1, 90, 300])
def test_options(kv_len: int, names: str) -> None:
    _check(kv_len, options=attention_options(names, 4, window=70))


def test_more_chunks_than_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thread blocks then have several tiles, of which only the first is prefetched before the wait."""
    monkeypatch.setitem(token_attention_triton.__globals__, "num_sms", lambda _: 2)
    _check(400)


def test_a_padded_row_gets_zeros_and_writes_no_cache() -> None:
    pool = Pool([0, 5], 2, 16, torch.float16)
    k, v = pool.k.clone(), pool.v.clone()
    out = torch.full((1, 4, 16), float("nan")).half()
    tokens, batch = NewTokens(torch.rand(4, 16), *[torch.tensor([0])] * 2), pool.decodes(64, slice(1))
    token_attention_triton(torch.randn(1, 128).half(), NO_PROLOGUE, tokens, pool.cache, batch, 0.25, out)
    assert not out.any()
    assert torch.equal(pool.k.nan_to_num(7.0), k.nan_to_num(7.0))
    assert torch.equal(pool.v.nan_to_num(7.0), v.nan_to_num(7.0))


def test_what_does_not_fit_is_refused() -> None:
    pool = Pool([5], 2, 16, torch.float16)
    tokens = NewTokens(torch.rand(8, 16), torch.tensor([4, 4]), torch.tensor([0, 0]))
    qkv, rest = torch.randn(2, 128).half(), (pool.decodes(64), 0.25, torch.empty(2, 4, 16).half())
    with pytest.raises(ValueError, match="token_attention: qkv must hold one token"):
        token_attention_triton(qkv, NO_PROLOGUE, tokens, pool.cache, *rest)
    codes = Pool([5], 2, 16, torch.float16, codes=torch.uint8).cache
    with pytest.raises(ValueError, match="token_attention: the cache must hold values"):
        token_attention_triton(qkv, NO_PROLOGUE, tokens, codes, *rest)
