"""What is quantised while it is loaded; nf4 and fp4 are beside bitsandbytes' own tests."""

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams

from text_generation_server.layers.weights.formats import OnlineKind, online, quantise_groups


def test_int4_is_the_rounding_of_compressed_tensors() -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 256)
    args = QuantizationArgs(num_bits=4, symmetric=True, strategy="group", group_size=128)
    grouped = weight.unflatten(1, (-1, 128))
    scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    found = quantise_groups(weight, "int4")
    assert torch.equal(found.dequantised(), fake_quantize(weight, scale, zero, args))
    assert (found.bits, found.group_size, found.zeros) == (4, 128, None)


def test_int8_keeps_the_largest_weight_of_a_row() -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 100).bfloat16()
    found = quantise_groups(weight, "int8").dequantised()
    largest = weight.float().abs().amax(1)
    assert torch.allclose(found.abs().amax(1), largest, rtol=1e-6)
    assert bool(((found - weight.float()).abs() <= largest[:, None] / 254 * 1.001).all())


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int4", "int8", "mxfp4"])
def test_zeros_pieces_and_shorter_last_groups(kind: OnlineKind, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 200)
    weight[3] = 0.0
    whole = quantise_groups(weight, kind)
    assert bool((whole.dequantised()[3] == 0).all())
    monkeypatch.setattr(online, "_LARGEST_PIECE", 600)
    assert torch.equal(quantise_groups(weight, kind).dequantised(), whole.dequantised())
    assert torch.equal(quantise_groups(weight[:, :128], kind).codes[:, :128], whole.codes[:, :128]) or kind == "int8"
