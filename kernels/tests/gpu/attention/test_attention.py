"""The Triton kernels as they serve: 16-bit types, through the dispatcher, on the device."""

import random
from dataclasses import replace

import pytest
import torch
from kernel_support.pool import Pool, attention_options, query_starts, strided_q
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import NO_PROLOGUE, Chunks, Decodes, NewTokens
from text_generation_kernels.attention.decode_attention import decode_attention_torch
from text_generation_kernels.attention.prefill_attention import prefill_attention_torch

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16]
SHAPES = [(8, 8, 64), (32, 8, 128), (8, 8, 80), (8, 1, 96), (4, 2, 256), (8, 2, 512), (4, 2, 8)]


def _assert_as_close_as_torch(out: Tensor, torch_out: Tensor, expected: Tensor) -> None:
    """At most twice as far from the formula as torch in the same type. NaN is never close."""
    error = (out.double() - expected).abs().max()
    assert error <= 2 * (torch_out.double() - expected).abs().max() + 1e-5


def _decode(pool: Pool, q: Tensor, max_kv_len: int) -> tuple[Tensor, Tensor]:
    out, torch_out = (torch.full_like(q, float("nan")) for _ in range(2))
    arguments = q, pool.cache, pool.decodes(max_kv_len), q.shape[2] ** -0.5
    kernels.decode_attention(*arguments, out)
    decode_attention_torch(*arguments, torch_out)
    return out, torch_out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES, ids=str)
@pytest.mark.parametrize("kv_lens", [[1], [5000], [63, 64, 65, 0, 255, 257, 1], [8, 4000, 129] * 20], ids=len)
def test_decode(kv_lens: list[int], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    pool = Pool(kv_lens, kv_heads, head_dim, dtype, "cuda")
    q = strided_q(len(kv_lens), heads, head_dim, dtype, "cuda")
    out, torch_out = _decode(pool, q, max(kv_lens))
    _assert_as_close_as_torch(out, torch_out, pool.expected_decode(q, head_dim**-0.5))


def test_decode_in_float32() -> None:
    pool = Pool([700, 3], 2, 64, torch.float32, "cuda")
    q = strided_q(2, 8, 64, torch.float32, "cuda")
    _assert_as_close_as_torch(*_decode(pool, q, 700), pool.expected_decode(q, 64**-0.5))


def test_one_graph_of_decode_serves_every_length() -> None:
    pool = Pool([3000, 700, 0, 40], 8, 128, torch.bfloat16, "cuda")
    q = strided_q(4, 32, 128, torch.bfloat16, "cuda")
    out, kv_len = torch.empty_like(q), torch.ones_like(pool.b_kv_len)
    arguments = q, pool.cache, Decodes(pool.table, pool.b_row, kv_len, 3000), 128**-0.5, out
    kernels.decode_attention(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.decode_attention(*arguments)
    kv_len.copy_(pool.b_kv_len)
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, _decode(pool, q, 3000)[0])
    assert torch.equal(out[2], torch.zeros_like(out[2]))


@pytest.mark.parametrize("codes", [None, *kernels.KV_CODES.values()], ids=str)
@pytest.mark.parametrize("kv_lens", [[1, 2, 63, 64, 65, 130], [449, 1, 300, 257], [3, 700, 5000] * 20, [320]], ids=len)
def test_decode_waits_for_the_newest_position(kv_lens: list[int], codes: torch.dtype | None) -> None:
    """The operator before writes it, and attention may start while that runs."""
    pool = Pool(kv_lens, 8, 128, torch.bfloat16, "cuda", codes=codes)
    positions = (pool.b_kv_len - 1).long()
    newest = pool.table[pool.b_row, positions].long()
    qkv = torch.randn(len(kv_lens), 48 * 128, device="cuda").bfloat16()
    cos_sin = torch.rand(max(kv_lens), 128, device="cuda")
    bytes_of_caches, scales = [each.view(torch.uint8) for each in (pool.cache.k, pool.cache.v)], pool.cache.scales
    tokens = NewTokens(cos_sin, positions, newest)

    def step(pause: bool) -> Tensor:
        for cache in bytes_of_caches:
            cache.index_fill_(0, newest, 0xFF)
        if scales is not None:
            scales.index_fill_(0, newest, float("nan"))
        made = qkv.clone()
        kernels.qkv_postprocess(made, NO_PROLOGUE, tokens, pool.cache)
        if pause:
            torch.cuda.synchronize()
        q = made[:, : 32 * 128].view(-1, 32, 128)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        kernels.decode_attention(q, pool.cache, pool.decodes(), 128**-0.5, out)
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


def test_deterministic_gives_the_same_bits_alone_and_in_a_batch() -> None:
    pool = Pool([300, 5000, 70], 8, 128, torch.bfloat16, "cuda")
    q = strided_q(3, 32, 128, torch.bfloat16, "cuda")
    together = torch.empty_like(q)
    kernels.decode_attention(q, pool.cache, pool.decodes(), 0.1, together, True)
    for index in range(3):
        one = slice(index, index + 1)
        alone = torch.empty_like(q[one])
        kernels.decode_attention(q[one], pool.cache, pool.decodes(pool.kv_lens[index], one), 0.1, alone, True)
        assert torch.equal(alone, together[one])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES, ids=str)
@pytest.mark.parametrize(
    ("q_lens", "kv_lens"),
    [
        ([1], [1]),
        ([127, 128, 129, 1], [127, 128, 129, 1]),
        ([1, 200, 0, 65], [900, 333, 7, 128]),
        ([2100, 255, 256, 257], [2100, 700, 256, 257]),
    ],
    ids=str,
)
def test_prefill(
    q_lens: list[int], kv_lens: list[int], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    pool = Pool(kv_lens, kv_heads, head_dim, dtype, "cuda")
    q = strided_q(sum(q_lens), heads, head_dim, dtype, "cuda")
    _check_prefill(pool, q, q_lens)


@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_prefill_in_float32(head_dim: int) -> None:
    pool = Pool([300, 3], 2, head_dim, torch.float32, "cuda")
    _check_prefill(pool, strided_q(203, 8, head_dim, torch.float32, "cuda"), [200, 3])


def _check_prefill(pool: Pool, q: Tensor, q_lens: list[int]) -> None:
    out, torch_out = (torch.full_like(q, float("nan")) for _ in range(2))
    scale = q.shape[2] ** -0.5
    arguments = q, pool.cache, pool.chunks(q_lens), scale
    kernels.prefill_attention(*arguments, out)
    prefill_attention_torch(*arguments, torch_out)
    _assert_as_close_as_torch(out, torch_out, pool.expected_prefill(q, q_lens, scale))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (8, 1, 96), (4, 2, 256)], ids=str)
def test_deterministic_chunks_give_the_same_bits_wherever_prompts_are_cut(
    heads: int, kv_heads: int, head_dim: int
) -> None:
    pool = Pool([700, 1300, 65], kv_heads, head_dim, torch.bfloat16, "cuda")
    prompts = [strided_q(length, heads, head_dim, torch.bfloat16, "cuda") for length in pool.kv_lens]
    whole = torch.cat([_chunks(pool, prompts, [(index, 0, length)]) for index, length in enumerate(pool.kv_lens)])
    for size in (1, 7, 64, 333):
        pieces = [
            (index, begin, min(length, begin + size))
            for index, length in enumerate(pool.kv_lens)
            for begin in range(0, length, size)
        ]
        order = random.Random(size).sample(range(len(pieces)), len(pieces))
        found: list[Tensor] = [torch.empty(0)] * len(pieces)
        for start in range(0, len(order), 200):
            batch = order[start : start + 200]
            together = _chunks(pool, prompts, [pieces[place] for place in batch])
            lengths = [pieces[place][2] - pieces[place][1] for place in batch]
            for place, out in zip(batch, together.split(lengths), strict=True):
                found[place] = out
        assert torch.equal(torch.cat(found), whole)


def _chunks(pool: Pool, prompts: list[Tensor], pieces: list[tuple[int, int, int]]) -> Tensor:
    """Attention of tokens `begin` to `end` of a request, for several (request, begin, end)."""
    q = torch.cat([prompts[index][begin:end] for index, begin, end in pieces])
    out = torch.full_like(q, float("nan"))
    rows = pool.b_row[torch.tensor([index for index, *_ in pieces], device="cuda")]
    lengths = [end - begin for _, begin, end in pieces]
    kv_len = torch.tensor([end for *_, end in pieces], dtype=torch.int32, device="cuda")
    starts = query_starts(lengths, "cuda")
    scale = q.shape[2] ** -0.5
    batch = Chunks(pool.table, rows, starts, kv_len, max(lengths))
    kernels.prefill_attention(q, pool.cache, batch, scale, out, True)
    return out


@pytest.mark.parametrize("q_len", [1, 16, 448])
def test_chunks_after_a_long_prefix_split_its_keys(q_len: int) -> None:
    pool = Pool([9000, 8192 + q_len], 8, 128, torch.bfloat16, "cuda")
    q = strided_q(q_len + 3, 32, 128, torch.bfloat16, "cuda")
    for _ in range(2):
        _check_prefill(pool, q, [3, q_len])


def test_tokens_before_the_first_chunk_are_left_alone() -> None:
    pool = Pool([900, 40], 8, 128, torch.bfloat16, "cuda")
    q = strided_q(64 + 300, 32, 128, torch.bfloat16, "cuda")
    batch = pool.chunks([260, 40])
    out, alone = torch.full_like(q, 7.0), torch.empty_like(q[64:])
    kernels.prefill_attention(q, pool.cache, replace(batch, starts=batch.starts + 64), 0.1, out)
    kernels.prefill_attention(q[64:], pool.cache, batch, 0.1, alone)
    assert (out[:64] == 7.0).all()
    torch.testing.assert_close(out[64:], alone)


OPTIONS = ["window", "softcap", "sinks", "slopes", "window sinks", "window softcap sinks slopes"]
OPTION_SHAPES = [(32, 8, 128), (64, 8, 64), (4, 2, 256), (8, 8, 80)]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), OPTION_SHAPES, ids=str)
@pytest.mark.parametrize("names", OPTIONS)
@pytest.mark.parametrize("window", [128, 1000])
def test_decode_with_options(window: int, names: str, heads: int, kv_heads: int, head_dim: int) -> None:
    options = attention_options(names, heads, window, "cuda")
    for kv_lens in ([5000], [window - 1, window, window + 1, 0, 3000], [8, 4000, 129] * 20):
        pool = Pool(kv_lens, kv_heads, head_dim, torch.bfloat16, "cuda")
        q = strided_q(len(kv_lens), heads, head_dim, torch.bfloat16, "cuda")
        out, torch_out = (torch.full_like(q, float("nan")) for _ in range(2))
        scale = head_dim**-0.5
        kernels.decode_attention(q, pool.cache, pool.decodes(), scale, out, False, options)
        decode_attention_torch(q, pool.cache, pool.decodes(), scale, torch_out, False, options)
        _assert_as_close_as_torch(out, torch_out, pool.expected_decode(q, scale, options))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), OPTION_SHAPES, ids=str)
@pytest.mark.parametrize("names", OPTIONS)
@pytest.mark.parametrize("window", [128, 1000])
def test_prefill_with_options(window: int, names: str, heads: int, kv_heads: int, head_dim: int) -> None:
    options = attention_options(names, heads, window, "cuda")
    for q_lens, kv_lens in (([127, 128, 129, 1], [127, 1128, 129, 1001]), ([16], [6000]), ([2100, 3], [2100, 900])):
        pool = Pool(kv_lens, kv_heads, head_dim, torch.bfloat16, "cuda")
        q = strided_q(sum(q_lens), heads, head_dim, torch.bfloat16, "cuda")
        out, torch_out = (torch.full_like(q, float("nan")) for _ in range(2))
        scale = head_dim**-0.5
        batch = pool.chunks(q_lens)
        kernels.prefill_attention(q, pool.cache, batch, scale, out, False, options)
        prefill_attention_torch(q, pool.cache, batch, scale, torch_out, False, options)
        _assert_as_close_as_torch(out, torch_out, pool.expected_prefill(q, q_lens, scale, options))


CODES = list(kernels.KV_CODES.values())


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (8, 1, 96), (4, 2, 256)], ids=str)
@pytest.mark.parametrize("kv_lens", [[5000], [63, 64, 65, 0, 255, 257, 1], [8, 4000, 129] * 20], ids=len)
def test_decode_over_codes(kv_lens: list[int], heads: int, kv_heads: int, head_dim: int, codes: torch.dtype) -> None:
    pool = Pool(kv_lens, kv_heads, head_dim, torch.bfloat16, "cuda", codes=codes)
    q = strided_q(len(kv_lens), heads, head_dim, torch.bfloat16, "cuda")
    out, torch_out = (torch.full_like(q, float("nan")) for _ in range(2))
    scale = head_dim**-0.5
    arguments = q, pool.cache, pool.decodes(), scale
    for options in (attention_options("", heads), attention_options("window sinks", heads, 1000, "cuda")):
        kernels.decode_attention(*arguments, out, False, options)
        decode_attention_torch(*arguments, torch_out, False, options)
        _assert_as_close_as_torch(out, torch_out, pool.expected_decode(q, scale, options))


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (8, 1, 96), (4, 2, 256)], ids=str)
def test_prefill_over_codes(heads: int, kv_heads: int, head_dim: int, codes: torch.dtype) -> None:
    scale = head_dim**-0.5
    for q_lens, kv_lens in (([127, 128, 129, 1], [127, 128, 129, 1]), ([1, 200, 0, 65], [900, 333, 7, 128])):
        pool = Pool(kv_lens, kv_heads, head_dim, torch.bfloat16, "cuda", codes=codes)
        q = strided_q(sum(q_lens), heads, head_dim, torch.bfloat16, "cuda")
        out, torch_out = (torch.full_like(q, float("nan")) for _ in range(2))
        batch = pool.chunks(q_lens)
        kernels.prefill_attention(q, pool.cache, batch, scale, out)
        prefill_attention_torch(q, pool.cache, batch, scale, torch_out)
        _assert_as_close_as_torch(out, torch_out, pool.expected_prefill(q, q_lens, scale))
