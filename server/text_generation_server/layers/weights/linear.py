"""Matrices of linear layers, in the variants in which they run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels
from text_generation_kernels.matmul.skinny_linear import MAX_TOKENS

from .activations import Activations, ActivationScheme, padded


class Linear(Protocol):
    """`x @ weight.T + bias`, or a rank's part of it, whatever the weight is stored as."""

    @property
    def bias(self) -> Tensor | None:
        """[outputs]"""
        ...

    @property
    def wants(self) -> ActivationScheme | None:
        """How inputs are best quantised where they are made; None: not at all."""
        ...

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        ...

    @property
    def nbytes(self) -> int:
        """Of everything that it holds."""
        ...

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """[T, inputs] to [T, outputs].

        With `block`, products are made of so many tokens at a time, the last ones padded: libraries choose their way
        of adding up by the number of tokens, so only then does a token's result not depend on the others.
        """
        ...

    def product(self, x: Activations, block: int | None = None) -> Tensor:
        """The same without the bias, for callers that add it elsewhere."""
        ...

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """`apply`, then `act_and_mul`: [T, inputs] to [T, outputs / 2], best in the form that the next matrix wants."""
        ...


@dataclass(frozen=True)
class Dense:
    """A weight with 16 or 32 bits."""

    weight: Tensor
    """[outputs, inputs]"""
    bias: Tensor | None = None
    wants: ActivationScheme | None = None

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
        return self._product(x, self.bias, block)

    def product(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._product(x, None, block)

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`."""
        if wants is not None or are_alone(self.weight, block):
            return activated(self.apply(x, block), activation, wants, block)
        return Activations(self._product(x, self.bias, block, activation))

    def in_parts(self, x: Activations) -> Tensor:
        """`product`, or float32 [parts, T, outputs] that are yet to be added up, where that is faster."""
        parts = 1 if x.is_one_before_norm else kernels.linear_splits(x.x, self.weight)
        if parts == 1:
            return self.product(x)
        out = x.x.new_empty(parts, x.x.shape[0], self.outputs, dtype=torch.float32)
        kernels.linear_split_k(x.x, self.weight, out)
        return out

    def add(self, x: Activations, total: Tensor) -> Tensor:
        """`apply` of one token, added to `total` [1, outputs] in place. Returns that."""
        kernels.token_linear(x.x, self.weight, self.bias, total, None, None, 0.0, None, True)
        return total

    def _product(self, x: Activations, bias: Tensor | None, block: int | None, activation: str | None = None) -> Tensor:
        if block is not None or not x.is_one_before_norm:
            return in_blocks((x.x,), block, lambda x: dense_product(x, self.weight, bias, activation))
        total, norm, normalised = x.before_norm()
        out = total.new_empty(1, self.outputs // (1 if activation is None else 2))
        kernels.token_linear(total, self.weight, bias, out, activation, norm.weight, norm.eps, normalised)
        return out


@dataclass(frozen=True)
class Split:
    """Several matrices that read one tensor and differ in how they are stored: their outputs stand side by side."""

    parts: Sequence[Linear]
    bias: Tensor | None = None
    """Of all of them; those of the parts do not count."""

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Linear`: what the first part wants that wants anything."""
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
        out = self.product(x, block)
        return out if self.bias is None else out.add_(self.bias)

    def product(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        made = x.made_for(self.wants)
        return torch.cat([part.product(made, block) for part in self.parts], dim=-1)

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`."""
        return activated(self.apply(x, block), activation, wants, block)


def dense_product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> Tensor:
    """On CUDA, few tokens have operators of ours, which read the matrix faster. `activation`: a gated one behind."""
    if x.is_cuda and x.shape[0] <= MAX_TOKENS:
        out = x.new_empty(x.shape[0], weight.shape[0] // (1 if activation is None else 2))
        few = kernels.token_linear if x.shape[0] == 1 else kernels.skinny_linear
        few(x, weight, bias, out, activation)
        return out
    product = functional.linear(x, weight, bias)
    if activation is None:
        return product
    out = product.new_empty(x.shape[0], weight.shape[0] // 2)
    kernels.act_and_mul(product, activation, out)
    return out


def are_alone(tensor: Tensor, block: int | None) -> bool:
    """Whether activations are computed of each token by itself: where results must not depend on the other tokens
    (`block`, as in `Linear.apply`), and `tensor` is on a CPU. There torch computes the end of a tensor, and of each
    thread's part of it, by other code than the rest, with other last bits. Of a token alone these are always the same
    places.
    """
    return block is not None and not tensor.is_cuda


def each_alone(block: int | None, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The tensors, which have a row for each token, or, where `are_alone`, those of one token after the other."""
    if not are_alone(tensors[0], block):
        return (tensors,)
    return zip(*(tensor.split(1) for tensor in tensors), strict=True)


def activate(x: Tensor, activation: str, block: int | None) -> None:
    """The operator of this name, in place. `block` as in `Linear.apply`."""
    for (part,) in each_alone(block, x):
        kernels.activate(part, activation, part)


def activated(product: Tensor, activation: str, wants: ActivationScheme | None, block: int | None) -> Activations:
    """`act_and_mul` of [T, outputs], in the form that the next matrix wants. `block` as in `Linear.apply`."""
    if are_alone(product, block):
        out = product.new_empty(product.shape[0], product.shape[1] // 2)
        for token, place in each_alone(block, product, out):
            kernels.act_and_mul(token, activation, place)
        return Activations(out).made_for(wants)
    made, room = Activations.to_fill(product.new_empty(product.shape[0], product.shape[1] // 2), wants)
    kernels.act_and_mul(product, activation, made.x, *room)
    return made


def in_blocks(inputs: Sequence[Tensor], block: int | None, product: Callable[..., Tensor]) -> Tensor:
    """`product` of tensors that have a row for each token: at once, or of `block` tokens at a time."""
    if block is None:
        return product(*inputs)
    tokens = inputs[0].shape[0]
    split = [padded(each, -tokens % block).split(block) for each in inputs]
    return torch.cat([product(*parts) for parts in zip(*split, strict=True)])[:tokens]


def total_bytes(*tensors: Tensor | None) -> int:
    """Of those that are there."""
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
