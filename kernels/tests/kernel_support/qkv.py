"""Inputs and checks of `qkv_postprocess` for interpreter and GPU: scattered slots, caches poisoned with NaN."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from text_generation_kernels import KvCache, NewTokens, QkvPrologue
from text_generation_kernels.attention.kv_quantisation import bytes_of_head, scales_of_head, split_scales

from . import reference

Operator = Callable[..., None]
MAX_POSITIONS = 50
EPS = 1e-5
_UNUSED = 77
"""A byte of caches of codes, for those that nobody writes."""


class Case:
    """One call. Its tensors may be replaced before `check`, for other layouts."""

    def __init__(
        self,
        tokens: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        with_bias: bool,
        device: str = "cpu",
        with_norms: bool = False,
        norm_of_each_head: bool = False,
        norm_after_rope: bool = False,
        norm_dtype: torch.dtype | None = None,
        codes: torch.dtype | None = None,
        given: bool = False,
    ) -> None:
        """`codes`: type of a quantised cache, whose scales are `given` or, of 4 bits always, measured."""
        torch.manual_seed(head_dim)
        self.kv_heads, self.head_dim, self.num_slots = kv_heads, head_dim, 2 * tokens + 3
        size = (heads + 2 * kv_heads) * head_dim
        self.qkv = torch.randn(tokens, size).to(dtype).to(device)
        bias = torch.randn(size).to(dtype).to(device) if with_bias else None
        shapes = [(number, head_dim) if norm_of_each_head else (head_dim,) for number in (heads, kv_heads)]
        norms = [
            (1 + 0.1 * torch.randn(shape)).to(norm_dtype or dtype).to(device) if with_norms else None
            for shape in shapes
        ]
        self.prologue = QkvPrologue(bias, norms[0], norms[1], EPS, norm_after_rope)
        self.angles = torch.rand(MAX_POSITIONS, head_dim // 2, dtype=torch.float64, device=device) * 6
        cos_sin = torch.cat((self.angles.cos(), self.angles.sin()), dim=-1).float()
        positions = torch.randint(MAX_POSITIONS, (tokens,)).to(device)
        self.tokens = NewTokens(cos_sin, positions, torch.randperm(self.num_slots)[:tokens].to(device))
        self.cache = self._empty_cache(dtype, device, codes, given)

    def _empty_cache(self, dtype: torch.dtype, device: str, codes: torch.dtype | None, given: bool) -> KvCache:
        shape = (self.num_slots, self.kv_heads, self.head_dim)
        if codes is None:
            return KvCache(*(torch.full(shape, float("nan"), dtype=dtype, device=device) for _ in range(2)))
        shape = (*shape[:2], bytes_of_head(codes, self.head_dim))
        k, v = (torch.full(shape, _UNUSED, dtype=torch.uint8, device=device).view(codes) for _ in range(2))
        if given:
            scales = (0.01 + 0.02 * torch.rand(self.kv_heads, 2)).bfloat16()
            return KvCache(k, v, scales.to(device).expand(self.num_slots, -1, -1), True)
        shape = (*shape[:2], 2 * scales_of_head(codes, self.head_dim))
        return KvCache(k, v, torch.full(shape, float("nan"), dtype=torch.bfloat16, device=device))

    @property
    def arguments(self) -> tuple[Tensor, QkvPrologue, NewTokens, KvCache]:
        """Of the operator, in order."""
        return self.qkv, self.prologue, self.tokens, self.cache

    def change(self, **values: Tensor | None) -> None:
        """Replaces fields of the records."""
        for name, value in values.items():
            if hasattr(self.prologue, name):
                self.prologue = replace(self.prologue, **{name: value})  # pyright: ignore[reportArgumentType]
            elif hasattr(self.tokens, name):
                self.tokens = replace(self.tokens, **{name: value})  # pyright: ignore[reportArgumentType]
            else:
                self.cache = replace(self.cache, **{name: value})  # pyright: ignore[reportArgumentType]

    def copied_cache(self) -> KvCache:
        """One that may be written; scales that are given are not."""
        cache = self.cache
        scales = cache.scales if cache.scales is None or cache.scales_given else cache.scales.clone()
        return replace(cache, k=cache.k.clone(), v=cache.v.clone(), scales=scales)

    def check_unused(self) -> None:
        """No other slot was touched."""
        cache, slots = self.cache, self.tokens.slots
        unused = torch.ones(self.num_slots, dtype=torch.bool, device=slots.device)
        unused[slots] = False
        for each in (cache.k, cache.v):
            rest = each[unused] if cache.scales is None else each.view(torch.uint8)[unused] == _UNUSED
            if not (rest.isnan() if cache.scales is None else rest).all():
                raise AssertionError("a slot of no token was written")
        if cache.scales is not None and not cache.scales_given and not cache.scales[unused].isnan().all():
            raise AssertionError("a scale of no token was written")

    def check(self, operator: Operator, torch_operator: Operator) -> None:
        """Runs `operator`: at most twice as far from the formula as torch in the same type, no other slot touched."""
        expected = self.expected()
        qkv, cache = self.qkv.clone(), self.copied_cache()
        torch_operator(qkv, self.prologue, self.tokens, cache)
        by_torch = self._results(qkv, cache)

        operator(*self.arguments)

        for got, torch_got, want in zip(self.results(), by_torch, expected, strict=True):
            limit = 2 * (torch_got.double() - want).abs().max() + 1e-5
            if not (got.double() - want).abs().max() <= limit:
                raise AssertionError(f"error {(got.double() - want).abs().max()} exceeds {limit}")
        self.check_unused()

    def check_codes(self, operator: Operator, torch_operator: Operator) -> None:
        """Runs `operator` and torch: few codes differ, by a step, and scales by a step of theirs.

        Where values have 16 bits, the largest of a head may be apart by one of their steps, and its scale by two.
        """
        qkv, cache, slots = self.qkv.clone(), self.copied_cache(), self.tokens.slots
        operator(*self.arguments)
        self.check_unused()
        torch_operator(qkv, self.prologue, self.tokens, cache)
        steps = 1 if self.qkv.dtype == torch.float32 else 2
        for got, by_torch in ((self.cache.k, cache.k), (self.cache.v, cache.v)):
            codes = [each.view(torch.uint8)[slots].int() for each in (got, by_torch)]
            apart = (codes[0] - codes[1]).abs() % 128
            if apart.max() > steps or (apart > 0).float().mean() > 0.05:
                raise AssertionError(f"{(apart > 0).float().mean():.2%} of codes differ, by up to {apart.max()}")
        torch.testing.assert_close(self.cache.scales, cache.scales, rtol=steps * 2**-7, atol=0, equal_nan=True)

    def check_int4(self, operator: Operator, torch_operator: Operator) -> None:
        """`check_codes` of 4 bits, whose zeros may be apart by a step of theirs too."""
        qkv, cache, slots = self.qkv.clone(), self.copied_cache(), self.tokens.slots
        operator(*self.arguments)
        self.check_unused()
        torch_operator(qkv, self.prologue, self.tokens, cache)
        for got, by_torch in ((self.cache.k, cache.k), (self.cache.v, cache.v)):
            both = (each.view(torch.uint8)[slots].int() for each in (got, by_torch))
            codes = [torch.stack((each & 15, each >> 4)) for each in both]
            apart = (codes[0] - codes[1]).abs()
            if apart.max() > 1 or (apart > 0).float().mean() > 0.05:
                raise AssertionError(f"{(apart > 0).float().mean():.2%} of codes differ, by up to {apart.max()}")
        found = [split_scales(each, each.scales[slots]) for each in (self.cache, cache) if each.scales is not None]
        for got, by_torch in zip(*found, strict=True):
            (scales, zeros), (torch_scales, torch_zeros) = (
                each.float().unflatten(-1, (-1, 2)).unbind(-1) for each in (got, by_torch)
            )
            torch.testing.assert_close(scales, torch_scales, rtol=2**-6, atol=0)
            if ((zeros - torch_zeros).abs() > 2**-6 * torch_zeros.abs() + torch_scales / 2).any():
                raise AssertionError("zeros differ")

    def check_same_codes(self, operator: Operator, torch_operator: Operator) -> None:
        """Runs `operator` and torch on heads that are not rotated, so that both quantise the same values: codes and
        scales are the same to the bit.
        """
        half, cos_sin = self.head_dim // 2, self.tokens.cos_sin
        cos_sin[:, :half], cos_sin[:, half:] = 1.0, 0.0
        found: list[Tensor] = []
        for run in (operator, torch_operator):
            self.cache = self.copied_cache()
            run(self.qkv.clone(), self.prologue, self.tokens, self.cache)
            written = (self.cache.k, self.cache.v, self.cache.scales)
            rows = [each[self.tokens.slots].view(torch.uint8) for each in written if each is not None]
            found.append(torch.cat(rows, dim=-1))
        if not torch.equal(*found):
            raise AssertionError(f"{(found[0] != found[1]).float().mean():.2%} of the bytes differ")

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, and k and v of the tokens' slots, after the operator."""
        return self._results(self.qkv, self.cache)

    def _results(self, qkv: Tensor, cache: KvCache) -> tuple[Tensor, Tensor, Tensor]:
        q = qkv.unflatten(1, (-1, self.head_dim))[:, : -2 * self.kv_heads]
        return q, cache.k[self.tokens.slots], cache.v[self.tokens.slots]

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, and k and v of the tokens' slots, float64; call it before the operator."""
        product = self.qkv.double() + (0 if self.prologue.bias is None else self.prologue.bias.double())
        heads = product.unflatten(1, (-1, self.head_dim))
        q_and_k = heads[:, : -self.kv_heads]
        if not self.prologue.norm_after_rope:
            q_and_k = self._normalised(q_and_k)
        q_and_k = reference.rotate(q_and_k, self.angles[self.tokens.positions])
        if self.prologue.norm_after_rope:
            q_and_k = self._normalised(q_and_k)
        return q_and_k[:, : -self.kv_heads], q_and_k[:, -self.kv_heads :], heads[:, -self.kv_heads :]

    def _normalised(self, q_and_k: Tensor) -> Tensor:
        q_norm, k_norm = self.prologue.q_norm, self.prologue.k_norm
        if q_norm is None or k_norm is None:
            return q_and_k
        q, k = q_and_k[:, : -self.kv_heads], q_and_k[:, -self.kv_heads :]
        return torch.cat((reference.rms_norm(q, q_norm, EPS), reference.rms_norm(k, k_norm, EPS)), dim=1)
