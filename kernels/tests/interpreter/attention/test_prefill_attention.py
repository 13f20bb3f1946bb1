"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_support.pool import Pool, attention_options, query_starts, strided_q

from text_generation_kernels import Chunks
from text_generation_kernels.attention.attention_options import NO_OPTIONS, AttentionOptions
from text_generation_kernels.attention.kv_quantisation import KV_CODES
from text_generation_kernels.attention.prefill_attention import prefill_attention_torch, prefill_attention_triton


def _check(
    q_lens: list[int],
    kv_lens: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    max_q_len: int | None = None,
    options: AttentionOptions = NO_OPTIONS,
    v_head_dim: int | None = None,
    codes: torch.dtype | None = None,
) -> None:
    pool = Pool(kv_lens, kv_heads, head_dim, dtype, v_head_dim=v_head_dim, codes=codes)
    q = strided_q(sum(q_lens), heads, head_dim, dtype)
    out, torch_out = (q.new_full((*q.shape[:2], pool.v.shape[2]), float("nan")) for _ in range(2))
    scale = head_dim**-0.5

    prefill_attention_triton(q, pool.cache, pool.chunks(q_lens, max_q_len), scale, out, False, options)

    prefill_attention_torch(q, pool.cache, pool.chunks(q_lens), scale, torch_out, False, options)
    expected = pool.expected_prefill(q, q_lens, scale, options)
    # At most twice as far from the formula as torch in the same type.
    error = (out.double() - expected).abs().max()
    assert error <= 2 * (torch_out.double() - expected).abs().max() + 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 1), (8, 1)], ids=str)
def test_prompts_at_tile_boundaries(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    lengths = [63, 64, 65, 1]
    _check(lengths, lengths, heads, kv_heads, 16, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("prefix", [1, 63, 64, 65])
def test_pieces_after_a_cached_prefix(prefix: int, dtype: torch.dtype) -> None:
    q_lens = [1, 64, 65, 0, 3]
    _check(q_lens, [prefix + q_len for q_len in q_lens], 4, 2, 16, dtype)


@pytest.mark.parametrize("head_dim", [16, 128])
def test_tiles_of_long_prompts(head_dim: int) -> None:
    # A longer `max_q_len` than there is chooses them.
    _check([255, 256, 257, 3], [255, 256, 357, 10], 2, 1, head_dim, torch.float16, max_q_len=8192)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 192, 256, 512])
def test_head_sizes(head_dim: int, dtype: torch.dtype) -> None:
    _check([3, 18], [20, 18], 2, 1, head_dim, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_chunks_after_a_long_prefix_split_its_keys(dtype: torch.dtype) -> None:
    # Three times: what counts arrivals is zero again after each.
    for _ in range(3):
        _check([5, 1, 0, 20], [2000, 700, 300, 1100], 6, 2, 16, dtype)


def test_tokens_before_the_first_chunk_are_left_alone() -> None:
    pool = Pool([90, 4], 1, 16, torch.float32)
    q = strided_q(9 + 74, 2, 16, torch.float32)
    batch = pool.chunks([70, 4])
    out, alone = torch.full_like(q, 7.0), torch.empty_like(q[9:])
    prefill_attention_triton(q, pool.cache, replace(batch, starts=batch.starts + 9), 0.1, out)
    prefill_attention_triton(q[9:], pool.cache, batch, 0.1, alone)
    assert (out[:9] == 7.0).all()
    torch.testing.assert_close(out[9:], alone)


@pytest.fixture
def one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the interpreter accumulate the GEMMs of every row in the same order, as tensor cores do. NumPy's library may
    take another order for the last rows of a tile; whether it does depends on the CPU.
    """

    def matmul(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return np.einsum("...mk,...kn->...mn", a, b, dtype=dtype, casting="same_kind")

    monkeypatch.setattr(np, "matmul", matmul)


@pytest.mark.usefixtures("one_order")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_deterministic_chunks_give_the_same_bits_wherever_prompts_are_cut(dtype: torch.dtype) -> None:
    _check_bits_wherever_prompts_are_cut(dtype, NO_OPTIONS)


@pytest.mark.usefixtures("one_order")
def test_deterministic_chunks_with_options_give_the_same_bits_wherever_prompts_are_cut() -> None:
    options = attention_options("window softcap sinks slopes", 4, window=37)
    _check_bits_wherever_prompts_are_cut(torch.float16, options)


def _check_bits_wherever_prompts_are_cut(dtype: torch.dtype, options: AttentionOptions) -> None:
    pool = Pool([150, 70], 1, 16, dtype)
    prompts = [strided_q(length, 4, 16, dtype) for length in pool.kv_lens]

    def attend(pieces: list[tuple[int, int, int]]) -> torch.Tensor:
        q = torch.cat([prompts[index][begin:end] for index, begin, end in pieces])
        rows = pool.b_row[[index for index, *_ in pieces]]
        kv_len = torch.tensor([end for *_, end in pieces], dtype=torch.int32)
        out = torch.full_like(q, float("nan"))
        starts = query_starts([end - begin for _, begin, end in pieces])
        batch = Chunks(pool.table, rows, starts, kv_len, 1024)
        prefill_attention_triton(q, pool.cache, batch, 0.25, out, True, options)
        return out

    whole = attend([(0, 0, 150), (1, 0, 70)])
    assert torch.equal(attend([(1, 0, 70)]), whole[150:])
    for size in (7, 64):
        pieces = [(0, begin, min(150, begin + size)) for begin in range(0, 150, size)]
        assert torch.equal(attend([(1, 69, 70), *pieces]), torch.cat([whole[-1:], whole[:150]]))


@pytest.mark.parametrize("window", [1, 63, 64, 65, 500])
def test_windows_at_tile_boundaries(window: int) -> None:
    options = attention_options("window", 2, window)
    _check([63, 65, 1], [63, 193, 128], 2, 1, 16, torch.float16, options=options)


@pytest.mark.parametrize("names", ["softcap", "sinks", "slopes", "window softcap sinks slopes"])
def test_options(names: str) -> None:
    options = attention_options(names, 2, window=70)
    _check([64, 65, 3], [64, 165, 200], 2, 1, 16, torch.float32, options=options)


@pytest.mark.parametrize("names", ["softcap sinks slopes", "window softcap sinks slopes"])
def test_options_with_split_keys(names: str) -> None:
    # Splits that lie before the window of some queries of a tile and within that of others.
    options = attention_options(names, 3, window=600)
    _check([1, 0, 40], [599, 300, 900], 3, 1, 16, torch.float32, options=options)


def test_a_window_in_a_long_prompt() -> None:
    # Tiles of long prompts, with blocks that no edge of the window touches.
    _check([300], [300], 2, 1, 16, torch.float16, max_q_len=8192, options=attention_options("window", 2, window=200))


def test_values_may_have_another_head_size() -> None:
    _check([3, 18], [20, 18], 2, 1, 24, torch.float32, options=attention_options("sinks", 2), v_head_dim=16)


def test_nothing_to_do() -> None:
    for q_lens in ([], [0], [0, 0]):
        pool = Pool([4] * len(q_lens), 1, 16, torch.float32)
        q = strided_q(0, 2, 16, torch.float32)
        prefill_attention_triton(q, pool.cache, pool.chunks(q_lens), 1.0, q.clone())


def test_layouts_that_the_kernel_cannot_read_are_refused() -> None:
    pool = Pool([4], 2, 16, torch.float32)
    batch = pool.chunks([4])
    q = strided_q(4, 3, 16, torch.float32)
    with pytest.raises(ValueError, match="prefill_attention: shapes"):
        prefill_attention_triton(q, pool.cache, batch, 1.0, q)
    q = torch.randn(16, 2, 4).transpose(0, 2)
    with pytest.raises(ValueError, match="stride 1"):
        prefill_attention_triton(q, pool.cache, batch, 1.0, q)


CODES = list(KV_CODES.values())


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 96])
def test_codes_at_tile_boundaries(head_dim: int, codes: torch.dtype) -> None:
    lengths = [63, 64, 65, 1]
    _check_codes(lengths, lengths, 4, 1, head_dim, codes)


@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("names", ["", "window softcap sinks slopes"])
def test_codes_after_a_cached_prefix(names: str, codes: torch.dtype) -> None:
    q_lens = [1, 65, 0, 3]
    options = attention_options(names, 4, window=70)
    _check_codes(q_lens, [65 + q_len for q_len in q_lens], 4, 2, 16, codes, options)


def test_codes_with_split_keys() -> None:
    _check_codes([5, 1, 20], [2000, 700, 1100], 6, 2, 16, torch.uint8)


def _check_codes(
    q_lens: list[int],
    kv_lens: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    codes: torch.dtype,
    options: AttentionOptions = NO_OPTIONS,
) -> None:
    """Values are multiplied by their scales in float16, which is about as coarse as what torch rounds them to."""
    pool = Pool(kv_lens, kv_heads, head_dim, torch.float16, codes=codes)
    q = strided_q(sum(q_lens), heads, head_dim, torch.float16)
    out, scale = q.new_full(q.shape, float("nan")), head_dim**-0.5
    prefill_attention_triton(q, pool.cache, pool.chunks(q_lens), scale, out, False, options)
    expected = pool.expected_prefill(q, q_lens, scale, options)
    assert (out.double() - expected).norm() <= 2e-3 * expected.norm()
