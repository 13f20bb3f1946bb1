"""Activations as inputs of matrices, in the number format that a matrix wants."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels


@dataclass(frozen=True, eq=False)
class ActivationScheme:
    """How inputs are quantised to 8 bits. Symmetric, with a scale that multiplies the codes."""

    dtype: torch.dtype
    """float8_e4m3fn or int8."""
    group: int = 0
    """Inputs that share a scale; 0: all inputs of a token."""
    static: Tensor | None = None
    """[1] float32: one scale for everything, which the checkpoint has, instead of one that is measured."""
    bound: float = 0.0
    """The largest number of a token is taken as at most this when its scale is measured; 0: as it is."""

    def equals(self, other: "ActivationScheme | None") -> bool:
        """Whether inputs that are quantised for one serve the other."""
        if other is None or (self.dtype, self.group, self.bound) != (other.dtype, other.group, other.bound):
            return False
        return self.static is other.static

    def room(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What an operator fills: codes and float32 scales of `x` [T, inputs]."""
        scales = (x.shape[0],) if not self.group else (x.shape[0], -(-x.shape[1] // self.group))
        return x.new_empty(x.shape, dtype=self.dtype), x.new_empty(scales, dtype=torch.float32)


@dataclass(frozen=True)
class RmsNorm:
    """A root mean square normalisation of inputs, which a product may apply itself."""

    weight: Tensor
    """[inputs]"""
    eps: float


class Activations:
    """What a matrix reads."""

    def __init__(
        self,
        x: Tensor,
        eight: Tensor | None = None,
        scale: Tensor | None = None,
        scheme: ActivationScheme | None = None,
        norm: RmsNorm | None = None,
    ) -> None:
        """`x` [T, inputs], 16 or 32 bits. With `eight` [T, inputs] of `scheme.dtype` and `scale` float32 [T] or
        [T, inputs / scheme.group]: `x` in 8 bits, as `scheme` says. `norm` is one that `x` has yet to pass: it is
        applied by the first who reads it, and must not change before that.
        """
        self._x = x
        self._norm = norm
        self.eight = eight
        self.scale = scale
        self.scheme = scheme

    @property
    def x(self) -> Tensor:
        """[T, inputs], 16 or 32 bits."""
        if self._norm is not None:
            x, norm, out = self.before_norm()
            kernels.rms_norm(x, norm.weight, norm.eps, out)
        return self._x

    @property
    def is_one_before_norm(self) -> bool:
        """Whether this is one token that its product may normalise."""
        return self._norm is not None and self._x.shape[0] == 1

    def before_norm(self) -> tuple[Tensor, RmsNorm, Tensor]:
        """For who applies the norm: what it reads, the norm, and where it must leave the result, which is `x` from then
        on. Raises ValueError where there is no norm, or no more.
        """
        if self._norm is None:
            raise ValueError("these activations are normalised already")
        x, norm = self._x, self._norm
        self._x, self._norm = torch.empty_like(x), None
        return x, norm, self._x

    @classmethod
    def to_fill(cls, x: Tensor, wants: ActivationScheme | None) -> tuple["Activations", tuple[Any, ...]]:
        """For an operator that is about to write to `x`, and to the 8-bit form where one is wanted: the result, and
        the last arguments of the operator.
        """
        if wants is None:
            return cls(x), ()
        eight, scale = wants.room(x)
        return cls(x, eight, scale, wants), (eight, scale, wants.group, wants.static, wants.bound)

    def made_for(self, wants: ActivationScheme | None) -> "Activations":
        """The same with the 8-bit form that a matrix wants."""
        if wants is None or (self.eight is not None and wants.equals(self.scheme)):
            return self
        made, room = Activations.to_fill(self.x, wants)
        kernels.quantise_rows(self.x, *room)
        return made

    def eight_bit(self, scheme: ActivationScheme) -> tuple[Tensor, Tensor]:
        """Codes and scales by `scheme`: those that there are, or new ones."""
        made = self.made_for(scheme)
        if made.eight is None or made.scale is None:
            raise ValueError("8-bit activations are without codes or scales")
        return made.eight, made.scale

    def select(self, tokens: Tensor) -> "Activations":
        """Some of the tokens, by their int64 indices."""
        x = self.x.index_select(0, tokens)
        if self.eight is None or self.scale is None:
            return Activations(x)
        eight = _bytes(self.eight).index_select(0, tokens).view(self.eight.dtype)
        return Activations(x, eight, self.scale.index_select(0, tokens), self.scheme)


def padded(tensor: Tensor, rows: int) -> Tensor:
    """`tensor` with so many rows of zeros behind it."""
    plain = _bytes(tensor)
    return functional.pad(plain, (0, 0) * (plain.dim() - 1) + (0, rows)).view(tensor.dtype)


def _bytes(tensor: Tensor) -> Tensor:
    """Few operators of torch know 8-bit floats."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
