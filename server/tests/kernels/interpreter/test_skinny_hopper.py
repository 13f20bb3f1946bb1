"""The kernel for Hopper cards in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch

from text_generation_server.kernels._skinny_hopper import skinny_hopper
from text_generation_server.kernels.skinny_linear import launch

TILE = {"BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(33, 30, 32), (64, 64, 96), (40, 130, 64)])
def test_as_the_kernel_of_other_cards(
    tokens: int, outputs: int, inputs: int, activation: str | None, with_bias: bool
) -> None:
    torch.manual_seed(tokens)
    x, weight = torch.randn(tokens, inputs).half(), torch.randn(outputs, inputs + 8).half()[:, :inputs]
    bias = torch.randn(outputs).half() if with_bias else None
    size = outputs if activation is None else outputs // 2
    out, expected = torch.full((2, tokens, size), float("nan")).half()
    launch(x, weight, bias, expected, TILE, 1, activation)
    skinny_hopper(x, weight, bias, out, TILE, 1, activation)
    # NumPy adds up in an order that follows from the sizes of tiles.
    torch.testing.assert_close(out, expected, atol=1e-2, rtol=2e-3)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_of_the_inputs(parts: int) -> None:
    torch.manual_seed(parts)
    x, weight = torch.randn(50, 96).half(), torch.randn(70, 96).half()
    out, expected = torch.full((2, parts, 50, 70), float("nan"))
    launch(x, weight, None, expected, TILE, parts)
    skinny_hopper(x, weight, None, out, TILE, parts, None)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_every_tensor_has_its_own_stride() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(36, 80).half()[:, 8:72], torch.randn(20, 72).half()[:, :64]
    out = torch.full((36, 30), float("nan")).half()
    skinny_hopper(x, weight, None, out[:, 3:23], TILE, 1, None)
    torch.testing.assert_close(out[:, 3:23].float(), x.float() @ weight.float().t(), atol=2e-2, rtol=2e-3)
    assert out[:, :3].isnan().all()
    assert out[:, 23:].isnan().all()
