"""A KV pool with scattered contexts, for tests of the attention operators."""

import torch
from torch import Tensor

from text_generation_kernels import Chunks, Decodes, KvCache
from text_generation_kernels.attention.attention_options import NO_OPTIONS, AttentionOptions
from text_generation_kernels.attention.kv_quantisation import dequantise, quantise

from . import reference


class Pool:
    """Contexts of several requests, their slots in random order. Everything that belongs to nobody is NaN."""

    def __init__(
        self,
        kv_lens: list[int],
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str = "cpu",
        v_head_dim: int | None = None,
        codes: torch.dtype | None = None,
    ) -> None:
        """`codes`: type of a cache that is quantised; `k` and `v` are then what its codes stand for."""
        torch.manual_seed(0)
        num_slots, longest = sum(kv_lens) + 1, max(kv_lens, default=0) + 3
        order = torch.randperm(num_slots - 1)
        unused = num_slots - 1
        # Keys' and values' strides differ from each other, and from those of a tensor of their own.
        k = torch.randn(num_slots, kv_heads + 2, head_dim).to(device, dtype)
        v = torch.randn(num_slots, kv_heads + 1, v_head_dim or head_dim).to(device, dtype)
        self.k, self.v = k[:, 1 : kv_heads + 1], v[:, :kv_heads]
        k[unused] = v[unused] = float("nan")
        k[:, 0] = k[:, -1] = v[:, -1] = float("nan")
        self.cache = KvCache(self.k, self.v)
        """What operators read."""
        if codes is not None:
            self._quantise(k, v, codes)
        self.b_row = torch.randperm(len(kv_lens) + 2)[: len(kv_lens)].to(device)
        self.table = torch.full((len(kv_lens) + 2, longest), unused, dtype=torch.int32)
        self.kv_lens = kv_lens
        self.b_kv_len = torch.tensor(kv_lens, dtype=torch.int32, device=device)
        start = 0
        for row, kv_len in zip(self.b_row.tolist(), kv_lens, strict=True):
            self.table[row, :kv_len] = order[start : start + kv_len].int()
            start += kv_len
        self.table = self.table.to(device)

    def _quantise(self, k: Tensor, v: Tensor, codes: torch.dtype) -> None:
        """Heads get sizes from 0.01 to 100, keys less, and one of them holds zeros."""
        (slots, heads, _), device = self.k.shape, self.k.device
        self.k *= 1 + torch.rand(slots, heads, 1).to(device)
        self.v *= (10 ** (4 * torch.rand(slots, heads, 1) - 2)).to(device)
        self.k[0, 0] = self.v[0, 0] = 0.0
        kv_heads = self.k.shape[1]
        inside = slice(1, kv_heads + 1), slice(0, kv_heads)
        quantised = [
            [each[:, some] for each in quantise(heads, codes)] for heads, some in zip((k, v), inside, strict=True)
        ]
        scales = torch.cat([each if each.dim() == 3 else each[..., None] for _, each in quantised], dim=-1)
        # Those of a head lie in the order of slots.
        scales = scales.transpose(0, 1).contiguous().transpose(0, 1)
        self.cache = KvCache(quantised[0][0], quantised[1][0], scales)
        self.k, self.v = (dequantise(*each).double() for each in quantised)

    def decodes(self, max_kv_len: int | None = None, some: slice = slice(None)) -> Decodes:
        """A decode of each request, or of some."""
        longest = max(self.kv_lens, default=0) if max_kv_len is None else max_kv_len
        return Decodes(self.table, self.b_row[some], self.b_kv_len[some], longest)

    def chunks(self, q_lens: list[int], max_len: int | None = None) -> Chunks:
        """The last `q_lens` tokens of each request."""
        starts = query_starts(q_lens, str(self.table.device))
        longest = max(q_lens, default=0) if max_len is None else max_len
        return Chunks(self.table, self.b_row, starts, self.b_kv_len, longest)

    def windows(self, counts: list[int], width: int, max_kv_len: int | None = None) -> Decodes:
        """The last `counts` tokens of each request, and padding up to `width`."""
        lengths = torch.zeros(len(counts), width, dtype=torch.int32)
        for request, (kv_len, count) in enumerate(zip(self.kv_lens, counts, strict=True)):
            lengths[request, :count] = torch.arange(kv_len - count + 1, kv_len + 1)
        rows = self.b_row.repeat_interleave(width)
        longest = max(self.kv_lens, default=0) if max_kv_len is None else max_kv_len
        return Decodes(self.table, rows, lengths.flatten().to(rows.device), longest, width)

    def slots(self, request: int) -> Tensor:
        return self.table[self.b_row[request], : self.kv_lens[request]].long()

    def expected_decode(self, q: Tensor, scale: float, options: AttentionOptions = NO_OPTIONS) -> Tensor:
        """`q` [batch, heads, head_dim], float64 result."""
        return self.expected_prefill(q, [1] * len(self.kv_lens), scale, options)

    def expected_windows(
        self, q: Tensor, counts: list[int], width: int, scale: float, options: AttentionOptions = NO_OPTIONS
    ) -> Tensor:
        """`q` [requests * width, heads, head_dim], float64 result, zeros for padding."""
        there = torch.arange(width).repeat(len(counts)) < torch.tensor(counts).repeat_interleave(width)
        there = there.to(q.device)
        out = q.new_zeros(*q.shape[:2], self.v.shape[2], dtype=torch.float64)
        out[there] = self.expected_prefill(q[there], counts, scale, options)
        return out

    def expected_prefill(
        self, q: Tensor, q_lens: list[int], scale: float, options: AttentionOptions = NO_OPTIONS
    ) -> Tensor:
        """`q` [tokens, heads, head_dim], the last `q_lens` tokens of each request; float64 result."""
        contexts = [self.slots(request) for request in range(len(self.kv_lens))]
        attended = (
            reference.causal_attention(piece, self.k[slots], self.v[slots], scale, options)
            for piece, slots in zip(q.split(q_lens), contexts, strict=True)
        )
        return torch.cat(list(attended))


def attention_options(names: str, heads: int, window: int = 0, device: str = "cpu") -> AttentionOptions:
    """Options by name, as in "window sinks". The softcap is so small that it matters for random scores."""
    sinks = torch.randn(heads, generator=torch.Generator().manual_seed(1)).to(device)
    slopes = (torch.arange(heads, device=device) + 1) * 0.03
    return AttentionOptions(
        window=window if "window" in names else 0,
        softcap=0.7 if "softcap" in names else 0.0,
        sinks=sinks if "sinks" in names else None,
        slopes=slopes if "slopes" in names else None,
    )


def strided_q(tokens: int, heads: int, head_dim: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Queries as a fused QKV GEMM leaves them: with other data between tokens."""
    qkv = torch.randn(tokens, 3 * heads * head_dim).to(device, dtype)
    return qkv[:, : heads * head_dim].view(tokens, heads, head_dim)


def query_starts(q_lens: list[int], device: str = "cpu") -> Tensor:
    return torch.tensor([0, *q_lens]).cumsum(0).int().to(device)
