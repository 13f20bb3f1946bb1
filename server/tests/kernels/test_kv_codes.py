"""Codes of keys and values against the formula, and attention over them against the values that they stand for."""

import pytest
import torch
from support.pool import Pool, attention_options, query_starts, strided_q
from support.qkv import Case
from support.reference import stored_in_8_bits

from text_generation_server import kernels
from text_generation_server.kernels.kv_codes import KV_CODES, check_codes, dequantise, quantise

CODES = list(KV_CODES.values())
STORED = dict(zip(CODES, (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8), strict=True))


def heads() -> torch.Tensor:
    """Of every size, one of them zero."""
    torch.manual_seed(0)
    values = torch.randn(50, 3, 16) * 10 ** (torch.rand(50, 3, 1) * 8 - 4)
    values[0, 0] = 0.0
    return values


@pytest.mark.parametrize("codes", CODES, ids=str)
def test_measured_scales(codes: torch.dtype) -> None:
    values = heads()
    stored, scales = quantise(values, codes)
    assert stored.dtype == codes
    torch.testing.assert_close(dequantise(stored, scales), stored_in_8_bits(values, STORED[codes]), rtol=1e-6, atol=0)
    assert not dequantise(stored, scales)[0, 0].any()
    # The largest of a head is exact.
    largest = values.abs().amax(-1)
    torch.testing.assert_close(dequantise(stored, scales).abs().amax(-1), largest, rtol=1e-6, atol=0)


@pytest.mark.parametrize("codes", CODES, ids=str)
def test_given_scales_and_what_is_too_large_for_them(codes: torch.dtype) -> None:
    values, scales = heads(), torch.tensor([1.0, 0.02, 3e-4])
    stored, same = quantise(values, codes, scales)
    assert same is scales
    expected = stored_in_8_bits(values, STORED[codes], scales)
    torch.testing.assert_close(dequantise(stored, scales), expected, rtol=1e-6, atol=0)
    assert (dequantise(stored, scales).abs() < values.abs().clamp(min=1.0)).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_a_value_that_is_not_finite_stays_in_its_head_and_is_not_hidden(codes: torch.dtype, bad: float) -> None:
    values = heads()
    values[3, 1, 5] = bad
    read = dequantise(*quantise(values, codes))
    assert read[3, 1].isnan().all()
    assert read.isnan().sum() == 16


@pytest.mark.parametrize("names", ["", "window", "softcap sinks slopes"])
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_attention(codes: torch.dtype, names: str) -> None:
    q_lens, options = [4, 5, 1, 0], attention_options(names, 4, window=5)
    pool = Pool([4, 19, 23, 3], 2, 8, torch.float32, codes=codes)
    q = strided_q(10, 4, 8, torch.float32)
    out = torch.full((10, 4, 8), float("nan"))
    batch = (pool.table, pool.b_row, query_starts(q_lens), pool.b_kv_len, 5)
    kernels.prefill_attention(q, *pool.caches, *batch, 0.3, out, False, options, pool.scales)
    expected = pool.expected_prefill(q, q_lens, 0.3, options)
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-4)

    for deterministic in (False, True):
        out = torch.full((4, 4, 8), float("nan"))
        context = (pool.table, pool.b_row, pool.b_kv_len, 23, 0.3)
        kernels.decode_attention(q[:4], *pool.caches, *context, out, deterministic, options, pool.scales)
        expected = pool.expected_decode(q[:4], 0.3, options)
        torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_keys_and_values_are_written_as_codes(codes: torch.dtype, given: bool) -> None:
    case = Case(5, 4, 2, 8, torch.float32, True, with_norms=True, codes=codes, given=given)
    expected = case.expected()
    kernels.qkv_postprocess(*case.arguments())
    for place, (cache, want) in enumerate(zip((case.k_cache, case.v_cache), expected[1:], strict=True)):
        scales = case.scales[case.slots][..., place]  # type: ignore[index]
        read = dequantise(cache.view(torch.uint8)[case.slots].view(codes), scales)
        same = stored_in_8_bits(want.float(), STORED[codes], scales if given else None)
        # One that lies between two codes may become either.
        assert ((read - same).abs() > 1e-6).float().mean() < 0.05
        assert (read - same).abs().max() <= 0.3 * want.abs().max()
    case.check_unused()


def test_caches_that_do_not_fit_are_refused() -> None:
    pool = Pool([4], 2, 8, torch.float32, codes=torch.uint8)
    for caches, scales in (
        (pool.caches, None),
        ((pool.k, pool.v), pool.scales),
        ((pool.caches[0], pool.v), pool.scales),
        (pool.caches, pool.scales[:, :1]),  # type: ignore[index]
        (pool.caches, pool.scales.double()),  # type: ignore[union-attr]
        (tuple(each[..., :6] for each in pool.caches), pool.scales),
    ):
        with pytest.raises(ValueError, match="attention: "):
            check_codes("attention", *caches, scales)  # type: ignore[arg-type]
