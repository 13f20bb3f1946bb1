"""Mixture of experts over ranks: a slice of every expert for each rank, or whole experts.

    python -m benchmark.kernels.moe_ranks [--dry-run] [--models NAME ...] [--kinds KIND ...] [--ranks N ...]

One device plays each rank in turn. Of whole experts the slowest rank counts: the one whose experts have the most tokens
of a step, and so a time of its own for each routing. Times are means over several routings, which are random and
independent of each other. All-reduces are not in them: both have the same.
"""

import argparse
import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.moe._experts_torch import moe_experts_torch
from text_generation_server.layers.weights import even_span

from .moe import DRY_MODELS, KINDS, MODELS, Shape, Weights
from .report import of_plan, print_rows
from .timing import DRY_PLAN, GPU_PLAN, Plan, Row, seconds_per_call

TOKENS = (1, 4, 16, 64, 512)
RANKS = (2, 8)
CHOICES = 4
"""Steps of each number of tokens."""
ROTATION_BYTES = 150e6
"""Of experts that a rank reads before it reads the same ones again: more than the cache holds."""
TOLERANCE = 2e-2
"""Of the norm of the difference from torch, relative to the norm."""


class Rank:
    """What one rank holds of `layers` layers, which alternate."""

    def __init__(self, plan: Plan, shape: Shape, kind: str, layers: int, experts: range, inner: int) -> None:
        own = dataclasses.replace(shape, experts=len(experts), inner=inner)
        self.plan, self.shape, self.experts = plan, shape, experts
        self.layers = [Weights(plan, own, kind, shape.experts).mlps for _ in range(layers)]

    def prepared(self, x: Tensor, logits: Tensor) -> tuple[Callable[[int], Tensor], Callable[[], Tensor]]:
        """The experts of one routing: of the given layer, and of the first one as torch computes them."""
        shape, options = self.shape, kernels.RouteOptions(self.shape.top_k, first=self.experts.start)
        routing, out = kernels.Routing.empty(len(x), shape.top_k, x.device), torch.empty_like(x)
        kernels.moe_route(logits, None, options, routing)

        def run(index: int) -> Tensor:
            kernels.moe_experts(x, routing, self.layers[index], False, out)
            return out

        def reference() -> Tensor:
            expected = torch.empty_like(x)
            moe_experts_torch(x, routing, self.layers[0], False, expected)
            return expected

        return run, reference

    def microseconds(self, x: Tensor, logits: Tensor, check: bool) -> float:
        """Time of one routing. Raises RuntimeError where the result is not that of torch."""
        run, reference = self.prepared(x, logits)
        if check and not is_close(run(0), reference()):
            raise RuntimeError(f"{len(x)} tokens, experts {self.experts}: the result is not that of torch")
        return seconds_per_call(self.plan, run, len(self.layers)) * 1e6


def is_close(out: Tensor, expected: Tensor) -> bool:
    """By the norm."""
    return bool((out.float() - expected.float()).norm() <= TOLERANCE * expected.float().norm())


def measure(plan: Plan, shape: Shape, kind: str, ranks: int) -> Iterator[Row]:
    """A line for each number of tokens."""
    group = KINDS[kind] or 1
    start, stop = even_span(shape.inner, ranks - 1, ranks, group)
    # As experts are loaded: shards that begin within a group have 16 bits.
    kind_of_parts = "dense" if start % group else kind
    expert_bytes = 6 * shape.hidden * shape.inner * {"dense": 16, "fp8": 8}.get(kind, 4) / 16
    layers = max(2, math.ceil(ROTATION_BYTES / (shape.top_k * expert_bytes / ranks))) if not plan.dry_run else 2
    cut = Rank(plan, shape, kind_of_parts, layers, range(shape.experts), stop - start)
    spans = (even_span(shape.experts, rank, ranks) for rank in range(ranks))
    whole = [Rank(plan, shape, kind, layers, range(*span), shape.inner) for span in spans]
    if not plan.dry_run:
        x = torch.zeros(1, shape.hidden, dtype=plan.dtype, device=plan.device)
        with kernels.compile_only(os.cpu_count() or 1):
            for rank in (cut, *whole):
                rank.prepared(x, torch.zeros(1, shape.experts, device=plan.device))[0](0)
    for tokens in TOKENS if not plan.dry_run else (1, 3):
        shards, slowest = [], []
        for choice in range(CHOICES):
            torch.manual_seed(choice)
            x = plan.normal(tokens, shape.hidden)
            logits = torch.empty(tokens, shape.experts, device=plan.device).normal_()
            shards.append(cut.microseconds(x, logits, choice == 0))
            slowest.append(max(rank.microseconds(x, logits, choice == 0) for rank in whole))
        row: Row = {"ranks": ranks, "tokens": tokens, "inner_of_a_part": stop - start, "kind_of_parts": kind_of_parts}
        row["parts_microseconds"] = round(sum(shards) / CHOICES, 1)
        row["whole_microseconds"] = round(sum(slowest) / CHOICES, 1)
        yield row


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on CPU, no Triton")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["dense"])
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS, help="at most as many as there are experts")
    arguments = parser.parse_args()
    plan = dataclasses.replace(DRY_PLAN if arguments.dry_run else GPU_PLAN, calls=12, replays=5)
    models = DRY_MODELS if plan.dry_run else {name: MODELS[name] for name in arguments.models}
    rows = [
        {"model": name, "kind": kind, **row}
        for (name, shape), kind, ranks in itertools.product(models.items(), arguments.kinds, arguments.ranks)
        if ranks <= shape.experts
        for row in measure(plan, shape, kind, ranks)
    ]
    print_rows(rows, benchmark="moe_ranks", **of_plan(plan))


if __name__ == "__main__":
    main()
