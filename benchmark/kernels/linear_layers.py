"""Whole layers of few tokens in 16 bits, with attention over 2,048 positions.

Layers of Llama 3.1 8B on one GPU, and of 70B on one of two, whose all-reduces are replaced by a plain addition and
norm. Each has matrices of its own, in a graph of all, so none is in the cache and kernels start as in a model.
GEMMs that reduce their splits and GEMMs that leave split-K partials take turns of half a second, in which the card's
clock follows the power that it draws. `fraction_of_copy` counts the bytes of matrices alone.
"""

import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_server.layers.weights import Activations, Dense

from .bar import Bar
from .pool import Context, filled
from .timing import Plan, Row, seconds_per_call

# Hidden size, inner size, heads and heads of keys of a rank, layers, ranks.
MODELS = {"8b": (4096, 14336, 32, 8, 8, 1), "70b": (8192, 14336, 32, 4, 8, 2)}
DRY_MODELS = {"dry": (256, 512, 2, 1, 2, 1)}
TOKENS = (2, 16, 32, 64)
HEAD_DIM = 128
CONTEXT, DRY_CONTEXT = 2048, 8
EPSILON = 1e-5
ROUNDS, REPLAYS = 3, 200


class Layers:
    """Weights of as many layers, and what they hand on."""

    def __init__(self, plan: Plan, hidden: int, inner: int, heads: int, kv_heads: int, layers: int, ranks: int) -> None:
        self.plan, self.hidden, self.query, self.ranks = plan, hidden, heads * HEAD_DIM, ranks
        shapes = ((self.query + 2 * kv_heads * HEAD_DIM, hidden), (hidden, self.query), (2 * inner, hidden))
        self.weights = [[plan.normal(*shape, std=shape[1] ** -0.5) for shape in (*shapes, (hidden, inner))]]
        self.weights += [[torch.randn_like(each) * 0.01 for each in self.weights[0]] for _ in range(layers - 1)]
        self.norm = torch.ones(hidden, dtype=plan.dtype, device=plan.device)
        self.context = DRY_CONTEXT if plan.dry_run else CONTEXT
        self.cos_sin = torch.randn(self.context, HEAD_DIM, device=plan.device)
        self.caches = [filled(plan, max(TOKENS) * self.context, kv_heads, HEAD_DIM) for _ in range(layers)]
        self.num_bytes = layers * sum(each.nbytes for each in self.weights[0])

    def step(self, tokens: int, split_k: bool) -> Callable[[], None]:
        """One step, to be called any number of times."""
        x, residual = self.plan.normal(2, tokens, self.hidden)
        context = Context.of_decodes(self.plan, [self.context] * tokens, scattered=False)
        new = kernels.NewTokens(self.cos_sin, context.kv_lens.long() - 1, context.table[:, -1].long())
        decodes = context.decode

        def run() -> None:
            read = x
            for (qkv, out, gate_up, down), cache in zip(self.weights, self.caches, strict=True):
                made = linear(read, qkv, split_k)
                turned = residual.new_empty(tokens, self.query) if made.dim() == 3 else None
                kernels.qkv_postprocess(made, kernels.NO_PROLOGUE, new, cache, turned)
                heads = (made[:, : self.query] if turned is None else turned).view(tokens, -1, HEAD_DIM)
                read = torch.empty_like(heads, memory_format=torch.contiguous_format)
                kernels.decode_attention(heads, cache, decodes, HEAD_DIM**-0.5, read)
                read = self._add(linear(read.view(tokens, -1), out, split_k and self.ranks == 1), residual)
                inner = residual.new_empty(tokens, len(gate_up) // 2)
                kernels.linear(read, gate_up, None, inner, "silu")
                read = self._add(linear(inner, down, split_k and self.ranks == 1), residual)

        return run

    def _add(self, x: Tensor, residual: Tensor) -> Tensor:
        normed = torch.empty_like(residual)
        kernels.add_rms_norm(x, residual, self.norm, EPSILON, normed)
        return normed


def linear(x: Tensor, weight: Tensor, split_k: bool) -> Tensor:
    """[T, outputs], or split-K partials [splits, T, outputs]."""
    matrix = Dense(weight)
    return matrix.split_k(Activations(x)) if split_k else matrix.matmul(Activations(x))


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each model and number of tokens."""
    for name, (*sizes, layers, ranks) in (DRY_MODELS if plan.dry_run else MODELS).items():
        model = Layers(plan, *sizes, layers, ranks)
        for tokens in (3,) if plan.dry_run else TOKENS:
            once = dataclasses.replace(plan, calls=1, replays=plan.replays if plan.dry_run else REPLAYS)
            found: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(ROUNDS):
                for split_k, times in found.items():
                    step = model.step(tokens, split_k)
                    times.append(seconds_per_call(once, lambda _, step=step: step(), 1))
            whole, partial = (min(found[split_k]) for split_k in (False, True))
            yield {
                "model": name,
                "ranks": ranks,
                "tokens": tokens,
                "whole_microseconds_a_layer": whole / layers * 1e6,
                "microseconds_a_layer": partial / layers * 1e6,
                "fraction_of_copy": model.num_bytes / partial / ceiling,
            }


BARS = {"linear_layers": Bar("layers of few tokens in 16 bits, with attention", rows)}
