"""Whole layers of W8A8 GEMMs, with norms and quantisation between them and without attention.

Layers of Llama 3.1 8B and 70B on one GPU. Each has matrices of its own, in a graph of all, so none is in the cache and
kernels start as in a model. `fraction_of_copy` counts the bytes of matrices alone.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

import text_generation_kernels as kernels

from .bar import Bar
from .timing import Plan, Row, seconds_per_call

# Hidden size, inner size, rows of query, key and value, layers.
MODELS = {"8b": (4096, 14336, 6144, 16), "70b": (8192, 28672, 10240, 4)}
DRY_MODELS = {"dry": (256, 512, 384, 2)}
TOKENS = (2, 8, 16, 24, 32, 40, 64)
EPSILON = 1e-5


class Layers:
    """Weights of as many layers, and what they hand on."""

    def __init__(self, plan: Plan, hidden: int, inner: int, qkv: int, layers: int, tokens: int) -> None:
        self.shapes = ((qkv, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner))
        self.weights = [[self._codes(plan, *shape) for shape in self.shapes] for _ in range(layers)]
        self.weight_scales = [torch.full((rows,), inputs**-0.5, device=plan.device) for rows, inputs in self.shapes]
        self.norm = torch.ones(hidden, dtype=plan.dtype, device=plan.device)
        self.residual = torch.randn(tokens, hidden, device=plan.device).to(plan.dtype)
        self.x8, self.scale = self._codes(plan, tokens, hidden), torch.ones(tokens, device=plan.device)
        self.num_bytes = layers * sum(rows * inputs for rows, inputs in self.shapes)

    @staticmethod
    def _codes(plan: Plan, rows: int, inputs: int) -> Tensor:
        return torch.randn(rows, inputs, dtype=torch.float16, device=plan.device).to(torch.float8_e4m3fn)

    def run(self) -> None:
        """One step."""
        x8, scale = self.x8, self.scale
        for weights in self.weights:
            qkv, out, gate_up, down = zip(weights, self.weight_scales, strict=True)
            heads = self.residual.new_empty(len(x8), len(qkv[0]))
            kernels.w8a8_linear(x8, scale, *qkv, None, heads)
            attended, attended_scale = torch.empty_like(x8), torch.empty_like(scale)
            kernels.quantise_rows(heads[:, : x8.shape[1]], kernels.Quantised(attended, attended_scale))
            x8, scale = self._add(attended, attended_scale, *out)
            inner = self.residual.new_empty(len(x8), len(gate_up[0]) // 2)
            inner8, inner_scale = torch.empty_like(inner, dtype=x8.dtype), torch.empty_like(scale)
            kernels.w8a8_gated(x8, scale, *gate_up, None, "silu", inner, kernels.Quantised(inner8, inner_scale))
            x8, scale = self._add(inner8, inner_scale, *down)

    def _add(self, x8: Tensor, scale: Tensor, weight: Tensor, weight_scale: Tensor) -> tuple[Tensor, Tensor]:
        """A GEMM's result is added to the residual, and the sum normalised and quantised."""
        splits = kernels.w8a8_splits(x8, scale, weight, weight_scale)
        if splits > 1:
            projected = scale.new_empty(splits, *self.residual.shape)
            kernels.w8a8_split_k(x8, scale, weight, weight_scale, projected)
        else:
            projected = torch.empty_like(self.residual)
            kernels.w8a8_linear(x8, scale, weight, weight_scale, None, projected)
        normed, codes = torch.empty_like(self.residual), torch.empty_like(self.residual, dtype=x8.dtype)
        scale = torch.empty_like(scale)
        kernels.add_rms_norm(
            projected, self.residual, self.norm, EPSILON, normed, quantised=kernels.Quantised(codes, scale)
        )
        return codes, scale


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each model and number of tokens."""
    for name, (hidden, inner, qkv, layers) in (DRY_MODELS if plan.dry_run else MODELS).items():
        for tokens in (3,) if plan.dry_run else TOKENS:
            model = Layers(plan, hidden, inner, qkv, layers, tokens)
            steps = Plan(plan.device, plan.dtype, plan.rotation_bytes, plan.ceiling_bytes, 1, plan.replays)
            seconds = seconds_per_call(steps, lambda _, model=model: model.run(), 1)
            yield {
                "model": name,
                "tokens": tokens,
                "microseconds_a_layer": seconds / layers * 1e6,
                "fraction_of_copy": model.num_bytes / seconds / ceiling,
            }


BARS = {"w8a8_layers": Bar("layers of W8A8 GEMMs without attention", rows)}
