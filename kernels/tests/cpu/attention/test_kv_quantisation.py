"""Codes of keys and values against the formula, and attention over them against the values that they stand for."""

from dataclasses import replace

import pytest
import torch
from kernel_support.codes import INT4, OF_8_BITS
from kernel_support.pool import Pool, attention_options, strided_q
from kernel_support.qkv import Case
from kernel_support.reference import stored_in_4_bits, stored_in_8_bits

import text_generation_kernels as kernels
from text_generation_kernels.attention.kv_quantisation import (
    CODE_OF_AMAX,
    KV_CODES,
    SMALLEST_AMAX,
    check_codes,
    dequantise,
    quantise,
    read_slots,
    round_up,
)

STORED = dict(zip(OF_8_BITS, (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8), strict=True))


def heads() -> torch.Tensor:
    """Of every size, one of them zero."""
    torch.manual_seed(0)
    values = torch.randn(50, 3, 16) * 10 ** (torch.rand(50, 3, 1) * 8 - 4)
    values[0, 0] = 0.0
    return values


@pytest.mark.parametrize("codes", OF_8_BITS, ids=str)
def test_measured_scales(codes: torch.dtype) -> None:
    values = heads()
    stored, scales = quantise(values, codes)
    assert stored.dtype == codes
    torch.testing.assert_close(dequantise(stored, scales), stored_in_8_bits(values, STORED[codes]), rtol=1e-6, atol=0)
    assert not dequantise(stored, scales)[0, 0].any()


@pytest.mark.parametrize("codes", OF_8_BITS, ids=str)
def test_measured_scales_have_16_bits_and_nothing_saturates(codes: torch.dtype) -> None:
    values = heads()
    largest = values.abs().amax(-1)
    stored, scales = quantise(values, codes)
    assert scales.dtype == torch.bfloat16
    exact = largest.clamp(min=SMALLEST_AMAX) / CODE_OF_AMAX[codes]
    assert (scales.float() >= exact).all()
    assert (scales.float() <= exact * (1 + 2**-7)).all()
    # The largest of a head is off by no more than half of a step, which rounding to a smaller scale would not leave.
    wide = stored.float() - (128 if codes == torch.uint8 else 0)
    assert (wide.abs() <= CODE_OF_AMAX[codes]).all()
    half = {torch.uint8: 0.5, torch.float8_e4m3fn: 16.0, torch.float8_e5m2: 0.125}[codes]
    assert ((dequantise(stored, scales).abs().amax(-1) - largest).abs() <= half * scales.float() * (1 + 1e-6)).all()


def test_scales_are_rounded_up_to_16_bits_and_nan_stays() -> None:
    exact = torch.tensor([1.0, 2.0**-20, 1.9921875])
    assert torch.equal(round_up(exact).float(), exact)
    above = torch.nextafter(exact, torch.full_like(exact, torch.inf))
    assert torch.equal(round_up(above).float(), torch.tensor([1.0078125, 2.0**-20 * 1.0078125, 2.0]))
    # Every NaN that arithmetic makes: of x86, of NVIDIA cards, and with all bits set.
    nans = torch.tensor([0x7FC00000, 0x7FFFFFFF, -0x400000, -1], dtype=torch.int32).view(torch.float32)
    assert round_up(nans).isnan().all()


@pytest.mark.parametrize("codes", OF_8_BITS, ids=str)
def test_given_scales_and_what_is_too_large_for_them(codes: torch.dtype) -> None:
    values, scales = heads(), torch.tensor([1.0, 0.02, 3e-4]).bfloat16()
    stored, same = quantise(values, codes, scales)
    assert same is scales
    expected = stored_in_8_bits(values, STORED[codes], scales.float())
    torch.testing.assert_close(dequantise(stored, scales), expected, rtol=1e-6, atol=0)
    assert (dequantise(stored, scales).abs() < values.abs().clamp(min=1.0)).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("codes", OF_8_BITS, ids=str)
def test_a_value_that_is_not_finite_stays_in_its_head_and_is_not_hidden(codes: torch.dtype, bad: float) -> None:
    values = heads()
    values[3, 1, 5] = bad
    read = dequantise(*quantise(values, codes))
    assert read[3, 1].isnan().all()
    assert read.isnan().sum() == 16


@pytest.mark.parametrize("names", ["", "window", "softcap sinks slopes"])
@pytest.mark.parametrize("codes", list(KV_CODES.values()), ids=str)
def test_attention(codes: torch.dtype, names: str) -> None:
    q_lens, options = [4, 5, 1, 0], attention_options(names, 4, window=5)
    pool = Pool([4, 19, 23, 3], 2, 8, torch.float32, codes=codes)
    q = strided_q(10, 4, 8, torch.float32)
    out = torch.full((10, 4, 8), float("nan"))
    kernels.prefill_attention(q, pool.cache, pool.chunks(q_lens), 0.3, out, False, options)
    expected = pool.expected_prefill(q, q_lens, 0.3, options)
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-4)

    for deterministic in (False, True):
        out = torch.full((4, 4, 8), float("nan"))
        kernels.decode_attention(q[:4], pool.cache, pool.decodes(), 0.3, out, deterministic, options)
        expected = pool.expected_decode(q[:4], 0.3, options)
        torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("codes", OF_8_BITS, ids=str)
def test_keys_and_values_are_written_as_codes(codes: torch.dtype, given: bool) -> None:
    case = Case(5, 4, 2, 8, torch.float32, True, with_norms=True, codes=codes, given=given)
    expected = case.expected()
    kernels.qkv_postprocess(*case.arguments)
    for place, (cache, want) in enumerate(zip((case.cache.k, case.cache.v), expected[1:], strict=True)):
        scales = case.cache.scales[case.tokens.slots][..., place]  # type: ignore[index]
        read = dequantise(cache.view(torch.uint8)[case.tokens.slots].view(codes), scales)
        same = stored_in_8_bits(want.float(), STORED[codes], scales.float() if given else None)
        # One that lies between two codes may become either.
        assert ((read - same).abs() > 1e-6).float().mean() < 0.05
        assert (read - same).abs().max() <= 0.3 * want.abs().max()
    case.check_unused()


@pytest.mark.parametrize("head_dim", [8, 64, 80, 128, 256, 512])
def test_int4(head_dim: int) -> None:
    """Groups of every size and offset, one of them of one number."""
    torch.manual_seed(0)
    values = torch.randn(50, 3, head_dim) * 10 ** (torch.rand(50, 3, 1) * 8 - 4) + torch.randn(50, 3, 1)
    values[0, 0] = 0.25
    codes, scales = quantise(values, INT4)
    assert codes.shape == (50, 3, head_dim // 2)
    read = dequantise(codes, scales)
    # One that lies between two codes may become either.
    assert ((read - stored_in_4_bits(values)).abs() > 1e-5 * read.abs() + 1e-7).float().mean() < 1e-3
    assert torch.equal(read[0, 0], values[0, 0])
    # Half a step, and what rounding a zero to 16 bits costs a group that is far from 0.
    groups = scales.float().unflatten(-1, (-1, 2))
    steps, zeros = (each.repeat_interleave(head_dim // groups.shape[-2], dim=-1) for each in groups.unbind(-1))
    assert ((read - values).abs() <= steps * 0.5001 + zeros.abs() * 2**-8).all()


def test_int4_finds_one_value_among_many_in_its_place() -> None:
    """Whatever the order of codes is, each element comes back where it was."""
    values = torch.eye(128)[:, None]
    read = dequantise(*quantise(values, INT4))
    torch.testing.assert_close(read, values, rtol=0, atol=0.01)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_of_4_bits_that_is_not_finite_stays_in_its_group(bad: float) -> None:
    values = torch.randn(5, 3, 128)
    values[3, 1, 70] = bad
    read = dequantise(*quantise(values, INT4))
    assert read[3, 1, 64:].isnan().all()
    assert read.isnan().sum() == 64


@pytest.mark.parametrize("head_dim", [8, 80, 128])
def test_keys_and_values_are_written_as_int4(head_dim: int) -> None:
    case = Case(5, 4, 2, head_dim, torch.float32, True, with_norms=True, codes=INT4)
    expected = case.expected()
    kernels.qkv_postprocess(*case.arguments)
    found = read_slots(case.cache, case.tokens.slots, torch.float32)
    for read, want in zip(found, expected[1:], strict=True):
        same = stored_in_4_bits(want.float())
        # One that lies between two codes may become either.
        assert ((read - same).abs() > 1e-5).float().mean() < 0.05
        assert (read - same).abs().max() <= 0.3 * want.abs().max()
    case.check_unused()


def test_caches_that_do_not_fit_are_refused() -> None:
    four = Pool([4], 2, 16, torch.float32, codes=INT4).cache
    assert four.scales is not None
    for other in (replace(four, scales=four.scales[..., :2]), replace(four, k=four.k[..., :6], v=four.v[..., :6])):
        with pytest.raises(ValueError, match="attention: "):
            check_codes("attention", other)
    pool = Pool([4], 2, 8, torch.float32, codes=torch.uint8)
    cache, scales = pool.cache, pool.cache.scales
    assert scales is not None
    for other in (
        replace(cache, scales=None),
        replace(cache, k=pool.k, v=pool.v),
        replace(cache, v=pool.v),
        replace(cache, scales=scales[:, :1]),
        replace(cache, scales=scales.float()),
        replace(cache, k=cache.k[..., :6], v=cache.v[..., :6]),
    ):
        with pytest.raises(ValueError, match="attention: "):
            check_codes("attention", other)
