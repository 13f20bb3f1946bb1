"""The Triton kernels in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests."""

import pytest
import torch
from kernel_support.adapters import Range, Site
from torch import Tensor

from text_generation_kernels.lora.lora_expand import lora_expand_triton
from text_generation_kernels.lora.lora_expand_gated import lora_expand_gated_triton
from text_generation_kernels.lora.lora_shrink import lora_shrink_triton
from text_generation_kernels.norm.act_and_mul import act_and_mul_triton

RANKS = (16, 8, 40, 1)
QKV: list[Range] = [(0, 96, 0), (96, 144, 1), (144, 192, 2)]
# Gates of attention are outputs of the query projection.
GATED_QKV: list[Range] = [(0, 64, 0), (64, 80, 1), (80, 96, 2), (96, 160, 0)]
INTERLEAVED: list[Range] = [(first, first + 16, first // 16 % 2) for first in range(0, 160, 16)]
ONE: list[Range] = [(0, 50, 0)]
MIXED = [2, -1, 0, 3, -1, 2, 1, 2, *[0] * 17]
TOLERANCE = {torch.float16: 2e-3, torch.float32: 1e-4}


def _run(site: Site, adapters: list[int], x: Tensor, out: Tensor, tile_tokens: int = 16, add: bool = False) -> Tensor:
    step = site.step(adapters, tile_tokens, room=3)
    return step.run(x, out, add, lora_shrink_triton, lora_expand_triton)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("ranges", [QKV, GATED_QKV, INTERLEAVED, ONE], ids=["qkv", "gated", "interleaved", "one"])
@pytest.mark.parametrize(("inputs", "tile_tokens"), [(32, 16), (640, 64), (1100, 16)])
def test_a_partial_is_what_the_adapters_add(
    ranges: list[Range], inputs: int, tile_tokens: int, dtype: torch.dtype
) -> None:
    """One step of the loop over inputs, splits, and inputs that no step divides."""
    torch.manual_seed(inputs)
    site = Site.of(RANKS, ranges, inputs, dtype, "cpu")
    x, partials = torch.randn(len(MIXED), inputs).to(dtype), torch.full((3, len(MIXED), len(site.b[0])), float("nan"))
    _run(site, MIXED, x, partials[1], tile_tokens)
    torch.testing.assert_close(partials[1].double(), site.delta(x, MIXED), atol=TOLERANCE[dtype], rtol=1e-3)
    assert not partials[1, 1].any()
    assert partials[::2].isnan().all()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_outputs_are_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    site = Site.of(RANKS, QKV, 96, dtype, "cpu")
    x, base = torch.randn(len(MIXED), 96).to(dtype), torch.randn(len(MIXED), 200).to(dtype)[:, 8:]
    delta = _run(site, MIXED, x, torch.empty(len(MIXED), 192))
    found = _run(site, MIXED, x, base.clone(), add=True)
    assert torch.equal(found, (base.float() + delta).to(dtype))
    assert torch.equal(found[1], base[1])


@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu"])
@pytest.mark.parametrize("tile_tokens", [16, 64])
@pytest.mark.parametrize("ranges", [[(0, 96, 0), (96, 192, 1)], [(0, 192, 0)]], ids=["two", "one"])
def test_a_gated_mlp_is_what_two_kernels_make(ranges: list[Range], tile_tokens: int, activation: str) -> None:
    """On a card, bit for bit; here numpy's `exp` differs by one rounding with the shape."""
    torch.manual_seed(0)
    site = Site.of(RANKS, ranges, 96, torch.float16, "cpu")
    x, base = torch.randn(len(MIXED), 96).half(), torch.randn(len(MIXED), 200).half()[:, 8:]
    step = site.step(MIXED, tile_tokens, room=3)
    found = step.run_gated(x, base, activation, lora_shrink_triton, lora_expand_gated_triton)
    expected = torch.empty_like(found)
    act_and_mul_triton(_run(site, MIXED, x, base.clone(), tile_tokens, add=True), activation, expected)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-3)


def test_a_token_has_the_same_bits_in_any_batch() -> None:
    torch.manual_seed(0)
    site = Site.of(RANKS, QKV, 1100, torch.float16, "cpu")
    x = torch.randn(len(MIXED), 1100).half()
    among = _run(site, MIXED, x, torch.empty(len(MIXED), 192))
    for token in (0, 2, 3, 6, len(MIXED) - 1):
        alone = _run(site, [MIXED[token]], x[token : token + 1], torch.empty(1, 192))
        assert torch.equal(alone[0], among[token])


def test_only_base_requests_and_no_tokens() -> None:
    site = Site.of(RANKS, QKV, 32, torch.float16, "cpu")
    assert not _run(site, [-1] * 20, torch.randn(20, 32).half(), torch.full((20, 192), float("nan"))).any()
    base = torch.randn(20, 192).half()
    assert torch.equal(_run(site, [-1] * 20, torch.randn(20, 32).half(), base.clone(), add=True), base)
    _run(site, [], torch.empty(0, 32).half(), torch.empty(0, 192))


def test_pages_of_several_sites_may_lie_in_one_buffer() -> None:
    torch.manual_seed(0)
    site = Site.of(RANKS, QKV, 64, torch.float16, "cpu")
    x = torch.randn(len(MIXED), 64).half()
    expected = _run(site, MIXED, x, torch.empty(len(MIXED), 192))
    buffer = torch.cat([site.pool_a.flatten(1), site.pool_b.flatten(1)], dim=1)
    a, b = buffer.split([site.pool_a[0].numel(), site.pool_b[0].numel()], dim=1)
    shared = Site(
        site.ranges, site.a, site.b, site.scales, site.pages,
        a.view_as(site.pool_a), b.view_as(site.pool_b), site.pool_scale,
    )  # fmt: skip
    assert torch.equal(_run(shared, MIXED, x, torch.empty(len(MIXED), 192)), expected)
