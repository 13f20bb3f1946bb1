"""Inputs of the operators of latent attention."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels import Chunks, Decodes, NewTokens, Shares

from . import reference
from .pool import Pool


@dataclass(frozen=True)
class Contexts:
    """Latent vectors of several requests in a pool, and queries of their last tokens."""

    pool: Pool
    q: Tensor
    q_lens: list[int]
    rank: int
    scale: float

    @classmethod
    def of(
        cls,
        q_lens: list[int],
        kv_lens: list[int],
        heads: int,
        rank: int,
        rope: int,
        dtype: torch.dtype,
        device: str = "cpu",
    ) -> "Contexts":
        pool = Pool(kv_lens, 1, rank + rope, dtype, device)
        # With other data between tokens and between heads.
        wide = torch.randn(sum(q_lens), heads + 1, rank + rope + 3).to(device, dtype)
        return cls(pool, wide[:, :heads, : rank + rope], q_lens, rank, (rank + rope) ** -0.5)

    @property
    def out(self) -> Tensor:
        return self.q.new_full((*self.q.shape[:2], self.rank), float("nan"))

    def decode_arguments(
        self, out: Tensor, deterministic: bool = False
    ) -> tuple[Tensor, Tensor, Decodes, float, Tensor, bool]:
        return self.q, self.pool.k, self.pool.decodes(), self.scale, out, deterministic

    def prefill_arguments(
        self, out: Tensor, deterministic: bool = False
    ) -> tuple[Tensor, Tensor, Chunks, float, Tensor, bool]:
        return self.q, self.pool.k, self.pool.chunks(self.q_lens), self.scale, out, deterministic

    def expected(self) -> Tensor:
        """float64"""
        contexts = [self.pool.k[self.pool.slots(request)] for request in range(len(self.q_lens))]
        attended = (
            reference.causal_attention(piece, context, context[..., : self.rank], self.scale)
            for piece, context in zip(self.q.split(self.q_lens), contexts, strict=True)
        )
        return torch.cat(list(attended))

    def in_shares(
        self,
        ranks: int,
        own_slots: Callable[[Decodes, Tensor, int, int, Tensor, Tensor], None],
        attend: Callable[[Tensor, Tensor, Decodes, float, Tensor, bool, Tensor], None],
        merge_shares: Callable[[Shares, Tensor], None],
    ) -> Tensor:
        """What decodes attend to where slot s of the pool is row s // ranks of rank s % ranks."""
        batch, (tokens, heads, _) = self.pool.decodes(), self.q.shape
        shares = Shares.empty(self.q, ranks, tokens, heads, self.rank)
        rows = torch.arange(tokens, device=self.q.device)
        for rank in range(ranks):
            own = torch.full((tokens, batch.max_kv_len), 1 << 20, dtype=torch.int32, device=self.q.device)
            own_lens = torch.full_like(batch.kv_lens, -1)
            own_slots(batch, rows, rank, ranks, own, own_lens)
            of_rank = Decodes(own, rows, own_lens, batch.max_kv_len)
            out, log_sum = self.out, self.q.new_empty(tokens, heads, dtype=torch.float32)
            attend(self.q, self.pool.k[rank::ranks], of_rank, self.scale, out, False, log_sum)
            shares.results(self.rank)[rank], shares.log_sums[rank] = out, log_sum
        merged = self.q.new_empty(tokens, heads, self.rank)
        merge_shares(shares, merged)
        return merged

    def check(self, out: Tensor, torch_out: Tensor) -> None:
        """At most twice as far from the formula as torch in the same type. NaN is never close."""
        expected = self.expected()
        error = (out.double() - expected).abs().max()
        assert error <= 2 * (torch_out.double() - expected).abs().max() + 1e-5


@dataclass(frozen=True)
class Postprocess:
    """What a step of three tokens gives to the operator before attention."""

    arguments: tuple[Tensor, Tensor, float, NewTokens, Tensor, Tensor, Tensor]
    queries: Tensor
    cache: Tensor
    expected_queries: Tensor
    """[tokens, heads, rope] float64, the last columns of `queries`."""
    expected_rows: Tensor
    """[tokens, rank + rope] float64, what is in the cache at the tokens' slots."""
    slots: Tensor

    @classmethod
    def of(cls, heads: int, rank: int, rope: int, key: int, dtype: torch.dtype, device: str = "cpu") -> "Postprocess":
        torch.manual_seed(0)
        positions, slots = torch.tensor([3, 0, 40], device=device), torch.tensor([2, 7, 1], device=device)
        latent = torch.randn(3, rank + rope + 5).to(device, dtype)[:, 5:]
        weight = torch.randn(rank).to(device, dtype)
        q = torch.randn(3, heads, key + rope).to(device, dtype)
        frequencies = 1 / 100 ** torch.linspace(0, 1, rope // 2, device=device)
        table = torch.arange(50, device=device)[:, None] * frequencies
        cos_sin = torch.cat((table.cos(), table.sin()), dim=1)
        angles = table[positions].double()
        normalised = reference.rms_norm(latent[:, :rank], weight, 1e-6)
        turned = reference.rotate(latent[:, None, rank:], angles)[:, 0]
        queries, cache = torch.zeros(3, heads, rank + rope).to(device, dtype), torch.zeros(9, 1, rank + rope).to(q)
        return cls(
            (latent, weight, 1e-6, NewTokens(cos_sin, positions, slots), q, queries, cache),
            queries,
            cache,
            reference.rotate(q[..., key:], angles),
            torch.cat((normalised, turned), dim=1),
            slots,
        )

    def check(self) -> None:
        rank = self.cache.shape[2] - self.expected_queries.shape[2]
        close = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[self.cache.dtype]
        torch.testing.assert_close(self.queries[..., rank:].double(), self.expected_queries, atol=close, rtol=close)
        torch.testing.assert_close(self.cache[self.slots, 0].double(), self.expected_rows, atol=close, rtol=close)
        # Nothing else is written.
        assert not self.queries[..., :rank].any()
        assert not self.cache[[0, 3, 4, 5, 6, 8]].any()


@dataclass(frozen=True)
class Expansion:
    """Contexts whose keys and values are made, one of them left out, and what must be in the room for them."""

    arguments: tuple[Tensor, ...]
    expected_keys: Tensor
    """[room, heads, key + rope] float64, NaN where nothing is written."""
    expected_values: Tensor
    """[room, heads, value], likewise."""

    @classmethod
    def of(
        cls, heads: int, rank: int, rope: int, key: int, value: int, dtype: torch.dtype, device: str = "cpu"
    ) -> "Expansion":
        lengths = [5, 0, 130, 64]
        pool = Pool(lengths, 1, rank + rope, dtype, device)
        keys = (torch.randn(heads, key, rank) / rank**0.5).to(device, dtype)
        values = (torch.randn(heads, rank, value) / rank**0.5).to(device, dtype)
        # In another order than that of the requests, with room between them.
        first = [202, 0, 3, 135]
        k = torch.full((210, heads, key + rope), float("nan")).to(device, dtype)
        v = torch.full((210, heads, value), float("nan")).to(device, dtype)
        expected_k, expected_v = k.double(), v.double()
        for request, (begin, length) in enumerate(zip(first, lengths, strict=True)):
            latent, turned = pool.k[pool.slots(request), 0].double().split((rank, rope), dim=1)
            expected_k[begin : begin + length, :, :key] = torch.einsum("nr,hdr->nhd", latent, keys.double())
            expected_k[begin : begin + length, :, key:] = turned[:, None]
            expected_v[begin : begin + length] = torch.einsum("nr,hrd->nhd", latent, values.double())
        firsts = torch.tensor(first, dtype=torch.int32, device=device)
        context = (pool.table, pool.b_row, firsts, pool.b_kv_len)
        return cls((pool.k, *context, keys, values, k, v), expected_k, expected_v)

    def check(self) -> None:
        *_, k, v = self.arguments
        close = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[k.dtype]
        torch.testing.assert_close(k.double(), self.expected_keys, atol=close, rtol=close, equal_nan=True)
        torch.testing.assert_close(v.double(), self.expected_values, atol=close, rtol=close, equal_nan=True)
