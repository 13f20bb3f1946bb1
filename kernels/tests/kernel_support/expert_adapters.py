"""Adapters of experts, and what a mixture with them must give, row by row in float64."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from text_generation_kernels import RANK_UNITS, ExpertFactors, ExpertMatrix

from . import reference

PAGES = (1, 2, 0, 1)
"""Of adapters 1, 2, ...; 3 changes nothing of this layer."""


def factors(experts: int, outputs: int, inputs: int, dtype: torch.dtype) -> ExpertFactors:
    """Random factors of four adapters. Pages that no adapter has are not numbers."""
    pages, nan = sum(PAGES) + 2, float("nan")
    a = (torch.randn(pages, experts, RANK_UNITS, inputs) / inputs**0.5).to(dtype)
    b = (torch.randn(pages, experts, outputs, RANK_UNITS) / RANK_UNITS**0.5).to(dtype)
    scale = torch.rand(pages, experts, RANK_UNITS) + 0.5
    a[0], b[0], scale[0], a[3], b[3], scale[3] = nan, nan, nan, nan, nan, nan
    spans = torch.tensor([[0, 0], [4, 1], [1, 2], [0, 0], [5, 1]], dtype=torch.int32)
    return ExpertFactors(a, b, scale, spans, max(PAGES))


def delta(own: ExpertFactors | None, number: int, expert: int, x: Tensor) -> Tensor | float:
    """What adapter `number` adds to the outputs of an expert, float64."""
    if own is None:
        return 0.0
    first, count = own.spans[number].tolist()
    added: Tensor | float = 0.0
    for page in range(first, first + count):
        v = own.a[page, expert].double() @ x * own.scale[page, expert].double()
        added = added + own.b[page, expert].double() @ v
    return added


@dataclass
class Mixture:
    """A layer and a step; ids from `held` on are those of other ranks."""

    x: Tensor
    ids: Tensor
    weights: Tensor
    gate_up: ExpertMatrix
    down: ExpertMatrix
    numbers: Tensor
    up: ExpertFactors | None
    second: ExpertFactors | None
    activation: str

    @classmethod
    def of(
        cls,
        numbers: Sequence[int],
        dtype: torch.dtype,
        hidden: int = 40,
        inner: int = 24,
        activation: str = "silu",
        biased: bool = False,
        held: int = 5,
        only: str = "",
    ) -> "Mixture":
        """Of 5 experts, of which this rank has the first `held`, and tokens with these adapters. `only`: the one matrix
        that they change.
        """
        torch.manual_seed(0)
        tokens, first = len(numbers), inner if activation.endswith("alone") else 2 * inner
        ids = torch.rand(tokens, 5).argsort(dim=1)[:, :2].int()
        gate_up, down = torch.randn(held, first, hidden), torch.randn(held, hidden, inner)
        biases = [torch.randn(held, first).to(dtype), torch.randn(held, hidden).to(dtype)] if biased else [None, None]
        matrices = [
            ExpertMatrix((each / each.shape[-1] ** 0.5).to(dtype), bias)
            for each, bias in zip((gate_up, down), biases, strict=True)
        ]
        up = None if only == "down" else factors(held, first, hidden, dtype)
        second = None if only == "up" else factors(held, hidden, inner, dtype)
        x, used = torch.randn(tokens, hidden).to(dtype), torch.tensor(numbers, dtype=torch.int32)
        return cls(x, ids, torch.rand(tokens, 2), *matrices, used, up, second, activation)

    def run(self, operator: Any, deterministic: bool = False, **options: Any) -> Tensor:
        """Runs an operator with the arguments of `adapted_experts`."""
        out = torch.full_like(self.x, float("nan"))
        own = self.numbers, self.up, self.second
        matrices = self.gate_up, self.down, self.activation
        operator(self.x, self.ids, self.weights, *matrices, deterministic, out, *own, **options)
        return out

    def expected(self) -> Tensor:
        """What the layer must give."""
        out = torch.zeros(self.x.shape, dtype=torch.float64)
        gated, held = not self.activation.endswith("alone"), self.down.experts
        for token, experts in enumerate(self.ids.tolist()):
            number, x = int(self.numbers[token]), self.x[token].double()
            for slot, expert in enumerate(experts):
                if expert >= held:
                    continue
                first = self._matmul(self.gate_up, expert, x) + delta(self.up, number, expert, x)
                name = self.activation.removesuffix("_alone")
                active = reference.act_and_mul(first[None], name)[0] if gated else reference.activate(first, name)
                # What the next GEMM reads is rounded.
                active = active.to(self.x.dtype).double()
                last = self._matmul(self.down, expert, active) + delta(self.second, number, expert, active)
                out[token] += last * self.weights[token, slot].double()
        return out

    @staticmethod
    def _matmul(matrix: ExpertMatrix, expert: int, x: Tensor) -> Tensor:
        product = matrix.of(expert, len(x)).double() @ x
        return product if matrix.bias is None else product + matrix.bias[expert].double()
