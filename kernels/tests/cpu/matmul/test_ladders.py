"""Ladders: what they tell of their choices, and of the kernels in them."""

# pyright: basic
import pytest
import torch

from text_generation_kernels import PackedMatrix
from text_generation_kernels.matmul.bf16_ladder import BF16, Bf16Problem
from text_generation_kernels.matmul.ladder import Ladder
from text_generation_kernels.matmul.w8a8_ladder import W8A8
from text_generation_kernels.matmul.weight_only_ladder import WEIGHT_ONLY, WeightOnlyProblem
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
    ("card", "tokens", "kernel"),
    [
        ("h200", 1, "nvfp4_gemv"),
        ("h200", 2, "nvfp4_small_hopper"),
        ("h200", 33, "weight_only_gemm"),
        ("a100", 1, "weight_only_gemm"),
    ],
)
def test_few_tokens_by_nvfp4_have_kernels_of_their_own(card: str, tokens: int, kernel: str) -> None:
    meta = torch.device("meta")
    with meta_device_is(CARDS[card]):
        x, out = (torch.empty(tokens, size, dtype=torch.bfloat16, device=meta) for size in (4096, 4096))
        codes = torch.empty(4096, 4096 // 8, dtype=torch.int32, device=meta)
        scales = torch.empty(16, 4096, 16, dtype=torch.float8_e4m3fn, device=meta)
        table, factors = torch.empty(16, device=meta), torch.empty(4096, device=meta)
        nvfp4 = PackedMatrix(codes, scales, None, table, 16, factors)
        assert WEIGHT_ONLY.pick(WeightOnlyProblem.of(x, nvfp4, out)).kernel.name == kernel
        # Other tables, and scales, are not read by it.
        other = PackedMatrix(codes, scales.bfloat16(), None, table, 16)
        assert WEIGHT_ONLY.pick(WeightOnlyProblem.of(x, other, out)).kernel.name == "weight_only_gemm"


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
