"""Keys and values as the engine lays them out (`KvCache`), and requests over them, for the bars of attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels import Chunks, Decodes, KvCache
from text_generation_kernels.attention.kv_quantisation import quantise, split_scales
from text_generation_server.layers.infer.state import CacheShape

from .timing import Plan

Batches = dict[str, tuple[list[int], int]]
"""By name: new tokens of each request, and tokens before them."""


def filled(plan: Plan, slots: int, kv_heads: int, head_dim: int, codes: torch.dtype | None = None) -> KvCache:
    """One layer full of random numbers, or of `codes` that stand for some."""
    cache = CacheShape(kv_heads, head_dim, head_dim, codes).allocate(slots, plan.dtype, plan.device)
    for place, each in enumerate((cache.k, cache.v)):
        numbers = torch.randn(slots, kv_heads, head_dim, dtype=plan.dtype, device=plan.device)
        if codes is None or cache.scales is None:
            each.copy_(numbers)
            continue
        coded, scales = quantise(numbers, codes)
        each.view(torch.uint8).copy_(coded.view(torch.uint8))
        split_scales(cache, cache.scales)[place].copy_(scales)
    return cache


@dataclass(frozen=True)
class Context:
    """Requests with new tokens, and the slots of all their tokens, as operators take them.

    All of it stands there before a call: kernels may read lengths while the previous kernel still runs.
    """

    table: Tensor
    rows: Tensor
    starts: Tensor
    kv_lens: Tensor
    q_len: int
    """The most new tokens of a request."""
    kv_len: int
    """The longest context."""
    slots: int
    """In all."""
    pairs: int
    """Of a query and a key that it sees."""

    @classmethod
    def of(cls, plan: Plan, q_lens: Sequence[int], prefix: int | Sequence[int], scattered: bool = True) -> "Context":
        """Tokens before the new ones are as many for all, or given for each. Slots are scattered or in order."""
        before = [prefix] * len(q_lens) if isinstance(prefix, int) else prefix
        kv_lens = [new + old for new, old in zip(q_lens, before, strict=True)]
        slots = sum(kv_lens)
        order = torch.randperm(slots, device=plan.device) if scattered else torch.arange(slots, device=plan.device)
        return cls(
            table=torch.nn.utils.rnn.pad_sequence(list(order.int().split(kv_lens)), batch_first=True),
            rows=torch.arange(len(q_lens), device=plan.device),
            starts=torch.tensor([0, *q_lens], device=plan.device).cumsum(0).int(),
            kv_lens=torch.tensor(kv_lens, dtype=torch.int32, device=plan.device),
            q_len=max(q_lens),
            kv_len=max(kv_lens),
            slots=slots,
            pairs=sum(new * old + new * (new + 1) // 2 for new, old in zip(q_lens, before, strict=True)),
        )

    @classmethod
    def of_decodes(cls, plan: Plan, lengths: Sequence[int], scattered: bool = True) -> "Context":
        """One new token of each request, the last of its context."""
        return cls.of(plan, [1] * len(lengths), [length - 1 for length in lengths], scattered)

    @property
    def decode(self) -> Decodes:
        """As decode operators take it."""
        return Decodes(self.table, self.rows, self.kv_lens, self.kv_len)

    def windows(self, width: int) -> Decodes:
        """The last `width` tokens of each request, as decode operators take them."""
        ages = torch.arange(width - 1, -1, -1, dtype=torch.int32, device=self.rows.device)
        kv_lens = (self.kv_lens[:, None] - ages).flatten()
        return Decodes(self.table, self.rows.repeat_interleave(width), kv_lens, self.kv_len, width)

    @property
    def prefill(self) -> Chunks:
        """As prefill operators take it."""
        return Chunks(self.table, self.rows, self.starts, self.kv_lens, self.q_len)
