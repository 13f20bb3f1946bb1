"""Decode attention with several tokens of each request, in Triton's interpreter: run with TRITON_INTERPRET=1."""

import importlib

import pytest
import torch
from kernel_support.latent import Contexts
from kernel_support.pool import Pool, attention_options, strided_q
from torch import Tensor

from text_generation_kernels import Decodes
from text_generation_kernels.attention.attention_options import NO_OPTIONS, AttentionOptions
from text_generation_kernels.attention.decode_attention import decode_attention_torch, decode_attention_triton
from text_generation_kernels.attention.kv_quantisation import KV_CODES
from text_generation_kernels.attention.latent_decode_attention import (
    latent_decode_attention_torch,
    latent_decode_attention_triton,
)

WIDTHS = [2, 3, 4, 5, 8, 16]


def _attend(
    pool: Pool, q: Tensor, batch: Decodes, options: AttentionOptions = NO_OPTIONS, deterministic: bool = False
) -> Tensor:
    out = q.new_full((*q.shape[:2], pool.v.shape[2]), float("nan"))
    decode_attention_triton(q, pool.cache, batch, q.shape[2] ** -0.5, out, deterministic, options)
    return out


def _check(
    windows: list[tuple[int, int]],
    width: int,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    options: AttentionOptions = NO_OPTIONS,
    codes: torch.dtype | None = None,
    max_kv_len: int | None = None,
    deterministic: bool = False,
) -> None:
    """`windows`: the length of each request, its tokens included, and how many of these there are."""
    kv_lens, counts = [length for length, _ in windows], [count for _, count in windows]
    pool = Pool(kv_lens, kv_heads, head_dim, dtype, codes=codes)
    q, batch = strided_q(len(windows) * width, heads, head_dim, dtype), pool.windows(counts, width, max_kv_len)
    torch_out = q.new_full(q.shape, float("nan"))
    decode_attention_torch(q, pool.cache, pool.windows(counts, width), head_dim**-0.5, torch_out, False, options)

    out = _attend(pool, q, batch, options, deterministic)

    expected = pool.expected_windows(q, counts, width, head_dim**-0.5, options)
    # At most twice as far from the formula as torch in the same type. NaN is never close.
    error = (out.double() - expected).abs().max()
    assert error <= 2 * (torch_out.double() - expected).abs().max() + 1e-5
    assert not out[batch.kv_lens == 0].any()


def _ragged(width: int) -> list[tuple[int, int]]:
    """Windows at edges of tiles and chunks, some with fewer tokens, one that its request begins with, and padding."""
    return [(width, width), (64, 1), (65, 2), (200, width - 1), (0, 0), (300, width), (0, 0)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("few", [0, 32], ids=["merged by the last thread block", "merged by a kernel"])
def test_windows_of_any_width(few: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decode_attention_triton.__globals__, "_FEW_WINDOWS", few)
    _check(_ragged(width), width, dtype=torch.float16 if width == 4 else torch.float32)


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(2, 2, 5), (7, 1, 2), (17, 1, 4), (24, 2, 5)], ids=str)
def test_groups_of_heads(heads: int, kv_heads: int, width: int) -> None:
    """Rows that are no power of two, and more than a tile has."""
    _check([(70, width), (3, min(3, width)), (260, width)], width, heads, kv_heads)


@pytest.mark.parametrize("head_dim", [8, 80, 128, 256, 512])
def test_head_sizes(head_dim: int) -> None:
    _check([(20, 8), (150, 5)], 8, 4, 1, head_dim, torch.float16)


@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize("length", [64, 129, 400])
def test_one_request_whose_chunks_a_second_kernel_merges(length: int, width: int) -> None:
    for count in (1, width - 1, width):
        _check([(length, min(length, count))], width)


def test_chunks_that_only_missing_tokens_would_reach() -> None:
    """The plan has room for a whole window. The bounds of a graph may be far above all lengths."""
    _check([(128, 1), (385, 1)], 16, max_kv_len=600)
    _check([(64, 1)], 16, max_kv_len=600)


def test_a_batch_of_padding_gives_zeros() -> None:
    for windows in ([(0, 0), (0, 0)], [(0, 0)]):
        _check(windows, 4, max_kv_len=200)


def test_slots_behind_the_last_token_are_not_read() -> None:
    """They are those of other requests, or of nobody: reading one would give NaN."""
    pool = Pool([66, 66], 1, 16, torch.float32)
    pool.table[pool.b_row[0], 66:] = 1 << 30
    q = strided_q(16, 4, 16, torch.float32)
    assert _attend(pool, q, pool.windows([1, 3], 8)).isfinite().all()


OPTIONS = ["window", "softcap", "sinks", "slopes", "window softcap sinks slopes"]


@pytest.mark.parametrize("names", OPTIONS)
@pytest.mark.parametrize("width", [2, 7])
def test_options_where_contexts_are_one_chunk(width: int, names: str) -> None:
    options = attention_options(names, 4, window=70)
    _check([(69, 2), (70, 1), (73, width), (0, 0), (1, 1)], width, dtype=torch.float16, options=options)


@pytest.mark.parametrize("names", ["window", "window softcap sinks slopes"])
def test_options_where_contexts_are_cut(names: str) -> None:
    options = attention_options(names, 4, window=300)
    _check([(301, 2), (500, 8), (40, 1), (0, 0)], 8, options=options)
    _check([(400, 7)], 8, options=options)


def test_a_window_smaller_than_the_tokens_of_a_request() -> None:
    for window in (1, 3):
        options = attention_options("window sinks", 4, window)
        _check([(8, 8), (3, 3), (64, 8), (200, 7)], 8, options=options)


@pytest.mark.parametrize("codes", list(KV_CODES.values()), ids=str)
@pytest.mark.parametrize("width", [2, 5])
def test_codes(width: int, codes: torch.dtype) -> None:
    _check(_ragged(width), width, dtype=torch.float16, codes=codes)
    options = attention_options("window softcap sinks slopes", 8, window=200)
    _check([(201, 2), (300, width), (0, 0)], width, 8, 1, dtype=torch.float16, codes=codes, options=options)
    _check([(150, width - 1)], width, 8, 1, 128, torch.float16, codes=codes)


@pytest.mark.parametrize("codes", [None, torch.uint8], ids=str)
@pytest.mark.parametrize("names", ["", "window sinks"])
def test_deterministic_windows_have_the_bits_of_single_tokens(names: str, codes: torch.dtype | None) -> None:
    options, counts, width = attention_options(names, 4, window=300), [4, 3, 0, 1], 4
    dtype = torch.float32 if codes is None else torch.float16
    pool = Pool([300, 400, 0, 70], 2, 16, dtype, codes=codes)
    q, batch = strided_q(16, 4, 16, dtype), pool.windows(counts, width)
    together = _attend(pool, q, batch, options, deterministic=True)
    for entry in range(16):
        one = slice(entry, entry + 1)
        alone = Decodes(pool.table, batch.rows[one], batch.kv_lens[one], 400)
        assert torch.equal(_attend(pool, q[one], alone, options, deterministic=True), together[one])


def test_a_device_with_few_resident_thread_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of requests that are alike and of requests that are not, in tiles of fewer rows than windows have."""
    small = {"BLOCK_G": 16, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2, "programs": 8, "resident": 6}
    module = importlib.import_module("text_generation_kernels.attention.decode_attention")
    monkeypatch.setattr(module, "nearest", lambda *_, **__: small)
    for windows in ([(900, 8)], [(400, 8), (390, 1), (0, 0), (410, 5)], [(300, 8)] * 5, [(900, 8), (20, 8), (5, 5)]):
        _check(windows, 8, 8, 2)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("heads", "dtype", "width"), [(4, torch.float32, 8), (17, torch.float16, 3)], ids=str)
def test_latent_windows(heads: int, dtype: torch.dtype, width: int, deterministic: bool) -> None:
    for windows in (_ragged(width), [(150, width - 1)], [(9, width)]):
        counts = [count for _, count in windows]
        contexts = Contexts.of(counts, [length for length, _ in windows], heads, 40, 12, dtype)
        batch = contexts.pool.windows(counts, width)
        there = batch.kv_lens > 0
        q = contexts.q.new_zeros(len(there), *contexts.q.shape[1:])
        q[there] = contexts.q
        out, torch_out = (q.new_full((len(there), heads, 40), float("nan")) for _ in range(2))
        latent_decode_attention_triton(q, contexts.pool.k, batch, contexts.scale, out, deterministic)
        latent_decode_attention_torch(q, contexts.pool.k, batch, contexts.scale, torch_out)
        contexts.check(out[there], torch_out[there])
        assert not out[~there].any()


def test_widths_that_do_not_fit_are_refused() -> None:
    pool = Pool([40, 40], 2, 16, torch.float32)
    batch = pool.windows([4, 4], 4)
    q = strided_q(7, 4, 16, torch.float32)
    with pytest.raises(ValueError, match="decode_attention: 7 tokens"):
        _attend(pool, q, batch)
