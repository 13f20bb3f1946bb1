"""The kernel for 33 to 64 tokens on Hopper cards, by itself: Triton's interpreter cannot run what is in Gluon."""

import json
from importlib import resources

import pytest
import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.matmul import bf16_small_hopper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="for Hopper cards"
    ),
]
Variant = dict[str, int]


def _variants(gated: bool) -> list[Variant]:
    file = resources.files("text_generation_kernels") / "tuned" / "bf16_small_hopper.json"
    entries = json.loads(file.read_text(encoding="utf-8"))
    variants = {tuple(entry["config"].items()) for entry in entries if entry["key"]["gated"] == gated}
    return [dict(variant) for variant in sorted(variants)]


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def _whole(variant: Variant) -> Variant:
    return {**variant, "splits": 1}


def _assert_close(out: Tensor, expected: Tensor, tolerance: float) -> None:
    assert (out.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("variant", _variants(False), ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True])
# Rows and inputs that no tile divides, fewer steps than there are stages, and more.
@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(33, 30, 72), (50, 1000, 328), (64, 300, 4096)])
def test_is_the_formula(
    tokens: int,
    outputs: int,
    inputs: int,
    with_bias: bool,
    dtype: torch.dtype,
    variant: Variant,
) -> None:
    torch.manual_seed(tokens)
    x, weight = (_random(rows, inputs, dtype=dtype) for rows in (tokens, outputs))
    bias = _random(outputs, dtype=dtype) if with_bias else None
    out = torch.full((tokens, outputs), float("nan"), device="cuda", dtype=dtype)

    bf16_small_hopper.bf16_small_hopper(x, weight, bias, out, None, _whole(variant))

    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    _assert_close(out, expected, 4e-3)


@pytest.mark.parametrize("variant", _variants(False), ids=str)
@pytest.mark.parametrize("splits", [2, 3, 7])
def test_every_split_has_its_own_partial(splits: int, variant: Variant) -> None:
    torch.manual_seed(splits)
    x, weight = _random(50, 896), _random(330, 896)
    out = torch.full((splits, 50, 330), float("nan"), device="cuda")

    bf16_small_hopper.bf16_small_hopper(x, weight, None, out, None, {**variant, "splits": splits})

    blocks = -(-896 // variant["BLOCK_K"])
    inputs_of_split = -(-blocks // splits) * variant["BLOCK_K"]
    for index, found in enumerate(out):
        columns = slice(index * inputs_of_split, (index + 1) * inputs_of_split)
        expected = x[:, columns].double() @ weight[:, columns].double().t()
        _assert_close(found, expected, 3e-5)


@pytest.mark.parametrize("variant", _variants(True), ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(33, 60, 72), (64, 1000, 1024)])
def test_gate_and_up(tokens: int, outputs: int, inputs: int, with_bias: bool, variant: Variant) -> None:
    torch.manual_seed(tokens)
    x, weight = _random(tokens, inputs), _random(outputs, inputs)
    bias = _random(outputs) if with_bias else None
    linear = torch.empty(tokens, outputs, device="cuda", dtype=torch.bfloat16)
    out, expected = torch.full((2, tokens, outputs // 2), float("nan"), device="cuda", dtype=torch.bfloat16)
    bf16_small_hopper.bf16_small_hopper(x, weight, bias, linear, None, _whole(_variants(False)[0]))
    kernels.act_and_mul(linear, "silu", expected)

    bf16_small_hopper.bf16_small_hopper(x, weight, bias, out, "silu", _whole(variant))

    assert torch.equal(out, expected)


def test_every_tensor_has_its_own_stride() -> None:
    torch.manual_seed(0)
    x, weight = _random(36, 80)[:, 8:72], _random(20, 72)[:, :64]
    out = torch.full((36, 30), float("nan"), device="cuda", dtype=torch.bfloat16)

    bf16_small_hopper.bf16_small_hopper(x, weight, None, out[:, 3:23], None, _whole(_variants(False)[0]))

    _assert_close(out[:, 3:23], x.double() @ weight.double().t(), 4e-3)
    assert out[:, :3].isnan().all()
    assert out[:, 23:].isnan().all()


def test_what_the_tile_has_past_the_last_token_is_neither_read_nor_written() -> None:
    torch.manual_seed(0)
    weight = _random(200, 256)
    x, out = (torch.full((64, size), float("nan"), device="cuda", dtype=torch.bfloat16) for size in (256, 200))
    x[:40] = _random(40, 256)

    bf16_small_hopper.bf16_small_hopper(x[:40], weight, None, out[:40], None, _whole(_variants(False)[0]))

    _assert_close(out[:40], x[:40].double() @ weight.double().t(), 4e-3)
    assert out[40:].isnan().all()
