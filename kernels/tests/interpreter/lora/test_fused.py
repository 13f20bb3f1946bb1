"""Kernels that fuse shrink and expand, in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support.adapters import Range, Site
from torch import Tensor

from text_generation_kernels import NormPrologue, SiteAdapters
from text_generation_kernels.lora.lora_delta import lora_delta_triton
from text_generation_kernels.matmul.adapted_gemv import adapted_gemv_torch, adapted_gemv_triton

RANKS = (16, 8, 100, 1)
QKV: list[Range] = [(0, 64, 0), (64, 80, 1), (80, 96, 2)]
GATE_UP: list[Range] = [(0, 32, 0), (32, 64, 1)]
ONE: list[Range] = [(0, 40, 0)]
MIXED = [2, -1, 0, 3, -1, 2, *[0] * 17]


def _words() -> Tensor:
    return torch.zeros(1 << 18, dtype=torch.int64)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(("ranges", "inputs"), [(QKV, 32), (ONE, 1100), (GATE_UP, 640)])
def test_delta_is_what_the_adapters_add(ranges: list[Range], inputs: int, beside: bool) -> None:
    """One step of the loop over inputs, splits, and inputs that no step divides."""
    torch.manual_seed(inputs)
    site = Site.of(RANKS, ranges, inputs, torch.float16, "cpu")
    x, partials = torch.randn(len(MIXED), inputs).half(), torch.full((3, len(MIXED), len(site.b[0])), float("nan"))
    lora_delta_triton(x, site.step(MIXED, room=3).adapters(1, _words()), partials[1], beside)
    torch.testing.assert_close(partials[1].double(), site.delta(x, MIXED), atol=2e-3, rtol=1e-3)
    assert not partials[1, 1].any()
    assert partials[::2].isnan().all()


def test_steps_and_launches_do_not_read_words_of_others() -> None:
    torch.manual_seed(0)
    words, x = _words(), torch.randn(3, 64).half()
    for turn in (1, 2):
        for launch in (0, 1):
            site = Site.of(RANKS, QKV, 64, torch.float16, "cpu")
            out = torch.empty(3, 96)
            lora_delta_triton(x, site.step([0, 2, 0]).adapters(turn, words, launch), out)
            torch.testing.assert_close(out.double(), site.delta(x, [0, 2, 0]), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("ranges", "inputs", "activation", "adds", "normalises"),
    [
        (QKV, 1000, None, False, True),
        (ONE, 9000, None, True, False),
        (GATE_UP, 64, "silu", False, True),
        (ONE, 40, None, False, True),
    ],
)
@pytest.mark.parametrize("adapter", [-1, 0, 2])
def test_one_token(
    adapter: int, ranges: list[Range], inputs: int, activation: str | None, adds: bool, normalises: bool
) -> None:
    torch.manual_seed(inputs)
    site = Site.of(RANKS, ranges, inputs, torch.float16, "cpu")
    outputs = len(site.b[0])
    x, weight = torch.randn(1, inputs).half(), (torch.randn(outputs, inputs) / inputs**0.5).half()
    norm_weight, before = (1 + 0.1 * torch.randn(inputs)).half(), torch.randn(1, outputs // (2 if activation else 1))
    adapters = site.step([adapter], room=2).adapters(1, _words())

    def run(gemv: object) -> tuple[Tensor, Tensor]:
        out, normalised = before.half(), torch.full_like(x, float("nan"))
        norm = NormPrologue(norm_weight, 1e-5, normalised) if normalises else NormPrologue()
        gemv(x, weight, None, out, adapters, activation, norm, adds)  # type: ignore[operator]
        return out, normalised

    (found, normalised), (expected, by_torch) = run(adapted_gemv_triton), run(adapted_gemv_torch)
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=4e-3)
    if normalises:
        torch.testing.assert_close(normalised, by_torch)


def test_words_must_have_room() -> None:
    site = Site.of(RANKS, QKV, 64, torch.float16, "cpu")
    adapters: SiteAdapters = site.step([0, 1]).adapters(1, torch.zeros(10, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"words has room for 10, and must have for 1536"):
        lora_delta_triton(torch.randn(2, 64).half(), adapters, torch.empty(2, 96))
