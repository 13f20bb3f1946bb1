"""Inputs of the operators of an indexer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from text_generation_kernels import Decodes, IndexNorms, NewTokens

from . import reference
from .pool import Pool


@dataclass(frozen=True)
class Contexts:
    """Index keys of several requests in a pool, and what their newest tokens bring."""

    pool: Pool
    q: Tensor
    weights: Tensor

    @classmethod
    def of(cls, kv_lens: list[int], heads: int, size: int, dtype: torch.dtype, device: str = "cpu") -> "Contexts":
        pool = Pool(kv_lens, 1, size, dtype, device)
        # With other data between tokens and between heads.
        wide = torch.randn(len(kv_lens), heads + 1, size + 3).to(device, dtype)
        weights = torch.randn(len(kv_lens), heads + 5).to(device, dtype)
        return cls(pool, wide[:, :heads, :size], weights[:, :heads])

    @property
    def scores(self) -> Tensor:
        return torch.full((len(self.q), max(self.pool.kv_lens) + 5), float("nan"), device=self.q.device)

    def arguments(self, scores: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor, Decodes, int, Tensor]:
        return self.q, self.weights, self.pool.k, self.pool.decodes(), top_k, scores

    def expected(self, top_k: int) -> Tensor:
        """float64, NaN where nothing is written."""
        made = self.scores.double()
        for token, kv_len in enumerate(self.pool.kv_lens):
            if kv_len > top_k:
                similar = self.pool.k[self.pool.slots(token), 0].double() @ self.q[token].double().T
                made[token, :kv_len] = (similar.clamp(min=0) * self.weights[token].double()).sum(1)
        return made

    def check(self, scores: Tensor, top_k: int) -> None:
        close = 1e-4 if self.q.dtype == torch.float32 else 2e-3
        torch.testing.assert_close(scores.double(), self.expected(top_k), atol=close, rtol=close, equal_nan=True)

    def block_arguments(self, scores: Tensor, block: int, top_k: int, local: int) -> tuple[Any, ...]:
        return self.q, self.pool.k, self.pool.decodes(), block, top_k, local, scores

    def block_scores(self, block: int) -> Tensor:
        """Room for them, full of NaN."""
        blocks = max(self.pool.kv_lens) // block + 2
        return torch.full((*self.q.shape[:2], blocks), float("nan"), device=self.q.device)

    def check_blocks(self, scores: Tensor, block: int, top_k: int, local: int) -> None:
        expected = self.block_scores(block).double()
        for token, kv_len in enumerate(self.pool.kv_lens):
            if kv_len > top_k * block:
                similar = self.q[token].double() @ self.pool.k[self.pool.slots(token), 0].double().T
                each = [part.amax(1) for part in similar.split(block, dim=1)]
                each[-local:] = [torch.full_like(each[0], float("inf"))] * local
                expected[token, :, : len(each)] = torch.stack(each, dim=1)
        close = 1e-4 if self.q.dtype == torch.float32 else 1e-2
        torch.testing.assert_close(scores.double(), expected, atol=close, rtol=close, equal_nan=True)


@dataclass(frozen=True)
class Choice:
    """Scores with many ties, infinities, zeros of both signs and NaN, and what is chosen."""

    pool: Pool
    scores: Tensor
    k: int

    @classmethod
    def of(cls, kv_lens: list[int], k: int, device: str = "cpu") -> "Choice":
        pool = Pool(kv_lens, 1, 4, torch.float32, device)
        scores = torch.randn(len(kv_lens), max(kv_lens) + 5)
        scores[1::3] = (scores[1::3] * 2).round()
        scores[2::3] = scores[2::3].clamp(max=0) * torch.tensor(-1.0)
        scores[2::3, ::7] = -0.0
        scores[0, :4] = torch.tensor([float("inf"), float("-inf"), -1e-42, 1e-42])
        return cls(pool, scores.to(device), k)

    @property
    def slots(self) -> Tensor:
        return torch.full((len(self.scores), self.k), -7, dtype=torch.int32, device=self.scores.device)

    def arguments(self, slots: Tensor) -> tuple[Tensor, Decodes, Tensor]:
        return self.scores, self.pool.decodes(), slots

    def check(self, slots: Tensor) -> None:
        for token, kv_len in enumerate(self.pool.kv_lens):
            values = self.scores[token, :kv_len].tolist()
            best = sorted(sorted(range(kv_len), key=lambda position: (-values[position], position))[: self.k])
            expected = self.pool.slots(token)[best].tolist()
            assert slots[token, : len(best)].tolist() == expected
            assert (slots[token, len(best) :] == -7).all()


@dataclass(frozen=True)
class Postprocess:
    """What a step of three tokens gives to the operator before scores."""

    arguments: tuple[Tensor, IndexNorms, NewTokens, Tensor, Tensor]
    expected_queries: Tensor
    """float64, like `q`."""
    expected_rows: Tensor
    """[tokens, size] float64, what is in the cache at the tokens' slots."""
    slots: Tensor

    @classmethod
    def of(
        cls, heads: int, size: int, rope: int, dtype: torch.dtype, device: str = "cpu", queries: bool = False
    ) -> "Postprocess":
        """Keys have a layer norm, or, where `queries` are normalised too, an RMS norm as these."""
        torch.manual_seed(0)
        positions, slots = torch.tensor([3, 0, 40], device=device), torch.tensor([2, 7, 1], device=device)
        keys = (torch.randn(3, size + 5) + 1).to(device, dtype)[:, 5:]
        weight, bias, of_q = (torch.randn(size).to(device, dtype) for _ in range(3))
        q = torch.randn(3, heads + 1, size + 2).to(device, dtype)[:, :heads, :size]
        table = torch.arange(50, device=device)[:, None] / 100 ** torch.linspace(0, 1, rope // 2, device=device)
        cos_sin = torch.cat((table.cos(), table.sin()), dim=1)
        angles = table[positions].double()

        def turned(x: Tensor) -> Tensor:
            return torch.cat((reference.rotate(x[..., :rope], angles), x[..., rope:]), dim=-1)

        if queries:
            norms = IndexNorms(weight.float(), None, of_q.float(), 1e-6)
            normalised, normalised_q = (reference.rms_norm(x, w, 1e-6) for x, w in ((keys, weight), (q, of_q)))
        else:
            norms = IndexNorms(weight, bias, None, 1e-6)
            centred = keys.double() - keys.double().mean(1, keepdim=True)
            normalised = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
            normalised, normalised_q = normalised * weight.double() + bias.double(), q.double()
        cache = torch.zeros(9, 1, size).to(q)
        tokens = NewTokens(cos_sin, positions, slots)
        rows = turned(normalised[:, None])[:, 0]
        return cls((keys, norms, tokens, q, cache), turned(normalised_q), rows, slots)

    def check(self) -> None:
        *_, q, cache = self.arguments
        close = {torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}[cache.dtype]
        torch.testing.assert_close(q.double(), self.expected_queries, atol=close, rtol=close)
        torch.testing.assert_close(cache[self.slots, 0].double(), self.expected_rows, atol=close, rtol=close)
        # Nothing else is written.
        assert not cache[[0, 3, 4, 5, 6, 8]].any()
