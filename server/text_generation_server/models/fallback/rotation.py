"""Rotary embedding of a class, which `qkv_postprocess` applies where it can.

A class rotates queries and keys by a function of its file before it calls attention. Where our operator does the same,
a function that only notes its arguments replaces the original, and attention rotates.
"""

# Switches of the library have names with an underscore.
# pyright: reportPrivateUsage=false

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

import text_generation_kernels as kernels

_NAME = "apply_rotary_pos_emb"


@dataclass(frozen=True)
class RotaryCall:
    """The arguments with which a layer asked for RoPE."""

    q: Tensor
    """[1, heads, T, head_dim]"""
    k: Tensor
    """[1, kv_heads, T, head_dim]"""
    cos: Tensor
    """[1, T, head_dim], with equal halves."""
    sin: Tensor


class Rotation:
    """Stands in for the RoPE function of a class."""

    def __init__(self) -> None:
        self._asked: RotaryCall | None = None

    def ask(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Notes the call, and returns queries and keys unchanged."""
        self._asked = RotaryCall(q, k, cos, sin)
        return q, k

    def take(self) -> RotaryCall | None:
        """Returns the call since the last `take`, if there was one."""
        asked, self._asked = self._asked, None
        return asked


def redirect(attention: nn.Module, rotation: Rotation) -> None:
    """Makes this module, and no other of its class, call `rotation` instead of the function."""
    forward = _forward(attention)
    names = {**forward.__globals__, _NAME: rotation.ask}
    redirected = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    redirected.__kwdefaults__ = forward.__kwdefaults__
    attention.forward = MethodType(redirected, attention)


def _forward(attention: nn.Module) -> Any:
    return inspect.unwrap(type(attention).forward)


def can_be_postponed(
    model: PreTrainedModel, copied: PreTrainedModel, attentions: Sequence[str], run: Callable[[], object]
) -> bool:
    """Whether attention can rotate queries and keys in all these modules. `copied` is `model` on the meta device, which
    this call uses up; `run` is its forward pass.

    The function must compute what the operator does, its angles must come from a rotary embedding module, and nothing
    but attention may read what it returns.
    """
    modules = [copied.get_submodule(name) for name in attentions]
    forwards = {_forward(module) for module in modules}
    if not all(_NAME in each.__code__.co_names and _rotates_halves(each.__globals__.get(_NAME)) for each in forwards):
        return False
    check = _Check()
    for name, embedding in model.named_modules():
        if type(embedding).__name__.endswith("RotaryEmbedding"):
            if not _halves_are_equal(embedding):
                return False
            copied.get_submodule(name).register_forward_hook(check.embedded)
    for module in modules:
        redirect(module, check.rotation)
        module.served_by = check  # type: ignore[assignment]
    try:
        with check, torch.no_grad():
            run()
    except Exception:  # a class may call its function in any way, and expect anything of it
        return False
    return check.passed


class _Check(TorchDispatchMode):
    """Finds operators other than attention that read queries and keys before RoPE."""

    def __init__(self) -> None:
        super().__init__()
        self.rotation = Rotation()
        self.passed = True
        self._angles: list[Tensor] = []
        self._unrotated: list[Tensor] = []

    def embedded(self, _: nn.Module, __: object, result: tuple[Tensor, Tensor]) -> None:
        """Notes the angles that a rotary embedding module has made."""
        self._angles += result

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: object, options: dict[str, Any]) -> Tensor:  # noqa: ARG002
        """See `AttentionLayer`."""
        call = self.rotation.take()
        self.passed &= not any(each is old for each in (q, k, v) for old in self._unrotated)
        if call is not None:
            self.passed &= call.q is q and call.k is k and call.cos.shape[-1] == q.shape[-1] == v.shape[-1]
            self.passed &= all(any(each is known for known in self._angles) for each in (call.cos, call.sin))
            self._unrotated += (q, k, v)
        return torch.empty(1, q.shape[2], q.shape[1], v.shape[-1], dtype=q.dtype, device="meta")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = self.rotation._asked
        held = self._unrotated if asked is None else [*self._unrotated, asked.q, asked.k]
        self.passed &= not any(each is old for each in tree_leaves((args, kwargs)) for old in held)
        return func(*args, **(kwargs or {}))


def _rotates_halves(function: Callable[..., tuple[Tensor, ...]] | None) -> bool:
    """Finds out by trial whether `function` does what our operator does."""
    if function is None:
        return False
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(5, 4 * 8, generator=generator)
    angles = torch.randn(5, 4, generator=generator)
    cos, sin = (torch.cat((each, each), -1)[None] for each in (angles.cos(), angles.sin()))
    q, k, _ = (each.unflatten(-1, (-1, 8)).transpose(0, 1)[None] for each in qkv.clone().split((16, 8, 8), dim=-1))
    cache = torch.zeros(2, 5, 1, 8)
    rows = torch.arange(5)
    table = torch.cat((angles.cos(), angles.sin()), -1)
    tokens = kernels.NewTokens(table, rows, rows)
    kernels.qkv_postprocess(qkv, kernels.NO_PROLOGUE, tokens, kernels.KvCache(cache[0], cache[1]))
    try:
        result = function(q, k, cos, sin)
    except (TypeError, RuntimeError, IndexError):
        return False
    ours = (qkv[:, :16].view(5, 2, 8).transpose(0, 1), cache[0].transpose(0, 1))
    return len(result) == 2 and all(
        theirs.shape == (1, *own.shape) and torch.allclose(theirs[0], own, atol=1e-5)
        for theirs, own in zip(result, ours, strict=True)
    )


def _halves_are_equal(embedding: nn.Module) -> bool:
    """Whether the cosines and the sines of `embedding` have equal halves."""
    try:
        made = embedding(torch.zeros(1), torch.tensor([[0, 1, 7, 1000]]))
    except (TypeError, KeyError, AttributeError, RuntimeError):
        return False
    return all(torch.equal(*each.chunk(2, dim=-1)) for each in made)
