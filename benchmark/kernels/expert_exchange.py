"""Whole experts on several ranks: tokens sent to the experts' ranks, beside the all-reduces that are in use.

    python -m benchmark.kernels.expert_exchange [--ranks 2] > benchmark/results/expert_exchange.json

Both begin with partial sums of attention and end where the next attention has all tokens. In use are two all-reduces of
all tokens, with residual add and norm. An exchange scatters the sums (each rank keeps some tokens), sends each token to
the ranks that have an expert of it (all-to-all), sends the results back (all-to-all) and gathers all tokens. The router
is taken as even, and sorting rows, the norm and what ranks must tell each other about counts take no time: less than an
exchange can reach. Microseconds in a CUDA graph; the slowest rank counts.
"""

import math
from typing import Any

import torch
import torch.distributed as dist

from text_generation_server.distributed.algorithms import Algorithm, AlgorithmTable
from text_generation_server.distributed.group import TensorParallelGroup

from .allreduce_add_norm import EPS
from .ranks import microseconds, run

MODELS = {
    "Llama-4-Scout": (5120, 16, 1),
    "Mixtral-8x7B": (4096, 8, 2),
    "Qwen3-30B-A3B": (2048, 128, 8),
    "DeepSeek-V3": (7168, 256, 8),
}
"""Hidden size, experts, and experts of a token."""
TOKENS = (64, 512, 2048, 4096)


def share(ranks: int, experts: int, top_k: int) -> float:
    """Of the tokens, how many have an expert on a given rank, by a router that chooses each set as often."""
    return 1 - math.comb(experts - experts // ranks, top_k) / math.comb(experts, top_k)


def exchanged(x: torch.Tensor, rank: int, ranks: int, part: float) -> None:
    """One exchange of `x` [N, hidden], in place; `part` of a rank's tokens go to each other rank."""
    own = x.new_empty(len(x) // ranks, x.shape[1])
    dist.reduce_scatter_tensor(own, x)
    rows = max(1, round(len(own) * part))
    counts = [0 if other == rank else rows for other in range(ranks)]
    sent = x[: sum(counts)]
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, counts, counts)
    dist.all_to_all_single(sent, received, counts, counts)
    dist.all_gather_into_tensor(x, own)


def row(group: TensorParallelGroup, name: str, tokens: int) -> dict[str, Any]:
    """Both ways for one model and number of tokens."""
    hidden, experts, top_k = MODELS[name]
    x = torch.zeros(tokens, hidden, dtype=torch.bfloat16, device="cuda")
    residual, weight = torch.zeros_like(x), torch.ones(hidden, dtype=torch.bfloat16, device="cuda")
    part = share(group.world_size, experts, top_k)
    found: dict[str, Any] = {"model": name, "tokens": tokens, "share": round(part, 3)}
    chosen = group._algorithms

    def reduced() -> None:
        for _ in range(2):
            group.allreduce_add_norm(x, residual, weight, EPS)

    found["all-reduces"] = microseconds(group, reduced)
    group._algorithms = AlgorithmTable((1 << 62,), (Algorithm.NCCL,))
    found["all-reduces, NCCL"] = microseconds(group, reduced)
    group._algorithms = chosen
    found["exchange, NCCL"] = microseconds(group, lambda: exchanged(x, group.rank, group.world_size, part))
    return found


def measured(group: TensorParallelGroup) -> dict[str, Any]:
    """What one rank measures."""
    return {"ranks": group.world_size, "rows": [row(group, name, tokens) for name in MODELS for tokens in TOKENS]}


if __name__ == "__main__":
    run("expert_exchange", __doc__.splitlines()[0], measured)
