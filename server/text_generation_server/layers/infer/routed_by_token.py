"""Routing by token id (hash layers, Roller et al., 2021; DeepSeek V4): a table has the experts of each token.

    ids = table[token],  weights = score[ids] / sum(score[ids]) * scale

Scores are those of `moe_route` of the kernels, of the same logits. Experts that every token uses follow, as there.
"""

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.moe.moe_route import TINY


def route_by_token(
    logits: Tensor, table: Tensor, token_ids: Tensor, options: kernels.RouteOptions, routing: kernels.Routing
) -> None:
    """Writes `routing` from `logits` [N, experts], the experts of all ids, `table` [ids, top_k] int32, and the token
    ids [N] int64. Raises ValueError for scores or norms that are not there.
    """
    if options.score == "sparsemixer" or options.norm != 1 or options.shared_gate:
        raise ValueError(f"experts by token id are not weighted by {options.score!r} and norm {options.norm}")
    top_k, chosen = options.top_k, table.index_select(0, token_ids)
    scores = kernels.router_scores(logits.float(), options.score).gather(1, chosen.to(torch.int64))
    shares = scores / (scores.sum(dim=1, keepdim=True) + TINY)
    routing.ids[:, :top_k] = chosen - options.first
    routing.weights[:, :top_k] = shares * options.scale
    if options.shared:
        routing.ids[:, top_k:] = torch.arange(options.shared, device=logits.device) + logits.shape[1]
        routing.weights[:, top_k:] = 1.0
