"""Log-probabilities of prompt tokens, from the raw logits of the previous tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels.sampling.logprobs import log_normalizer

from ..distributed import TensorParallelGroup
from ..layers.weights import VocabularyShard
from .requests import TopTokens

_AT_ONCE = 512
"""Prompt tokens that are scored at a time, which bounds the memory of their logits."""


@dataclass(frozen=True)
class ScoredTokens:
    """The results for P tokens in one matrix, so that one copy brings them to the host.

    The properties are views of `record` int32 [P, 1 + 2 * N]; N is the largest number of alternatives.
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
        """Returns the `count` likeliest tokens at each place from `start` to `end`; places count from `start`."""
        if count == 0:
            return []
        n = self._num_top
        count = min(count, n)
        ids = self.record[start:end, 1 : 1 + count].tolist()
        logprobs = self.record[start:end, 1 + n : 1 + n + count].view(torch.float32).tolist()
        return [TopTokens(index, *each) for index, each in enumerate(zip(ids, logprobs, strict=True))]


@dataclass(frozen=True)
class Scorer:
    """Scores prompts. `logits_of` turns hidden states [N, hidden_size] of places, and the number of the first, into a
    rank's `shard` of the logits, of any type. Where results must not depend on the number of places, `block` places are
    reduced at a time, the last ones padded.

    Where ranks share the vocabulary, each reduces its shard to the sum of exponentials, the likeliest tokens, and the
    token's own logit where it has it; the ranks all-gather these alone.
    """

    logits_of: Callable[[Tensor, int], Tensor]
    shard: VocabularyShard
    group: TensorParallelGroup
    block: int | None = None

    def __call__(self, hidden: Tensor, targets: Tensor, num_top: int) -> ScoredTokens:
        """Scores `targets` int64 [P], the token after each of `hidden` [P, hidden_size]. `num_top` is the number of
        alternatives at each place, at most the vocabulary; the order of ties among them is undefined.
        """
        parts: list[Tensor] = []
        for first, h, t in zip(
            range(0, len(hidden), _AT_ONCE), hidden.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True
        ):
            found, ids = self._everywhere(*self._here(self.logits_of(h, first), t, num_top))
            record = torch.empty(len(t), 1 + 2 * num_top, dtype=torch.int32, device=t.device)
            values = record.view(torch.float32)
            normalizer = found[:, :, 0].logsumexp(dim=1, keepdim=True)
            values[:, :1] = found[:, :, 1].amax(dim=1, keepdim=True) - normalizer
            if num_top:
                top, index = found[:, :, 2:].flatten(1).topk(num_top, dim=1)
                record[:, 1 : 1 + num_top] = ids.flatten(1).gather(1, index)
                values[:, 1 + num_top :] = top - normalizer
            parts.append(record)
        return ScoredTokens(torch.cat(parts))

    def _here(self, logits: Tensor, targets: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
        """Returns float32 [P, 2 + n], the logarithm of the shard's sum of exponentials, the target's logit or -inf, and
        the n best logits; and int32 [P, n], the ids of these.
        """
        logits = logits.float()
        logits[:, self.shard.number :] = -torch.inf
        place = targets.unsqueeze(1) - self.shard.start
        inside = (place >= 0) & (place < self.shard.number)
        target = logits.gather(1, place.clamp(0, self.shard.width - 1)).masked_fill(~inside, -torch.inf)
        top, ids = logits.topk(min(num_top, self.shard.width), dim=1)
        found = torch.cat((_normalizer(logits, self.block).unsqueeze(1), target, top), dim=1)
        return found, (ids + self.shard.start).to(torch.int32)

    def _everywhere(self, found: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """All-gathers the results of `_here`: [P, R, 2 + n] and [P, R, n]."""
        if self.shard.is_whole:
            return found.unsqueeze(1), ids.unsqueeze(1)
        both = torch.cat((found.view(torch.int32), ids), dim=1)
        gathered = self.group.all_gather(both).transpose(0, 1).contiguous()
        return gathered[:, :, : found.shape[1]].view(torch.float32), gathered[:, :, found.shape[1] :]


def _normalizer(logits: Tensor, block: int | None) -> Tensor:
    if block is None:
        return log_normalizer(logits)
    padded = functional.pad(logits, (0, 0, 0, -len(logits) % block))
    return torch.cat([log_normalizer(part) for part in padded.split(block)])[: len(logits)]
