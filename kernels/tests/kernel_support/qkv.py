"""Inputs and checks of `qkv_postprocess` for interpreter and GPU: scattered slots, caches poisoned with NaN."""

from collections.abc import Callable

import torch
from torch import Tensor

from . import reference

Operator = Callable[..., None]
MAX_POSITIONS = 50
EPS = 1e-5
_UNUSED = 77
"""A byte of caches of codes, for those that nobody writes."""


class Case:
    """One call. Tensors may be replaced before `check`, for other layouts."""

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
        """`codes`: type of a quantised cache, whose scales are `given` or measured."""
        torch.manual_seed(head_dim)
        self.kv_heads, self.head_dim, self.num_slots = kv_heads, head_dim, 2 * tokens + 3
        size = (heads + 2 * kv_heads) * head_dim
        self.qkv = torch.randn(tokens, size).to(dtype).to(device)
        self.bias = torch.randn(size).to(dtype).to(device) if with_bias else None
        shapes = [(number, head_dim) if norm_of_each_head else (head_dim,) for number in (heads, kv_heads)]
        self.q_norm, self.k_norm = (
            (1 + 0.1 * torch.randn(shape)).to(norm_dtype or dtype).to(device) if with_norms else None
            for shape in shapes
        )
        self.norm_after_rope = norm_after_rope
        self.angles = torch.rand(MAX_POSITIONS, head_dim // 2, dtype=torch.float64, device=device) * 6
        self.cos_sin = torch.cat((self.angles.cos(), self.angles.sin()), dim=-1).float()
        self.positions = torch.randint(MAX_POSITIONS, (tokens,)).to(device)
        self.slots = torch.randperm(self.num_slots)[:tokens].to(device)
        shape = (self.num_slots, kv_heads, head_dim)
        self.k_cache, self.v_cache = (torch.full(shape, float("nan"), dtype=dtype, device=device) for _ in range(2))
        self.scales: Tensor | None = None
        self.given = given
        if codes is not None:
            self.k_cache, self.v_cache = (
                torch.full(shape, _UNUSED, dtype=torch.uint8, device=device).view(codes) for _ in range(2)
            )
            self.scales = torch.full((self.num_slots, kv_heads, 2), float("nan"), dtype=torch.bfloat16, device=device)
            if given:
                scales = (0.01 + 0.02 * torch.rand(kv_heads, 2)).bfloat16()
                self.scales = scales.to(device).expand(self.num_slots, -1, -1)

    def arguments(self) -> tuple[Tensor | float | bool | None, ...]:
        """Of the operator, in order."""
        norms = (self.q_norm, self.k_norm, EPS)
        step = (self.cos_sin, self.positions, self.slots, self.k_cache, self.v_cache)
        if self.scales is None:
            return self.qkv, self.bias, *norms, *step, self.norm_after_rope
        return self.qkv, self.bias, *norms, *step, self.norm_after_rope, self.scales, self.given

    def check_unused(self) -> None:
        """No other slot was touched."""
        unused = torch.ones(self.num_slots, dtype=torch.bool, device=self.slots.device)
        unused[self.slots] = False
        for cache in (self.k_cache, self.v_cache):
            rest = cache[unused] if self.scales is None else cache.view(torch.uint8)[unused] == _UNUSED
            if not (rest.isnan() if self.scales is None else rest).all():
                raise AssertionError("a slot of no token was written")
        if self.scales is not None and not self.given and not self.scales[unused].isnan().all():
            raise AssertionError("a scale of no token was written")

    def check(self, operator: Operator, torch_operator: Operator) -> None:
        """Runs `operator`: at most twice as far from the formula as torch in the same type, no other slot touched."""
        expected = self.expected()
        qkv, k_cache, v_cache = (tensor.clone() for tensor in (self.qkv, self.k_cache, self.v_cache))
        torch_operator(qkv, *self.arguments()[1:-3], k_cache, v_cache, self.norm_after_rope)
        by_torch = self._results(qkv, k_cache, v_cache)

        operator(*self.arguments())

        for got, torch_got, want in zip(self.results(), by_torch, expected, strict=True):
            limit = 2 * (torch_got.double() - want).abs().max() + 1e-5
            if not (got.double() - want).abs().max() <= limit:
                raise AssertionError(f"error {(got.double() - want).abs().max()} exceeds {limit}")
        self.check_unused()

    def check_codes(self, operator: Operator, torch_operator: Operator) -> None:
        """Runs `operator` and torch: few codes differ, by a step, and scales by a step of theirs.

        Where values have 16 bits, the largest of a head may be apart by one of their steps, and its scale by two.
        """
        by_torch = [tensor.clone() for tensor in (self.qkv, self.k_cache, self.v_cache)]
        torch_scales = self.scales if self.scales is None or self.given else self.scales.clone()
        operator(*self.arguments())
        codes = [cache.view(torch.uint8)[self.slots].int() for cache in (self.k_cache, self.v_cache)]
        self.check_unused()
        scales = self.scales
        self.qkv, self.k_cache, self.v_cache = by_torch
        self.scales = torch_scales
        torch_operator(*self.arguments())
        steps = 1 if self.qkv.dtype == torch.float32 else 2
        for got, cache in zip(codes, (self.k_cache, self.v_cache), strict=True):
            apart = (got - cache.view(torch.uint8)[self.slots].int()).abs() % 128
            if apart.max() > steps or (apart > 0).float().mean() > 0.05:
                raise AssertionError(f"{(apart > 0).float().mean():.2%} of codes differ, by up to {apart.max()}")
        torch.testing.assert_close(scales, self.scales, rtol=steps * 2**-7, atol=0, equal_nan=True)

    def check_same_codes(self, operator: Operator, torch_operator: Operator) -> None:
        """Runs `operator` and torch on heads that are not rotated, so that both quantise the same values: codes and
        scales are the same to the bit.
        """
        half = self.head_dim // 2
        self.cos_sin[:, :half], self.cos_sin[:, half:] = 1.0, 0.0
        found: list[Tensor] = []
        for run in (operator, torch_operator):
            if self.scales is not None and not self.given:
                self.scales = self.scales.clone()
            self.k_cache, self.v_cache, qkv = self.k_cache.clone(), self.v_cache.clone(), self.qkv.clone()
            run(qkv, *self.arguments()[1:])
            written = (self.k_cache, self.v_cache, self.scales)
            found += [torch.cat([each[self.slots].view(torch.uint8) for each in written if each is not None], dim=-1)]
        if not torch.equal(*found):
            raise AssertionError(f"{(found[0] != found[1]).float().mean():.2%} of the bytes differ")

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, and k and v of the tokens' slots, after the operator."""
        return self._results(self.qkv, self.k_cache, self.v_cache)

    def _results(self, qkv: Tensor, k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = qkv.unflatten(1, (-1, self.head_dim))[:, : -2 * self.kv_heads]
        return q, k_cache[self.slots], v_cache[self.slots]

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, and k and v of the tokens' slots, float64; call it before the operator."""
        product = self.qkv.double() + (0 if self.bias is None else self.bias.double())
        heads = product.unflatten(1, (-1, self.head_dim))
        q_and_k = heads[:, : -self.kv_heads]
        if not self.norm_after_rope:
            q_and_k = self._normalised(q_and_k)
        q_and_k = reference.rotate(q_and_k, self.angles[self.positions])
        if self.norm_after_rope:
            q_and_k = self._normalised(q_and_k)
        return q_and_k[:, : -self.kv_heads], q_and_k[:, -self.kv_heads :], heads[:, -self.kv_heads :]

    def _normalised(self, q_and_k: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return q_and_k
        q, k = q_and_k[:, : -self.kv_heads], q_and_k[:, -self.kv_heads :]
        return torch.cat((reference.rms_norm(q, self.q_norm, EPS), reference.rms_norm(k, self.k_norm, EPS)), dim=1)
