"""Decode attention with several tokens of each request, as it serves: 16-bit types, through the dispatcher, on the
device.
"""

from dataclasses import replace

import pytest
import torch
from kernel_support.latent import Contexts
from kernel_support.pool import Pool, attention_options, strided_q
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import NO_PROLOGUE, Decodes, NewTokens
from text_generation_kernels.attention.attention_options import NO_OPTIONS, AttentionOptions
from text_generation_kernels.attention.decode_attention import decode_attention_torch

pytestmark = pytest.mark.gpu
WIDTHS = [2, 3, 4, 8, 16]
CODES = [None, *kernels.KV_CODES.values()]


def _windows(width: int, many: bool) -> list[tuple[int, int]]:
    """The length of each request, its tokens included, and how many of these there are."""
    some = [(width, width), (64, 1), (65, 2), (300, width - 1), (5000, width), (700, width), (0, 0), (129, 1)]
    return some * 5 + [(0, 0)] * 3 if many else some


def _check(
    pool: Pool, q: Tensor, counts: list[int], width: int, options: AttentionOptions = NO_OPTIONS, room: int = 0
) -> None:
    batch, scale = pool.windows(counts, width, max(pool.kv_lens) + room), q.shape[2] ** -0.5
    out, torch_out = (torch.full_like(q, float("nan")) for _ in range(2))
    kernels.decode_attention(q, pool.cache, batch, scale, out, False, options)
    decode_attention_torch(q, pool.cache, pool.windows(counts, width), scale, torch_out, False, options)
    expected = pool.expected_windows(q, counts, width, scale, options)
    # At most twice as far from the formula as torch in the same type. NaN is never close.
    error = (out.double() - expected).abs().max()
    assert error <= 2 * (torch_out.double() - expected).abs().max() + 1e-5
    assert not out[batch.kv_lens == 0].any()


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(8, 8, 64), (32, 8, 128), (28, 4, 128), (8, 1, 96), (4, 2, 256)], ids=str
)
def test_windows(heads: int, kv_heads: int, head_dim: int, width: int, codes: torch.dtype | None) -> None:
    for windows in (_windows(width, False), _windows(width, True), [(5000, width)], [(700, 1)]):
        counts = [count for _, count in windows]
        pool = Pool([length for length, _ in windows], kv_heads, head_dim, torch.bfloat16, "cuda", codes=codes)
        q = strided_q(len(counts) * width, heads, head_dim, torch.bfloat16, "cuda")
        _check(pool, q, counts, width, room=3000)


@pytest.mark.parametrize(("heads", "head_dim", "dtype"), [(8, 512, torch.bfloat16), (8, 64, torch.float32)], ids=str)
def test_other_head_sizes_and_types(heads: int, head_dim: int, dtype: torch.dtype) -> None:
    for width in (2, 8):
        pool = Pool([700, 40, 0], 2, head_dim, dtype, "cuda")
        _check(pool, strided_q(3 * width, heads, head_dim, dtype, "cuda"), [width, 2, 0], width)


@pytest.mark.parametrize("codes", [None, torch.uint8], ids=str)
@pytest.mark.parametrize("names", ["window", "softcap", "sinks", "slopes", "window softcap sinks slopes"])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_windows_with_options(width: int, names: str, codes: torch.dtype | None) -> None:
    for limit in (128, 1000):
        options = attention_options(names, 32, limit, "cuda")
        for windows in ([(5000, width)], [(limit, 1), (limit + 1, 2), (limit + width, width), (0, 0), (3000, width)]):
            counts = [count for _, count in windows]
            pool = Pool([length for length, _ in windows], 8, 128, torch.bfloat16, "cuda", codes=codes)
            _check(pool, strided_q(len(counts) * width, 32, 128, torch.bfloat16, "cuda"), counts, width, options)


def test_one_graph_serves_windows_of_every_length_and_number_of_tokens() -> None:
    pool, width, counts = Pool([3000, 700, 0, 40], 8, 128, torch.bfloat16, "cuda"), 4, [4, 1, 0, 3]
    q = strided_q(4 * width, 32, 128, torch.bfloat16, "cuda")
    asked, out = pool.windows(counts, width), torch.empty_like(q)
    captured = replace(asked, kv_lens=torch.ones_like(asked.kv_lens))
    arguments = q, pool.cache, captured, 128**-0.5, out
    kernels.decode_attention(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.decode_attention(*arguments)
    captured.kv_lens.copy_(asked.kv_lens)
    out.fill_(float("nan"))
    graph.replay()
    expected = torch.empty_like(q)
    kernels.decode_attention(q, pool.cache, asked, 128**-0.5, expected)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize("lengths", [[64, 65, 130], [449, 300], [700, 5000] * 20, [320]], ids=len)
def test_windows_wait_for_the_newest_positions(lengths: list[int], width: int, codes: torch.dtype | None) -> None:
    """The operator before writes them, and attention may start while that runs."""
    pool = Pool(lengths, 8, 128, torch.bfloat16, "cuda", codes=codes)
    batch = pool.windows([width] * len(lengths), width)
    positions = (batch.kv_lens - 1).long()
    newest = pool.table[batch.rows, positions].long()
    qkv = torch.randn(len(positions), 48 * 128, device="cuda").bfloat16()
    tokens = NewTokens(torch.rand(max(lengths), 128, device="cuda"), positions, newest)
    caches, scales = [each.view(torch.uint8) for each in (pool.cache.k, pool.cache.v)], pool.cache.scales

    def step(pause: bool) -> Tensor:
        for cache in caches:
            cache.index_fill_(0, newest, 0xFF)
        if scales is not None:
            scales.index_fill_(0, newest, float("nan"))
        made = qkv.clone()
        kernels.qkv_postprocess(made, NO_PROLOGUE, tokens, pool.cache)
        if pause:
            torch.cuda.synchronize()
        q = made[:, : 32 * 128].view(-1, 32, 128)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        kernels.decode_attention(q, pool.cache, batch, 128**-0.5, out)
        return out

    expected = step(pause=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(pause=False)
    assert expected.isfinite().all()
    for _ in range(10):
        found.fill_(float("nan"))
        graph.replay()
        assert torch.equal(found, expected)


def test_deterministic_windows_have_the_bits_of_single_tokens() -> None:
    pool, width, counts = Pool([300, 5000, 70], 8, 128, torch.bfloat16, "cuda"), 4, [4, 3, 1]
    q, batch = strided_q(3 * width, 32, 128, torch.bfloat16, "cuda"), pool.windows(counts, width)
    together = torch.empty_like(q)
    kernels.decode_attention(q, pool.cache, batch, 0.1, together, True)
    for entry in range(3 * width):
        one = slice(entry, entry + 1)
        alone, single = torch.empty_like(q[one]), Decodes(pool.table, batch.rows[one], batch.kv_lens[one], 5000)
        kernels.decode_attention(q[one], pool.cache, single, 0.1, alone, True)
        assert torch.equal(alone, together[one])


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("heads", [16, 128])
def test_latent_windows(heads: int, width: int) -> None:
    for windows in (_windows(width, False), [(5000, width)]):
        counts = [count for _, count in windows]
        contexts = Contexts.of(counts, [length for length, _ in windows], heads, 512, 64, torch.bfloat16, "cuda")
        batch = contexts.pool.windows(counts, width)
        there = batch.kv_lens > 0
        q = contexts.q.new_zeros(len(there), *contexts.q.shape[1:])
        q[there] = contexts.q
        out, alone = (q.new_full((len(there), heads, 512), float("nan")) for _ in range(2))
        kernels.latent_decode_attention(q, contexts.pool.k, batch, contexts.scale, out)
        kernels.latent_decode_attention(q, contexts.pool.k, replace(batch, width=1), contexts.scale, alone)
        contexts.check(out[there], alone[there])
        assert not out[~there].any()
