"""Kernels of 16-bit (and 32-bit) matmuls, in order of preference."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..norm.act_and_mul import act_and_mul_triton
from ..runtime.device import Card, card_of
from ..runtime.settings import fastest, nearest
from .bf16_gemv import bf16_gemv
from .bf16_small_hopper import bf16_small_hopper
from .ladder import SMALL_BATCH, Ladder, MatmulKernel, Settings, padded_tokens
from .skinny_linear import filled_splits, skinny_gemm

_GEMV_INPUTS = 8
"""Inputs are a multiple of this: loads have 16 bytes."""


class Bf16Problem(NamedTuple):
    """See `TokensProblem`."""

    card: Card
    tokens: int
    outputs: int
    inputs: int
    gated: bool
    """Whether a gated activation follows."""
    partials: bool
    """Whether the next kernel reduces split-K partials, where these are faster."""
    readable: bool
    """Whether all tensors have one 16-bit type, and rows that begin at multiples of 16 bytes from the first one."""
    aligned: bool
    """Whether `x` and `weight` begin at multiples of 16 bytes."""

    @classmethod
    def of(
        cls, x: Tensor, weight: Tensor, out: Tensor, activation: str | None = None, partials: bool = False
    ) -> "Bf16Problem":
        """The problem of these tensors; with `partials`, `out` is any tensor of the type of `x`."""
        tokens, (outputs, inputs) = len(x), weight.shape
        readable = (
            x.element_size() == 2
            and x.dtype == weight.dtype == out.dtype
            and all(tensor.stride(0) % 8 == 0 and tensor.stride(1) == 1 for tensor in (x, weight))
            and out.stride(1) == 1
        )
        aligned = (x.data_ptr() | weight.data_ptr()) % 16 == 0
        size = 1 if tokens == 1 else padded_tokens(tokens)
        return cls(card_of(x.device), size, outputs, inputs, activation is not None, partials, readable, aligned)

    def of_tokens(self, tokens: int) -> "Bf16Problem":
        """See `TokensProblem`."""
        return self._replace(tokens=tokens)


def _gemv_settings(problem: Bf16Problem) -> Settings | str:
    if problem.tokens > 1:
        return "it computes a single token"
    return _unreadable(problem, _GEMV_INPUTS) or {}


def _gemv(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, activation: str | None, _settings: Settings
) -> None:
    bf16_gemv(x, weight, bias, out, activation)


def _skinny_settings(problem: Bf16Problem) -> Settings | str:
    if problem.tokens > SMALL_BATCH:
        return f"it computes at most {SMALL_BATCH} tokens"
    file = "linear_split_k" if problem.partials else "skinny_linear"
    sizes = {"outputs": problem.outputs, "inputs": problem.inputs, "tokens": padded_tokens(problem.tokens)}
    config = fastest(file, shared_kib=problem.card.shared_kib, **sizes)
    if isinstance(config, str):
        return f"{file}.json: {config} is as fast"
    if reason := _unreadable(problem, config["BLOCK_K"]):
        return reason
    return {**config, "splits": filled_splits(problem.inputs, config["BLOCK_K"], config["splits"])}


def _hopper_settings(problem: Bf16Problem) -> Settings | str:
    if not problem.card.is_hopper:
        return "it is for compute capability 9.0"
    if problem.tokens != SMALL_BATCH:
        return f"it computes 33 to {SMALL_BATCH} tokens"
    if not problem.aligned:
        return "x or weight does not begin at a multiple of 16 bytes"
    others = _skinny_settings(problem)
    if isinstance(others, str):
        return others
    splits = others["splits"]
    if splits > 1 and not problem.partials:
        return f"skinny_linear.json: {splits} splits, which it does not reduce, are faster"
    sizes = {"outputs": problem.outputs, "inputs": problem.inputs}
    return {**nearest("bf16_small_hopper", gated=problem.gated, splits=splits, **sizes), "splits": splits}


def _unreadable(problem: Bf16Problem, block_k: int) -> str | None:
    """Why kernels that read `block_k` inputs at a time cannot read the tensors."""
    if not problem.readable:
        return "it takes tensors of one 16-bit type, with rows at multiples of 16 bytes"
    if problem.inputs % block_k:
        return f"{problem.inputs} inputs are no multiple of {block_k}"
    return None


def cublas_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None,
    act_and_mul: Callable[[Tensor, str, Tensor], None],
) -> None:
    """The GEMM by torch's library, followed by `act_and_mul` where there is an activation."""
    if activation is not None:
        act_and_mul(functional.linear(x, weight, bias), activation, out)
    elif bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        out.copy_(functional.linear(x, weight, bias))


def _cublas(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, activation: str | None, _settings: Settings
) -> None:
    cublas_linear(x, weight, bias, out, activation, act_and_mul_triton)


BF16_GEMV = MatmulKernel(
    "bf16_gemv",
    _gemv_settings,
    _gemv,
    f"a single token of a 16-bit type, and a multiple of {_GEMV_INPUTS} inputs",
    frozenset({"norm", "activation", "residual", "all-reduce"}),
)
BF16_SMALL_HOPPER = MatmulKernel(
    "bf16_small_hopper",
    _hopper_settings,
    bf16_small_hopper,
    f"33 to {SMALL_BATCH} tokens of a 16-bit type on compute capability 9.0, unless it had to reduce splits itself",
    frozenset({"activation", "split-K partials"}),
)
SKINNY_GEMM = MatmulKernel(
    "skinny_linear",
    _skinny_settings,
    skinny_gemm,
    f"up to {SMALL_BATCH} tokens of a 16-bit type, where it was measured to be fastest",
    frozenset({"activation", "split-K partials"}),
)
CUBLAS = MatmulKernel[Bf16Problem]("cublas", lambda _: {}, _cublas, "everything else")
BF16 = Ladder(BF16_GEMV, BF16_SMALL_HOPPER, SKINNY_GEMM, CUBLAS)
