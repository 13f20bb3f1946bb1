"""Ladders: what they tell of their choices, and of the kernels in them."""

# pyright: basic
import pytest
import torch

from text_generation_kernels.matmul.bf16_ladder import BF16, Bf16Problem
from text_generation_kernels.matmul.ladder import Ladder
from text_generation_kernels.matmul.w8a8_ladder import W8A8
from text_generation_kernels.matmul.weight_only_ladder import WEIGHT_ONLY
from text_generation_kernels.moe.experts_ladder import EXPERTS
from text_generation_kernels.moe.mixture_ladder import MIXTURE
from text_generation_kernels.runtime.device import CARDS, card_of, meta_device_is
from text_generation_kernels.runtime.launch import LAUNCHERS

LADDERS = (BF16, W8A8, WEIGHT_ONLY, EXPERTS, MIXTURE)
LIBRARIES = {"cublas", "cutlass_rows", "cublas_blocks"}


@pytest.mark.parametrize("ladder", LADDERS)
def test_every_kernel_but_libraries_tells_what_it_launches(ladder: Ladder) -> None:
    for kernel in ladder.kernels:
        assert all(name in LAUNCHERS for name in kernel.launches)
        assert bool(kernel.kernels) is (kernel.name not in LIBRARIES)


def test_refusals_are_those_of_the_kernels_before_the_choice() -> None:
    meta = torch.device("meta")
    with meta_device_is(CARDS["h100"]):
        x, weight = (torch.empty(shape, dtype=torch.bfloat16, device=meta) for shape in ((64, 4096), (4096, 4096)))
        problem = Bf16Problem.of(x, weight, x)
    names = [kernel.name for kernel in BF16.kernels]
    refusals = list(BF16.refusals(problem))
    assert [name for name, _ in refusals] == names[: names.index(BF16.pick(problem).kernel.name)]
    assert refusals[0] == ("bf16_gemv", "it computes a single token")


@pytest.mark.parametrize(
    ("name", "hopper", "fp8"), [("h200", True, True), ("l40s", False, True), ("a100", False, False)]
)
def test_the_meta_device_counts_as_the_card_that_it_is_said_to_be(name: str, hopper: bool, fp8: bool) -> None:
    meta = torch.device("meta")
    before = card_of(meta)
    with meta_device_is(CARDS[name]):
        card = card_of(meta)
        assert (card.is_hopper, card.has_fp8_gemms, card.num_sms) == (hopper, fp8, CARDS[name].num_sms)
        assert card_of(torch.device("cpu")) == before
    assert card_of(meta) == before
