"""Adapters of embedding and head: what the operators make of them, and what they must, row by row."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels import RANK_UNITS, ReplacedRows, lora_expand

from .adapters import Site

ADAPTERS = [2, -1, 0, 3, -1, 2, 1, 2, *[0] * 17]
RANKS = (16, 8, 40, 1)


def looked_up(
    lookup: Callable[..., Any], expand: Callable[..., Any] = lora_expand, tile_tokens: int = 16
) -> tuple[Tensor, Tensor]:
    """What adapters add to the rows of ids, and what they must."""
    torch.manual_seed(0)
    vocabulary, hidden = 70, 50
    site = Site.of(RANKS, [(0, hidden, 0)], vocabulary, torch.float32, "cpu")
    step, ids = site.step(ADAPTERS, tile_tokens, room=3), torch.randint(0, vocabulary, (len(ADAPTERS),))
    a = site.pool_a[:, 0].transpose(1, 2).contiguous()
    v = torch.full((1, len(step.work), 1, tile_tokens, RANK_UNITS), float("nan"))
    lookup(ids, a, site.pool_scale[:, 0].contiguous(), step.order, step.tiles, step.work, v)
    out = torch.ones(len(ADAPTERS), hidden)
    expand(v, site.pool_b, None, step.order, step.tiles, step.work, out, True)
    return out.double() - 1, site.delta(functional.one_hot(ids, vocabulary).float(), ADAPTERS)


def replaced(replace: Callable[..., Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows with those of adapters in their place, and what they must be."""
    torch.manual_seed(0)
    ids, numbers = torch.randint(0, 9, (40,)), torch.randint(0, 4, (40,), dtype=torch.int32)
    places = torch.full((4, 9), -1, dtype=torch.int32)
    places[1, 3], places[1, 5], places[3] = 0, 2, torch.arange(3, 12, dtype=torch.int32)
    rows, out = torch.randn(12, 1030).to(dtype), torch.randn(40, 1030).to(dtype)
    expected = out.clone()
    for token, (number, id_) in enumerate(zip(numbers.tolist(), ids.tolist(), strict=True)):
        if (place := int(places[number, id_])) >= 0:
            expected[token] = rows[place]
    replace(ids, numbers, places, rows, out)
    return out, expected


def logits(
    operator: Callable[..., Any],
    dtype: torch.dtype,
    adapters: Sequence[int] = ADAPTERS,
    tile_tokens: int = 16,
    hidden: int = 200,
    has_bias: bool = True,
) -> tuple[Tensor, Tensor]:
    """Logits with those of adapters in their place, and what they must be: adapter 0 replaces all, 2 some, 3 one."""
    torch.manual_seed(0)
    site = Site.of(RANKS, [(0, 16, 0)], 16, torch.float32, "cpu")
    step, columns = site.step(adapters, tile_tokens, room=2), 90
    spans = torch.tensor([[0, 0], [20, 90], [0, 0], [3, 17], [0, 1]], dtype=torch.int32)
    ids = torch.cat((torch.tensor([7]), torch.zeros(2), torch.randperm(90)[:17], torch.randperm(90))).to(torch.int32)
    rows = (torch.randn(110, hidden) / hidden**0.5).to(dtype)
    x, out = (
        torch.randn(len(ADAPTERS), hidden).to(dtype)[: len(adapters)],
        torch.randn(len(ADAPTERS), columns).to(dtype)[: len(adapters)],
    )
    bias, expected = torch.randn(columns).to(dtype) if has_bias else None, out.double()
    for token, adapter in enumerate(adapters):
        first, count = spans[adapter + 1].tolist()
        own = ids[first : first + count].long()
        made = rows[first : first + count].double() @ x[token].double()
        expected[token, own] = made if bias is None else made + bias[own].double()
    numbers = torch.tensor(adapters, dtype=torch.int32) + 1
    operator(x, ReplacedRows(rows, ids, spans, 90), bias, step.order, step.tiles, numbers, tile_tokens, out)
    return out, expected
