"""Linear layers, in the number formats in which they run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels

from .activations import Activations, ActivationScheme, padded
from .sites import Site


class Linear(Protocol):
    """`x @ weight.T + bias`, or a rank's shard of it, whatever the format of the weight."""

    @property
    def bias(self) -> Tensor | None:
        """[outputs]"""
        ...

    @property
    def wants(self) -> ActivationScheme | None:
        """How the operator that makes the input should quantise it; None: not at all."""
        ...

    @property
    def outputs(self) -> int:
        """The rows of the weight."""
        ...

    @property
    def site(self) -> Site | None:
        """Where the weight comes from; None: it is not made of rows and columns of stored matrices."""
        ...

    @property
    def nbytes(self) -> int:
        """The bytes of all its tensors."""
        ...

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """Turns [T, inputs] into [T, outputs].

        With `block`, each GEMM has so many tokens, the last one padded. Libraries choose their algorithm, and so the
        order of addition, by the number of tokens: only with a block does a token's result not depend on the others.
        """
        ...

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        """Does the same without the bias, for callers that add it elsewhere."""
        ...

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """Computes `apply`, then `act_and_mul`: [T, inputs] to [T, outputs / 2], quantised as the next matrix `wants`
        where that costs little.
        """
        ...


class LinearOver(Linear):
    """A linear layer that changes the outputs of another one, `base`, by its own `apply` and `matmul`."""

    def __init__(self, base: Linear) -> None:
        self._base = base

    @property
    def site(self) -> Site | None:
        """See `Linear`."""
        return self._base.site

    @property
    def bias(self) -> Tensor | None:
        """See `Linear`."""
        return self._base.bias

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Linear`."""
        return self._base.wants

    @property
    def outputs(self) -> int:
        """See `Linear`."""
        return self._base.outputs

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`."""
        return activated(self.apply(x, block), activation, wants, block)


@dataclass(frozen=True)
class Dense:
    """A weight with 16 or 32 bits."""

    weight: Tensor
    """[outputs, inputs]"""
    bias: Tensor | None = None
    wants: ActivationScheme | None = None
    site: Site | None = field(default=None, kw_only=True)

    @property
    def outputs(self) -> int:
        """See `Linear`."""
        return self.weight.shape[0]

    @property
    def nbytes(self) -> int:
        """See `Linear`."""
        return total_bytes(self.weight, self.bias)

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._matmul(x, self.bias, block)

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._matmul(x, None, block)

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`."""
        if wants is not None or are_alone(self.weight, block):
            return activated(self.apply(x, block), activation, wants, block)
        return Activations(self._matmul(x, self.bias, block, activation))

    def split_k(self, x: Activations) -> Tensor:
        """Computes `matmul`, or leaves its split-K partials, float32 [splits, T, outputs], where that is faster."""
        splits = 1 if x.is_one_before_norm else kernels.linear_splits(x.x, self.weight)
        if splits == 1:
            return self.matmul(x)
        out = x.x.new_empty(splits, x.x.shape[0], self.outputs, dtype=torch.float32)
        kernels.linear_split_k(x.x, self.weight, out)
        return out

    def add(self, x: Activations, residual: Tensor) -> Tensor:
        """Adds `apply` of one token to `residual` [1, outputs] in place, and returns that."""
        kernels.token_linear(x.x, self.weight, self.bias, residual, adds=True)
        return residual

    def _matmul(self, x: Activations, bias: Tensor | None, block: int | None, activation: str | None = None) -> Tensor:
        if block is not None or not x.is_one_before_norm:
            return in_blocks((x.x,), block, lambda x: dense_matmul(x, self.weight, bias, activation))
        read, norm, normalised = x.before_norm()
        out = read.new_empty(1, self.outputs // (1 if activation is None else 2))
        prologue = kernels.NormPrologue(norm.weight, norm.eps, normalised)
        kernels.token_linear(read, self.weight, bias, out, activation, prologue)
        return out


@dataclass(frozen=True)
class Split:
    """Several matrices in different formats that read one tensor; their outputs are concatenated."""

    parts: Sequence[Linear]
    bias: Tensor | None = None
    """The bias of all of them; biases of the parts do not count."""
    site: Site | None = field(default=None, kw_only=True)

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Linear`: the scheme of the first part that has one."""
        return next((part.wants for part in self.parts if part.wants is not None), None)

    @property
    def outputs(self) -> int:
        """See `Linear`."""
        return sum(part.outputs for part in self.parts)

    @property
    def nbytes(self) -> int:
        """See `Linear`."""
        return sum(part.nbytes for part in self.parts) + total_bytes(self.bias)

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        out = self.matmul(x, block)
        return out if self.bias is None else out.add_(self.bias)

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        made = x.made_for(self.wants)
        return torch.cat([part.matmul(made, block) for part in self.parts], dim=-1)

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`."""
        return activated(self.apply(x, block), activation, wants, block)


def dense_matmul(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> Tensor:
    """Multiplies by a 16-bit matrix; a gated `activation` may follow. On CUDA, operators of ours compute few tokens:
    they read the matrix faster than cuBLAS.
    """
    if x.is_cuda and x.shape[0] <= kernels.SMALL_BATCH:
        out = x.new_empty(x.shape[0], weight.shape[0] // (1 if activation is None else 2))
        kernels.linear(x, weight, bias, out, activation)
        return out
    product = functional.linear(x, weight, bias)
    if activation is None:
        return product
    out = x.new_empty(x.shape[0], weight.shape[0] // 2)
    kernels.act_and_mul(product, activation, out)
    return out


def are_alone(tensor: Tensor, block: int | None) -> bool:
    """Whether elementwise operators must compute each token by itself: where results must not depend on the other
    tokens (`block`, as in `Linear.apply`), and `tensor` is on a CPU. There torch computes the end of a tensor, and of
    each thread's share of it, by other instructions, whose last bits differ. For one token alone these places never
    change.
    """
    return block is not None and not tensor.is_cuda


def each_alone(block: int | None, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Returns the tensors, which have a row for each token, whole, or token by token where `are_alone`."""
    if not are_alone(tensors[0], block):
        return (tensors,)
    return zip(*(tensor.split(1) for tensor in tensors), strict=True)


def activate(x: Tensor, activation: str, block: int | None) -> None:
    """Applies the activation of this name in place. `block` has the meaning of `Linear.apply`."""
    for (part,) in each_alone(block, x):
        kernels.activate(part, activation, part)


def activated(gate_up: Tensor, activation: str, wants: ActivationScheme | None, block: int | None) -> Activations:
    """Computes `act_and_mul` of [T, outputs], quantised as the next matrix wants it. `block` has the meaning of
    `Linear.apply`.
    """
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    if are_alone(gate_up, block):
        for token, place in each_alone(block, gate_up, out):
            kernels.act_and_mul(token, activation, place)
        return Activations(out).made_for(wants)
    made, room = Activations.to_fill(out, wants)
    kernels.act_and_mul(gate_up, activation, made.x, room)
    return made


def in_blocks(inputs: Sequence[Tensor], block: int | None, compute: Callable[..., Tensor]) -> Tensor:
    """Computes tensors that have a row for each token: at once, or `block` tokens at a time, the last ones padded."""
    if block is None:
        return compute(*inputs)
    tokens = inputs[0].shape[0]
    split = [padded(each, -tokens % block).split(block) for each in inputs]
    return torch.cat([compute(*parts) for parts in zip(*split, strict=True)])[:tokens]


def total_bytes(*tensors: Tensor | None) -> int:
    """Returns the bytes of the tensors that are not None."""
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
