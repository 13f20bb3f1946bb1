"""Operators whose arguments are records, called directly and as `torch.compile` traces them."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from text_generation_kernels.runtime.register import register


@dataclass(frozen=True, slots=True, eq=False)
class _Scaling:
    factor: float
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Operand:
    values: Tensor
    scaling: _Scaling


def scaled_add_torch(x: Tensor, operand: _Operand, out: Tensor, name: str = "sum", clamp: float | None = None) -> None:
    """Writes `x + factor * values + bias`, at most `clamp`, to `out`."""
    assert isinstance(operand.scaling, _Scaling), name
    total = x + operand.scaling.factor * operand.values
    if operand.scaling.bias is not None:
        total = total + operand.scaling.bias
    out.copy_(total if clamp is None else total.clamp(max=clamp))


_scaled_add = register(scaled_add_torch, mutates=("out",))


def test_schema_has_the_fields_of_records() -> None:
    schema = str(torch.ops.text_generation.scaled_add.default._schema)  # pyright: ignore[reportPrivateUsage]
    expected = "Tensor x, Tensor operand_values, float operand_scaling_factor, Tensor? operand_scaling_bias"
    assert expected in schema
    assert "Tensor(a4!) out" in schema


@pytest.mark.parametrize("bias", [None, 3.0])
def test_records_arrive_whole_with_and_without_compile(bias: float | None) -> None:
    def run(x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        out = torch.empty_like(x)
        _scaled_add(x, _Operand(values, _Scaling(2.0, bias)), out, clamp=8.0)
        return out

    arguments = torch.arange(4.0), torch.ones(4), None if bias is None else torch.tensor(bias)
    expected = torch.tensor([2.0, 3.0, 4.0, 5.0]) + (bias or 0.0)
    for function in (run, torch.compile(run, backend="eager", fullgraph=True)):
        assert torch.equal(function(*arguments), expected.clamp(max=8.0))
