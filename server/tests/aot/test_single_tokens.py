"""Which kernels quantised matrices launch for a single token, without a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_support.variants import dry_run_variants, launched_variants, pretend_a_device

import text_generation_kernels as kernels
from text_generation_server.config.spec import DenseSpec
from text_generation_server.layers.infer.feed_forward import DenseFeedForward
from text_generation_server.layers.weights import Activations, DenseWeights
from text_generation_server.layers.weights.activations import ActivationScheme
from text_generation_server.layers.weights.linear import Linear
from text_generation_server.layers.weights.w8a8 import W8A8Linear
from text_generation_server.layers.weights.weight_only import WeightOnlyLinear

HIDDEN, INNER = 512, 1024


def _matrix(kind: str, outputs: int, inputs: int) -> Linear:
    if kind == "groups":
        scales, size = kernels.pack_scales(torch.ones(outputs, inputs // 128), inputs, 128)
        codes = kernels.pack_codes(torch.zeros(outputs, inputs, dtype=torch.uint8), 4)
        return WeightOnlyLinear(inputs, kernels.PackedMatrix(codes, scales, group_size=size))
    dtype = torch.float8_e4m3fn if kind == "fp8" else torch.int8
    return W8A8Linear(torch.zeros(outputs, inputs).to(dtype), torch.ones(outputs), ActivationScheme(dtype))


def _names(kind: str, tokens: int, linear_block: int | None) -> set[str]:
    """Of the kernels of a feed-forward network. Warm-up names the same variants."""
    weights = DenseWeights(_matrix(kind, 2 * INNER, HIDDEN), _matrix(kind, HIDDEN, INNER))
    network = DenseFeedForward(DenseSpec(INNER, "silu"), weights)
    state: Any = SimpleNamespace(linear_block=linear_block)
    x = Activations(torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16))
    with dry_run_variants() as named:
        network.forward(x, state)
    with launched_variants() as needed:
        network.forward(x, state)
    assert needed <= named
    return {name for name, _ in needed}


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [("fp8", "w8a8_gemv_kernel"), ("int8", "w8a8_gemv_kernel"), ("groups", "w4a16_gemv_kernel")],
)
@torch.inference_mode()
def test_a_network_for_one_token_has_products_of_its_own(
    kind: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_a_device(monkeypatch)
    # Codes of int8 are multiplied four at a time, so that they are made before.
    more = {"quantise_rows_kernel"} if kind == "int8" else set()
    assert _names(kind, 1, None) == {kernel} | more
    assert kernel not in _names(kind, 2, None)


@pytest.mark.parametrize("kind", ["fp8", "int8", "groups"])
@torch.inference_mode()
def test_deterministic_products_of_one_token_are_those_of_several(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_a_device(monkeypatch)
    assert _names(kind, 1, 64) == _names(kind, 2, 64)
