"""Experts with adapters in torch, and what the operator refuses."""

import pytest
import torch
from kernel_support.expert_adapters import Mixture

from text_generation_kernels import adapted_experts, moe_experts

NUMBERS = [2, 0, 1, 3, 4, 2, 0, 1, *[2] * 30]


@pytest.mark.parametrize("only", ["", "up", "down"])
@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu", "relu2_alone"])
def test_each_row_gets_what_its_adapter_adds_to_its_expert(activation: str, only: str) -> None:
    mixture = Mixture.of(NUMBERS, torch.float32, activation=activation, biased=True, only=only)
    for deterministic in (False, True):
        found = mixture.run(adapted_experts, deterministic)
        torch.testing.assert_close(found.double(), mixture.expected(), atol=1e-5, rtol=1e-5)


def test_experts_of_other_ranks_add_nothing() -> None:
    mixture = Mixture.of(NUMBERS, torch.float32, held=3)
    found = mixture.run(adapted_experts, all_experts=5)
    torch.testing.assert_close(found.double(), mixture.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_without_adapter_have_the_bits_of_the_base(dtype: torch.dtype) -> None:
    mixture = Mixture.of(NUMBERS, dtype)
    found, out = mixture.run(adapted_experts, True), torch.empty_like(mixture.x)
    moe_experts(mixture.x, mixture.ids, mixture.weights, mixture.gate_up, mixture.down, "silu", True, out)
    for token, number in enumerate(NUMBERS):
        assert torch.equal(found[token], out[token]) == (number in (0, 3))


def test_shapes_that_do_not_fit_are_named() -> None:
    mixture = Mixture.of(NUMBERS, torch.float32)
    assert mixture.up is not None
    wrong = Mixture(**{**vars(mixture), "up": mixture.up._replace(a=mixture.up.a[..., 1:])})
    with pytest.raises(ValueError, match="adapted_experts: shapes do not fit"):
        wrong.run(adapted_experts)
    with pytest.raises(ValueError, match="adapted_experts: 38 tokens have 3 adapters"):
        Mixture(**{**vars(mixture), "numbers": mixture.numbers[:3]}).run(adapted_experts)
