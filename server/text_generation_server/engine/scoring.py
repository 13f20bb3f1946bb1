"""Log-probabilities of the tokens of prompts, from the raw logits of the tokens before them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..kernels.logprobs import log_normalizer
from .requests import TopTokens

_AT_ONCE = 512
"""Prompt tokens whose logits over the whole vocabulary exist at the same time."""


@dataclass(frozen=True)
class ScoredTokens:
    """What was found for P tokens, in one matrix, so that one copy brings all of it to the host.

    `record` int32 [P, 1 + 2 * N], of which the properties are views; N: the most alternatives that were asked for.
    """

    record: Tensor

    @property
    def _num_top(self) -> int:
        return self.record.shape[1] // 2

    @property
    def logprobs(self) -> Tensor:
        """float32 [P]"""
        return self.record[:, 0].view(torch.float32)

    def tops(self, start: int, end: int, count: int) -> list[TopTokens]:
        """The `count` likeliest tokens at each place from `start` to `end`, counted from `start`."""
        if count == 0:
            return []
        n = self._num_top
        count = min(count, n)
        ids = self.record[start:end, 1 : 1 + count].tolist()
        logprobs = self.record[start:end, 1 + n : 1 + n + count].view(torch.float32).tolist()
        return [TopTokens(index, *each) for index, each in enumerate(zip(ids, logprobs, strict=True))]


def score(
    logits_of: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, num_top: int, block: int | None = None
) -> ScoredTokens:
    """`hidden` [P, hidden_size], `targets` int64 [P]: the token that follows each. `logits_of` may be in any type.

    `num_top`: the most alternatives that are wanted at each place; ties among them fall as they may. `block`: places
    whose sums are made at once, the last ones padded, where results must not depend on how many there are.
    """
    parts: list[Tensor] = []
    for h, t in zip(hidden.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True):
        logits = logits_of(h).float()
        record = torch.empty(len(t), 1 + 2 * num_top, dtype=torch.int32, device=t.device)
        normalizer = _normalizer(logits, block).unsqueeze(1)
        values = record.view(torch.float32)
        values[:, :1] = logits.gather(1, t.unsqueeze(1)) - normalizer
        if num_top:
            top, ids = logits.topk(num_top, dim=1)
            record[:, 1 : 1 + num_top] = ids
            values[:, 1 + num_top :] = top - normalizer
        parts.append(record)
    return ScoredTokens(torch.cat(parts))


def _normalizer(logits: Tensor, block: int | None) -> Tensor:
    if block is None:
        return log_normalizer(logits)
    padded = functional.pad(logits, (0, 0, 0, -len(logits) % block))
    return torch.cat([log_normalizer(part) for part in padded.split(block)])[: len(logits)]
