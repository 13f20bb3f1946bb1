"""Experts with adapters on the device, through the dispatcher."""

import pytest
import torch
from kernel_support.expert_adapters import Mixture
from kernel_support.on_device import on_cuda

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu
NUMBERS = [2, 0, 1, 3, 4, 2, 0, 1, *[2] * 30]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
"""Of the norm of errors, relative to that of the results."""
ADAPTED = on_cuda(kernels.adapted_experts)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("numbers", [[1], NUMBERS, NUMBERS * 20], ids=["one", "some", "many"])
@pytest.mark.parametrize(("hidden", "inner"), [(40, 24), (2048, 768)])
def test_each_row_gets_what_its_adapter_adds_to_its_expert(
    hidden: int, inner: int, numbers: list[int], dtype: torch.dtype
) -> None:
    mixture = Mixture.of(numbers, dtype, hidden, inner, biased=True)
    expected = mixture.expected()
    for deterministic in (False, True):
        found = mixture.run(ADAPTED, deterministic).double()
        assert (found - expected).norm() <= TOLERANCE[dtype] * expected.norm()


def test_experts_of_other_ranks_add_nothing() -> None:
    mixture = Mixture.of(NUMBERS, torch.float32, held=3)
    found = mixture.run(ADAPTED)
    torch.testing.assert_close(found.double(), mixture.expected(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tokens_without_adapter_have_the_bits_of_the_base(dtype: torch.dtype) -> None:
    mixture = Mixture.of(NUMBERS, dtype, 256, 96)
    found, out = mixture.run(ADAPTED, True), torch.empty_like(mixture.x)
    routing = kernels.Routing(mixture.ids, mixture.weights)
    on_cuda(kernels.moe_experts)(mixture.x, routing, mixture.mlps, True, out)
    for token, number in enumerate(NUMBERS):
        assert torch.equal(found[token], out[token]) == (number in (0, 3))
