"""Whole layers of products of few tokens in 16 bits, with what is between them and without attention.

    python benchmark/kernels/linear_layers.py [--dry-run] > layers.json

Layers of Llama 3.1 8B on one GPU, and of 70B on one of two, whose sums over the ranks are replaced by a plain addition
and norm. Each has matrices of its own, in a graph of all, so none is in the cache and kernels start as in a model.
Whole products and products in parts take turns; `fraction_of_copy` counts the bytes of matrices alone.
"""

from collections.abc import Callable, Iterator

import torch
from _timing import Plan, Row, report, seconds_per_call
from torch import Tensor

from text_generation_server import kernels

# Hidden size, inner size, heads and heads of keys of a rank, layers, ranks.
MODELS = {"8b": (4096, 14336, 32, 8, 16, 1), "70b": (8192, 14336, 32, 4, 8, 2)}
DRY_MODELS = {"dry": (256, 512, 2, 1, 2, 1)}
TOKENS = (2, 16, 32, 64)
HEAD_DIM = 128
EPSILON = 1e-5
ROUNDS = 5


class Layers:
    """Matrices of as many layers, and what they hand on."""

    def __init__(self, plan: Plan, hidden: int, inner: int, heads: int, kv_heads: int, layers: int, ranks: int) -> None:
        self.plan, self.hidden, self.query, self.ranks = plan, hidden, heads * HEAD_DIM, ranks
        shapes = ((self.query + 2 * kv_heads * HEAD_DIM, hidden), (hidden, self.query), (2 * inner, hidden))
        self.weights = [[self._random(*shape, std=shape[1] ** -0.5) for shape in (*shapes, (hidden, inner))]]
        self.weights += [[torch.randn_like(each) * 0.01 for each in self.weights[0]] for _ in range(layers - 1)]
        self.norm = torch.ones(hidden, dtype=plan.dtype, device=plan.device)
        self.cos_sin = torch.randn(max(TOKENS), HEAD_DIM, device=plan.device)
        self.cache = torch.zeros(2, max(TOKENS), kv_heads, HEAD_DIM, dtype=plan.dtype, device=plan.device)
        self.num_bytes = layers * sum(each.nbytes for each in self.weights[0])

    def _random(self, *shape: int, std: float = 1.0) -> Tensor:
        return torch.empty(shape, dtype=self.plan.dtype, device=self.plan.device).normal_(std=std)

    def step(self, tokens: int, in_parts: bool) -> Callable[[], None]:
        """One step, to be called any number of times."""
        x, residual = self._random(tokens, self.hidden), self._random(tokens, self.hidden)
        positions = torch.arange(tokens, device=self.plan.device)
        before = (None, None, None, 0.0, self.cos_sin, positions, positions, *self.cache, False, None, False)

        def run() -> None:
            read = x
            for qkv, out, gate_up, down in self.weights:
                heads = product(read, qkv, in_parts)
                turned = residual.new_empty(tokens, self.query) if heads.dim() == 3 else None
                kernels.qkv_postprocess(heads, *before, turned)
                read = heads[:, : self.query] if turned is None else turned
                read = self._add(product(read, out, in_parts and self.ranks == 1), residual)
                inner = residual.new_empty(tokens, len(gate_up) // 2)
                kernels.skinny_linear(read, gate_up, None, inner, "silu")
                read = self._add(product(inner, down, in_parts and self.ranks == 1), residual)

        return run

    def _add(self, x: Tensor, residual: Tensor) -> Tensor:
        normed = torch.empty_like(residual)
        kernels.add_rms_norm(x, residual, self.norm, EPSILON, normed)
        return normed


def product(x: Tensor, weight: Tensor, in_parts: bool) -> Tensor:
    """[T, outputs], or [parts, T, outputs]."""
    parts = kernels.linear_parts(x, weight) if in_parts else 1
    if parts == 1:
        out = x.new_empty(len(x), len(weight))
        kernels.skinny_linear(x, weight, None, out)
    else:
        out = x.new_empty(parts, len(x), len(weight), dtype=torch.float32)
        kernels.linear_in_parts(x, weight, out)
    return out


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each model and number of tokens."""
    for name, (*sizes, layers, ranks) in (DRY_MODELS if plan.dry_run else MODELS).items():
        model = Layers(plan, *sizes, layers, ranks)
        for tokens in (3,) if plan.dry_run else TOKENS:
            once = Plan(plan.device, plan.dtype, plan.rotation_bytes, plan.ceiling_bytes, 1, plan.replays)
            found: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(ROUNDS):
                for in_parts, times in found.items():
                    step = model.step(tokens, in_parts)
                    times.append(seconds_per_call(once, lambda _, step=step: step(), 1))
            whole, parts = (min(found[in_parts]) for in_parts in (False, True))
            yield {
                "model": name,
                "ranks": ranks,
                "tokens": tokens,
                "whole_microseconds_a_layer": whole / layers * 1e6,
                "microseconds_a_layer": parts / layers * 1e6,
                "fraction_of_copy": model.num_bytes / parts / ceiling,
            }


if __name__ == "__main__":
    report("linear_layers", __doc__.splitlines()[0], rows)
