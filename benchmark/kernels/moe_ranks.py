"""The experts of a mixture as ranks share them: a part of every expert for each rank, or whole experts.

    python benchmark/kernels/moe_ranks.py [--dry-run] [--models NAME ...] [--kinds KIND ...] [--ranks N ...]

One device plays each rank in turn. Of whole experts the slowest rank counts: the one whose experts have the most tokens
of a step, and so a time of its own for each choice of experts. Times are means over several choices, which are random
and independent of each other. Sums over the ranks are not in them: both ways have the same.
"""

import argparse
import dataclasses
import json
import math
import sys

import torch
from _timing import DRY_PLAN, GPU_PLAN, Plan, Row, seconds_per_call
from moe import DRY_MODELS, KINDS, MODELS, Shape, Weights
from torch import Tensor

from text_generation_server import kernels
from text_generation_server.kernels.moe_experts import moe_experts_torch
from text_generation_server.layers.weights import even_span

TOKENS = (1, 4, 16, 64, 512)
RANKS = (2, 4, 8)
CHOICES = 6
"""Steps of each number of tokens."""
ROTATION_BYTES = 150e6
"""Of experts that a rank reads before it reads the same ones again: more than the cache holds."""
TOLERANCE = 2e-2
"""Of the norm of the difference from torch, relative to the norm."""


class Rank:
    """What one rank holds of `layers` layers, which take turns."""

    def __init__(self, plan: Plan, shape: Shape, kind: str, layers: int, experts: range, inner: int) -> None:
        own = dataclasses.replace(shape, experts=len(experts), inner=inner)
        self.plan, self.shape, self.experts = plan, shape, experts
        self.layers = [Weights(plan, own, kind) for _ in range(layers)]

    def microseconds(self, x: Tensor, logits: Tensor, check: bool) -> float:
        """Of the experts, for one choice. Raises RuntimeError where they do not compute what torch does."""
        shape, options = self.shape, kernels.RouteOptions(self.shape.top_k, first=self.experts.start)
        ids = torch.empty(len(x), shape.top_k, dtype=torch.int32, device=x.device)
        shares, out, expected = torch.empty(ids.shape, device=x.device), torch.empty_like(x), torch.empty_like(x)
        kernels.moe_route(logits, None, options, ids, shares)

        def run(draw: int) -> None:
            layer = self.layers[draw]
            both = layer.gate_up, layer.down
            kernels.moe_experts(x, ids, shares, *both, shape.activation, False, out, shape.experts)

        if check:
            run(0)
            first = self.layers[0]
            inputs = x, ids, shares, *first.gate_up, *first.down, shape.activation, False, shape.experts
            moe_experts_torch(*inputs, expected)
            if not (out.float() - expected.float()).norm() <= TOLERANCE * expected.float().norm():
                raise RuntimeError(f"{len(x)} tokens, experts {self.experts}: the result is not that of torch")
        return seconds_per_call(self.plan, run, len(self.layers)) * 1e6


def measure(plan: Plan, shape: Shape, kind: str, ranks: int) -> list[Row]:
    """A line for each number of tokens."""
    group = KINDS[kind] or 1
    start, stop = even_span(shape.inner, ranks - 1, ranks, group)
    # As experts are loaded: parts that begin within a group have 16 bits.
    kind_of_parts = "dense" if start % group else kind
    expert_bytes = 6 * shape.hidden * shape.inner * {"dense": 16, "fp8": 8}.get(kind, 4) / 16
    layers = max(2, math.ceil(ROTATION_BYTES / (shape.top_k * expert_bytes / ranks))) if not plan.dry_run else 2
    cut = Rank(plan, shape, kind_of_parts, layers, range(shape.experts), stop - start)
    spans = (even_span(shape.experts, rank, ranks) for rank in range(ranks))
    whole = [Rank(plan, shape, kind, layers, range(*span), shape.inner) for span in spans]
    rows: list[Row] = []
    for tokens in TOKENS if not plan.dry_run else (1, 3):
        parts, slowest = [], []
        for choice in range(CHOICES):
            torch.manual_seed(choice)
            x = torch.empty(tokens, shape.hidden, dtype=plan.dtype, device=plan.device).normal_()
            logits = torch.empty(tokens, shape.experts, device=plan.device).normal_()
            parts.append(cut.microseconds(x, logits, choice == 0))
            slowest.append(max(rank.microseconds(x, logits, choice == 0) for rank in whole))
        row: Row = {"ranks": ranks, "tokens": tokens, "inner_of_a_part": stop - start, "kind_of_parts": kind_of_parts}
        row["parts_microseconds"] = round(sum(parts) / CHOICES, 1)
        row["whole_microseconds"] = round(sum(slowest) / CHOICES, 1)
        rows.append(row)
    return rows


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["dense"])
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    arguments = parser.parse_args()
    plan = DRY_PLAN if arguments.dry_run else GPU_PLAN
    plan = dataclasses.replace(plan, calls=12, replays=5)
    models = DRY_MODELS if arguments.dry_run else {name: MODELS[name] for name in arguments.models}
    results = [
        {"model": name, "kind": kind, **row}
        for name, shape in models.items()
        for kind in arguments.kinds
        for ranks in arguments.ranks
        for row in measure(plan, shape, kind, ranks)
    ]
    command = "benchmark/kernels/moe_ranks.py " + " ".join(sys.argv[1:])
    print(json.dumps({"command": command.strip(), "rows": results}, indent=1))


if __name__ == "__main__":
    main()
