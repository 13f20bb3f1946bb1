"""bitsandbytes: its kernels for the CPU quantise, and dequantise for comparison."""

import json
from typing import Any

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_quant, quantize_4bit
from support.grouped_matrices import assert_every_part, module
from torch import Tensor

from text_generation_server.config.quantisation import Packed, PackedFormat
from text_generation_server.errors import ModelFilesError
from text_generation_server.layers.weights.formats import OnlineKind, quantise_groups, read_groups

STATE = "weight.quant_state.bitsandbytes__nf4"
NF4 = Packed("bnb-nf4", 4, 64)


def _four_bits(weight: Tensor, kind: str = "nf4", double: bool = True, block: int = 64) -> dict[str, Tensor]:
    """The tensors of a module as the library saves them."""
    packed, state = quantize_4bit(weight, blocksize=block, compress_statistics=double, quant_type=kind)
    return {"weight": packed, **{f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}}


def _dequantised(weight: Tensor, kind: str = "nf4", double: bool = True, block: int = 64) -> Tensor:
    """As one long row: where rows begin inside a block, the library's kernel for the CPU takes other scales than those
    by which it has quantised.
    """
    packed, state = quantize_4bit(weight.view(1, -1), blocksize=block, compress_statistics=double, quant_type=kind)
    return dequantize_4bit(packed, state).view_as(weight)


def _weight(outputs: int = 32, inputs: int = 192) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(outputs, inputs)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("block", [64, 128])
def test_every_part_is_that_of_the_library(kind: str, double: bool, block: int) -> None:
    """Blocks of 128 begin in the middle of every other row."""
    weight = _weight()
    expected = _dequantised(weight, kind, double, block)
    form: PackedFormat = "bnb-nf4" if kind == "nf4" else "bnb-fp4"
    tensors = _four_bits(weight, kind, double, block)
    whole = assert_every_part(tensors, Packed(form, 4, 64), expected, (3, 16), (7, 64, 150))
    assert whole.group_size == 64


def test_rows_that_begin_inside_a_block() -> None:
    weight = _weight(6, 96)
    tensors = _four_bits(weight, double=False)
    assert assert_every_part(tensors, NF4, _dequantised(weight, double=False), (1, 4), (32, 50)).group_size == 32


def test_the_upper_half_of_a_byte_comes_first() -> None:
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [1, 64]}
    tensors = {
        "weight": torch.full((32, 1), 0xF7, dtype=torch.uint8),
        "weight.absmax": torch.tensor([2.0]),
        "weight.quant_map": quantise_groups(_weight(), "nf4").table,
        STATE: torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    whole = read_groups(module(tensors, (1, 64)), NF4).dequantised()  # type: ignore[arg-type]
    assert whole[0, :4].tolist() == [2.0, 0.0, 2.0, 0.0]


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("row", [True, False])
def test_codes_may_be_stored_as_another_type(storage: torch.dtype, row: bool) -> None:
    """`bnb_4bit_quant_storage`, which shares such tensors as it shares floating ones; some files hold a row."""
    tensors = _four_bits(_weight())
    expected = read_groups(module(tensors, (32, 192)), NF4).dequantised()
    stored = tensors["weight"].view(-1).view(storage)
    tensors["weight"] = stored[None] if row else stored[:, None]
    assert_every_part(tensors, NF4, expected, (3, 16), (7, 64))


def test_int8_rows() -> None:
    weight = _weight()
    codes, largest, _ = int8_vectorwise_quant(weight.half())
    tensors = {"weight": codes, "SCB": largest.float(), "weight_format": torch.tensor(0, dtype=torch.uint8)}
    expected = codes.float() * (largest.float() / 127)[:, None]
    assert_every_part(tensors, Packed("bnb-int8", 8, 0), expected, (5,), (64,))
    tensors["weight_format"] += 1
    with pytest.raises(ModelFilesError, match=r"`m\.weight_format` is 1: an order of weights for one kind of card"):
        read_groups(module(tensors, (32, 192)), Packed("bnb-int8", 8, 0))


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_what_is_made_while_loading_is_what_the_library_makes(kind: OnlineKind) -> None:
    weight = _weight()
    assert torch.equal(quantise_groups(weight, kind).dequantised(), _dequantised(weight, kind, double=False))


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"shape": [32, 191]}, r"shape \[32, 191\], but config.json asks for 'nf4' with \[32, 192\]"),
        ({"quant_type": "fp4"}, "is of 'fp4'"),
        ({"blocksize": 48}, "blocksize 48, which is no power of two"),
        ({"blocksize": True}, "blocksize True"),
        ({"nested_blocksize": "x"}, "nested_blocksize 'x'"),
        ({"nested_blocksize": 2**40}, "nested_blocksize 1099511627776"),
        ({"nested_offset": float("inf")}, "nested_offset inf"),
        ({"nested_offset": float("nan")}, "nested_offset nan"),
        ({"nested_offset": 10**400}, "nested_offset 1000"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(changed: dict[str, Any], fact: str) -> None:
    tensors = _four_bits(_weight())
    state = {**json.loads(bytes(tensors[STATE].tolist())), **changed}
    tensors[STATE] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    with pytest.raises(ModelFilesError, match=fact):
        read_groups(module(tensors, (32, 192)), NF4)


@pytest.mark.parametrize(
    ("name", "tensor", "fact"),
    [
        (STATE, torch.zeros(8, dtype=torch.uint8), "is not JSON"),
        (STATE, torch.tensor([0xFF, 0xFE], dtype=torch.uint8), "is not JSON"),
        (STATE, torch.tensor([ord("1")], dtype=torch.uint8), "is not a JSON object"),
        (STATE, torch.full((4000,), ord("["), dtype=torch.uint8), "is not JSON"),
        (STATE, torch.zeros(5000, dtype=torch.uint8), "up to 4096 bytes"),
        ("weight", torch.zeros(3071, 1, dtype=torch.uint8), "does not hold 3072 bytes"),
        ("weight", torch.zeros(1536, 1, dtype=torch.uint8), "does not hold 3072 bytes"),
        ("weight.absmax", torch.zeros(95, dtype=torch.uint8), r"`m.weight.absmax` has shape \[95\]"),
        ("weight.quant_map", torch.zeros(15), r"`m.weight.quant_map` has shape \[15\]"),
        ("weight.nested_quant_map", torch.zeros(255), r"`m.weight.nested_quant_map` has shape \[255\]"),
        ("weight.nested_absmax", torch.zeros(2), r"`m.weight.nested_absmax` has shape \[2\]"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, tensor: Tensor, fact: str) -> None:
    tensors = {**_four_bits(_weight()), name: tensor}
    with pytest.raises(ModelFilesError, match=fact):
        read_groups(module(tensors, (32, 192)), NF4)
