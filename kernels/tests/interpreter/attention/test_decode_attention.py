"""The Triton kernels in Triton's interpreter: run with TRITON_INTERPRET=1."""

import importlib

import pytest
import torch
from kernel_support.pool import Pool, attention_options, strided_q
from torch import Tensor

from text_generation_kernels.attention.attention_options import NO_OPTIONS, AttentionOptions
from text_generation_kernels.attention.decode_attention import decode_attention_torch, decode_attention_triton
from text_generation_kernels.attention.kv_quantisation import KV_CODES


def _attend(
    pool: Pool, q: Tensor, max_kv_len: int, deterministic: bool = False, options: AttentionOptions = NO_OPTIONS
) -> Tensor:
    out = q.new_full((*q.shape[:2], pool.v.shape[2]), float("nan"))
    batch = pool.decodes(max_kv_len)
    decode_attention_triton(q, pool.cache, batch, q.shape[2] ** -0.5, out, deterministic, options)
    return out


def _check(
    kv_lens: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    max_kv_len: int | None = None,
    deterministic: bool = False,
    options: AttentionOptions = NO_OPTIONS,
    v_head_dim: int | None = None,
    codes: torch.dtype | None = None,
) -> None:
    pool = Pool(kv_lens, kv_heads, head_dim, dtype, v_head_dim=v_head_dim, codes=codes)
    q = strided_q(len(kv_lens), heads, head_dim, dtype)
    scale = head_dim**-0.5
    torch_out = q.new_full((*q.shape[:2], pool.v.shape[2]), float("nan"))
    decode_attention_torch(q, pool.cache, pool.decodes(), scale, torch_out, deterministic, options)

    out = _attend(pool, q, max_kv_len or max(kv_lens), deterministic, options)

    expected = pool.expected_decode(q, scale, options)
    # At most twice as far from the formula as torch in the same type.
    error = (out.double() - expected).abs().max()
    assert error <= 2 * (torch_out.double() - expected).abs().max() + 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 1), (8, 1), (17, 1)], ids=str)
def test_contexts_at_tile_boundaries(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    _check([1, 63, 64, 65, 128, 0], heads, kv_heads, 16, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kv_len", [127, 128, 129, 385])
def test_contexts_at_chunk_boundaries(kv_len: int, dtype: torch.dtype) -> None:
    _check([kv_len, 3, 0, 500], 4, 2, 16, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 192, 256, 512])
def test_head_sizes(head_dim: int, dtype: torch.dtype) -> None:
    _check([20, 300], 2, 1, head_dim, dtype)


@pytest.mark.parametrize(
    "kv_lens",
    [
        [2000],  # one request has the whole wave
        [900] * 4,  # as many requests as run at once
        [900, 890, 0, 910, 0, 0],  # alike, two of them padded rows
        [600] * 5,  # more requests than run at once
        [2000, 20, 5, 300, 64, 1],  # nothing alike
    ],
    ids=str,
)
def test_a_device_with_few_resident_thread_blocks(kv_lens: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"BLOCK_N": 64, "num_warps": 4, "num_stages": 2, "programs": 12, "resident": 8}
    module = importlib.import_module("text_generation_kernels.attention.decode_attention")
    monkeypatch.setattr(module, "nearest", lambda *_, **__: small)
    for max_kv_len in (2000, 8000):
        _check(kv_lens, 4, 2, 16, torch.float32, max_kv_len)


def test_more_chunks_than_the_merge_takes_at_once() -> None:
    _check([17 * 256 + 1, 64], 1, 1, 16, torch.float32, deterministic=True)


def test_a_context_too_long_for_deterministic_chunks_of_the_usual_size() -> None:
    _check([33 * 256, 500], 1, 1, 16, torch.float32, deterministic=True)


def test_the_grid_may_be_of_a_larger_capacity() -> None:
    _check([5, 300], 2, 1, 16, torch.float32, max_kv_len=4000)


def test_a_batch_of_padded_rows_gives_zeros() -> None:
    pool = Pool([0, 0], 1, 16, torch.float32)
    for max_kv_len in (1, 1000):
        assert torch.equal(_attend(pool, strided_q(2, 2, 16, torch.float32), max_kv_len), torch.zeros(2, 2, 16))


def test_no_requests() -> None:
    pool = Pool([], 1, 16, torch.float32)
    _attend(pool, strided_q(0, 2, 16, torch.float32), 1)


def test_deterministic_gives_the_same_bits_alone_and_in_a_batch() -> None:
    pool = Pool([300, 2000, 70], 1, 16, torch.float32)
    q = strided_q(3, 2, 16, torch.float32)
    together = _attend(pool, q, 2000, deterministic=True)
    for index in range(3):
        pool_rows, pool_lens = pool.b_row, pool.b_kv_len
        pool.b_row, pool.b_kv_len = pool_rows[index : index + 1], pool_lens[index : index + 1]
        alone = _attend(pool, q[index : index + 1], int(pool.b_kv_len), deterministic=True)
        pool.b_row, pool.b_kv_len = pool_rows, pool_lens
        assert torch.equal(alone[0], together[index])


OPTIONS = ["window", "softcap", "sinks", "slopes", "window softcap sinks slopes"]


@pytest.mark.parametrize("names", OPTIONS)
def test_options_where_contexts_are_one_chunk(names: str) -> None:
    # Contexts around a window that is no multiple of a tile, and a padded row.
    options = attention_options(names, 2, window=70)
    _check([69, 70, 71, 0, 1], 2, 1, 16, torch.float16, options=options)


@pytest.mark.parametrize("names", ["window", "softcap sinks slopes", "window softcap sinks slopes"])
def test_options_where_contexts_are_cut(names: str) -> None:
    options = attention_options(names, 2, window=300)
    _check([301, 700, 40], 2, 1, 16, torch.float32, options=options)


def test_deterministic_chunks_with_options() -> None:
    options = attention_options("window softcap sinks slopes", 2, window=300)
    _check([301, 700, 40], 2, 1, 16, torch.float32, deterministic=True, options=options)


def test_options_of_one_request_whose_chunks_a_second_kernel_merges() -> None:
    _check([400], 3, 1, 16, torch.float32, options=attention_options("window softcap sinks slopes", 3, window=200))


def test_a_window_smaller_than_a_tile() -> None:
    for window in (1, 3):
        options = attention_options("window sinks", 2, window)
        _check([1, 3, 64, 200], 2, 1, 16, torch.float32, options=options)


def test_values_may_have_another_head_size() -> None:
    _check([20, 300], 2, 1, 24, torch.float32, options=attention_options("sinks", 2), v_head_dim=16)


CODES = list(KV_CODES.values())


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 1, 16), (17, 1, 96), (4, 2, 128)], ids=str)
def test_codes_at_tile_boundaries(heads: int, kv_heads: int, head_dim: int, codes: torch.dtype) -> None:
    _check([1, 63, 64, 65, 0], heads, kv_heads, head_dim, torch.float16, codes=codes)


@pytest.mark.parametrize("codes", CODES, ids=str)
def test_codes_where_contexts_are_cut(codes: torch.dtype) -> None:
    options = attention_options("window softcap sinks slopes", 2, window=300)
    for deterministic in (False, True):
        _check([301, 700, 40], 2, 1, 16, torch.float16, deterministic=deterministic, options=options, codes=codes)
    _check([400], 3, 1, 16, torch.float16, codes=codes)


def test_codes_may_be_of_another_head_size_for_values() -> None:
    _check([20, 300], 2, 1, 24, torch.float16, v_head_dim=16, codes=torch.uint8)


def test_layouts_that_the_kernel_cannot_read_are_refused() -> None:
    pool = Pool([4], 2, 16, torch.float32)
    with pytest.raises(ValueError, match="decode_attention: shapes"):
        _attend(pool, strided_q(1, 3, 16, torch.float32), 4)
    with pytest.raises(ValueError, match="stride 1"):
        _attend(pool, torch.randn(16, 2, 1).transpose(0, 2), 4)
