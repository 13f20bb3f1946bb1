"""Feed-forward networks of a single token, whose GEMVs are fused with more than GEMMs are."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_server.config.spec import DenseSpec
from text_generation_server.layers.infer.feed_forward import DenseFeedForward
from text_generation_server.layers.weights import Activations, Dense, DenseWeights
from text_generation_server.layers.weights.activations import ActivationScheme
from text_generation_server.layers.weights.linear import Linear, Split
from text_generation_server.layers.weights.w8a8 import W8A8Linear
from text_generation_server.layers.weights.weight_only import WeightOnlyLinear

FP8 = torch.float8_e4m3fn
SCHEMES = {
    "fp8": ActivationScheme(FP8),
    "fp8 static": ActivationScheme(FP8, static=torch.tensor([0.02])),
    "fp8 bound": ActivationScheme(FP8, bound=0.5),
    "fp8 blocks": ActivationScheme(FP8, group=128),
    "int8": ActivationScheme(torch.int8),
}


def _matrix(kind: str, weight: Tensor) -> Linear:
    outputs, inputs = weight.shape
    if kind == "16 bits":
        return Dense(weight)
    if kind == "split":
        return Split([_matrix("fp8", weight[: outputs // 2]), _matrix("groups", weight[outputs // 2 :])])
    if kind == "groups":
        scales, size = kernels.pack_scales(torch.full((outputs, inputs // 128), 0.01), inputs, 128)
        packed = kernels.pack_codes((weight / 0.01 + 8).byte().clamp(0, 15), 4)
        return WeightOnlyLinear(inputs, kernels.PackedMatrix(packed, scales, group_size=size))
    scheme = SCHEMES[kind]
    room = scheme.room(weight)
    kernels.quantise_rows(weight, room)
    assert room.codes is not None
    assert room.scale is not None
    return W8A8Linear(room.codes, room.scale, scheme)


@pytest.mark.parametrize("first", ["16 bits", "split", "groups", *SCHEMES])
@pytest.mark.parametrize("second", ["16 bits", "groups", *SCHEMES])
def test_a_token_alone_gets_what_it_gets_among_others(first: str, second: str) -> None:
    torch.manual_seed(0)
    hidden, inner = 128, 256
    gate_up, down = torch.randn(2 * inner, hidden) / 20, torch.randn(hidden, inner) / 20
    network = DenseFeedForward(DenseSpec(inner, "silu"), DenseWeights(_matrix(first, gate_up), _matrix(second, down)))
    x = torch.randn(3, hidden)
    together, alone = (network.forward(Activations(each), _state(block)) for each, block in ((x, None), (x[:1], None)))
    torch.testing.assert_close(alone[0], together[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(network.forward(Activations(x[:1]), _state(4)), network.forward(Activations(x), _state(4))[:1])


def _state(block: int | None) -> Any:
    return SimpleNamespace(linear_block=block)
