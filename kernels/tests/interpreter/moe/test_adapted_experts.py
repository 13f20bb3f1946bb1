"""Experts with adapters in Triton's interpreter: run with TRITON_INTERPRET=1."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from kernel_support.expert_adapters import Mixture
from kernel_support.expert_codes import expert_codes
from torch import Tensor

from text_generation_kernels import ExpertFactors, ExpertMatrix
from text_generation_kernels.moe.adapted_experts import adapter_deltas
from text_generation_kernels.moe.moe_experts import Tiles, run_experts

NUMBERS = [2, 0, 1, 3, 4, 2, 0, 1, *[2] * 30]
TOLERANCE = {torch.float16: 2e-2, torch.float32: 1e-4}


PLAIN = {"BLOCK_N": 32, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2}


def _run(height: int, held: int | None = None, settings: Mapping[str, int] = PLAIN) -> Any:
    """The kernels with tiles of `height` rows."""

    def operator(
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        gate_up: ExpertMatrix,
        down: ExpertMatrix,
        activation: str,
        _deterministic: bool,
        out: Tensor,
        numbers: Tensor,
        *factors: ExpertFactors | None,
    ) -> None:
        deltas = partial(adapter_deltas, factors, numbers, ids.shape[1], height)
        tiles = Tiles(height, settings, settings)
        run_experts(x, ids, weights, gate_up, down, activation, tiles, out, held, False, deltas)

    return operator


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("activation", "height", "hidden", "inner", "only"),
    [
        ("silu", 16, 40, 24, ""),
        ("clamped_swiglu", 16, 64, 32, "up"),
        ("relu2_alone", 64, 40, 24, "down"),
        ("silu", 16, 640, 24, ""),
    ],
)
def test_each_row_gets_what_its_adapter_adds_to_its_expert(
    activation: str, height: int, hidden: int, inner: int, only: str, dtype: torch.dtype
) -> None:
    """One split and several, inputs that no step divides, and adapters that meet in a tile."""
    mixture = Mixture.of(NUMBERS, dtype, hidden, inner, activation, biased=True, only=only)
    found = mixture.run(_run(height))
    torch.testing.assert_close(found.double(), mixture.expected(), atol=TOLERANCE[dtype], rtol=1e-3)


@pytest.mark.parametrize("kinds", [("symmetric", "table"), ("eight", "float8")])
def test_adapters_beside_quantised_experts(kinds: tuple[str, str]) -> None:
    mixture = Mixture.of(NUMBERS, torch.float16)
    for name, kind, outputs, inputs in (("gate_up", kinds[0], 48, 40), ("down", kinds[1], 40, 24)):
        setattr(
            mixture, name, expert_codes(kind, 5, outputs, inputs, 32 if kind in ("symmetric", "table") else 0, True)
        )
    expected = mixture.expected()
    settings = {"BLOCK_N": 32, "FOLD": 0, "num_warps": 2, "num_stages": 2}
    assert (mixture.run(_run(16, settings=settings)).double() - expected).norm() <= 6e-3 * expected.norm()


def test_adapters_beside_experts_that_are_multiplied_in_8_bits() -> None:
    mixture = Mixture.of(NUMBERS, torch.float16)
    for name, outputs, inputs in (("gate_up", 48, 40), ("down", 40, 24)):
        setattr(mixture, name, expert_codes("float8", 5, outputs, inputs, 0, False)._replace(w8a8=True))
    expected = mixture.expected()
    found = mixture.run(_run(64, settings={"BLOCK_N": 64, "num_warps": 4, "num_stages": 2})).double()
    # Rows of the base's GEMM are rounded to three bits of mantissa.
    assert 1e-3 * expected.norm() < (found - expected).norm() <= 5e-2 * expected.norm()


def test_experts_of_other_ranks_add_nothing() -> None:
    mixture = Mixture.of(NUMBERS, torch.float32, held=3)
    torch.testing.assert_close(mixture.run(_run(16, held=3)).double(), mixture.expected(), atol=1e-4, rtol=1e-4)


def test_rows_have_the_same_bits_in_any_company() -> None:
    """A row without adapter has those that it has beside none."""
    mixture = Mixture.of(NUMBERS, torch.float16)
    among = mixture.run(_run(16))
    for number in (0, 2):
        alone = Mixture(**{**vars(mixture), "numbers": torch.full_like(mixture.numbers, number)})
        found, own = alone.run(_run(16)), (mixture.numbers == number).nonzero()[:, 0]
        assert torch.equal(found[own], among[own])
