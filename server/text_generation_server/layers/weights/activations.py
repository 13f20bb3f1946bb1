"""Activations as inputs of GEMMs, quantised as the matrix wants them."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels


@dataclass(frozen=True, eq=False)
class ActivationScheme:
    """How activations are quantised to 8 bits: symmetrically, with scales that multiply the codes."""

    dtype: torch.dtype
    """float8_e4m3fn or int8."""
    group: int = 0
    """Inputs that share a scale; 0: all inputs of a token share one."""
    static: Tensor | None = None
    """[1] float32, the checkpoint's one scale for all activations (static quantisation). None: scales are measured
    (dynamic quantisation)."""
    bound: float = 0.0
    """Upper bound of a token's largest value when its scale is measured; 0: none."""

    def equals(self, other: "ActivationScheme | None") -> bool:
        """Whether inputs that are quantised for one serve the other."""
        if other is None or (self.dtype, self.group, self.bound) != (other.dtype, other.group, other.bound):
            return False
        return self.static is other.static

    def room(self, x: Tensor) -> kernels.Quantised:
        """Allocates codes and float32 scales of `x` [T, inputs], for an operator to fill."""
        scales = (x.shape[0],) if not self.group else (x.shape[0], -(-x.shape[1] // self.group))
        codes = x.new_empty(x.shape, dtype=self.dtype)
        return kernels.Quantised(codes, x.new_empty(scales, dtype=torch.float32), self.group, self.static, self.bound)


@dataclass(frozen=True)
class RmsNorm:
    """An RMS norm of activations, which a GEMV may apply in its prologue."""

    weight: Tensor
    """[inputs]"""
    eps: float


class Activations:
    """The input of a GEMM."""

    def __init__(
        self,
        x: Tensor,
        eight: Tensor | None = None,
        scale: Tensor | None = None,
        scheme: ActivationScheme | None = None,
        norm: RmsNorm | None = None,
    ) -> None:
        """`x` [T, inputs] has 16 or 32 bits. `eight` [T, inputs] of `scheme.dtype` and `scale` float32 [T] or [T,
        inputs / scheme.group] are `x` quantised by `scheme`. `norm` is a norm that `x` has yet to pass: whoever reads
        `x` first applies it, and nobody may change `x` before.
        """
        self._x = x
        self._norm = norm
        self.eight = eight
        self.scale = scale
        self.scheme = scheme

    @property
    def x(self) -> Tensor:
        """The activations [T, inputs] with 16 or 32 bits, normalised."""
        if self._norm is not None:
            x, norm, out = self.before_norm()
            kernels.rms_norm(x, norm.weight, norm.eps, out)
        return self._x

    @property
    def is_one_before_norm(self) -> bool:
        """Whether this is one token whose norm its GEMV may apply."""
        return self._norm is not None and self._x.shape[0] == 1

    def before_norm(self) -> tuple[Tensor, RmsNorm, Tensor]:
        """Returns, to whoever applies the norm, its input, the norm, and the tensor for its result, which is `x` from
        then on. Raises ValueError where no norm is left to apply.
        """
        if self._norm is None:
            raise ValueError("these activations are normalised already")
        x, norm = self._x, self._norm
        self._x, self._norm = torch.empty_like(x), None
        return x, norm, self._x

    @classmethod
    def to_fill(cls, x: Tensor, wants: ActivationScheme | None) -> tuple["Activations", kernels.Quantised]:
        """Prepares activations that an operator is about to write to `x`, and quantised where a matrix `wants` that.
        Returns them, and where the operator writes the latter.
        """
        if wants is None:
            return cls(x), kernels.NOT_QUANTISED
        room = wants.room(x)
        return cls(x, room.codes, room.scale, wants), room

    def made_for(self, wants: ActivationScheme | None) -> "Activations":
        """Returns the same activations, quantised as a matrix wants them."""
        if wants is None or (self.eight is not None and wants.equals(self.scheme)):
            return self
        made, room = Activations.to_fill(self.x, wants)
        kernels.quantise_rows(self.x, room)
        return made

    def eight_bit(self, scheme: ActivationScheme) -> tuple[Tensor, Tensor]:
        """Returns codes and scales by `scheme`, and quantises where it has none."""
        made = self.made_for(scheme)
        if made.eight is None or made.scale is None:
            raise ValueError("8-bit activations are without codes or scales")
        return made.eight, made.scale

    def select(self, tokens: Tensor) -> "Activations":
        """Selects tokens by their int64 indices."""
        x = self.x.index_select(0, tokens)
        if self.eight is None or self.scale is None:
            return Activations(x)
        eight = _bytes(self.eight).index_select(0, tokens).view(self.eight.dtype)
        return Activations(x, eight, self.scale.index_select(0, tokens), self.scheme)


def padded(tensor: Tensor, rows: int) -> Tensor:
    """Returns `tensor` followed by `rows` rows of zeros."""
    plain = _bytes(tensor)
    return functional.pad(plain, (0, 0) * (plain.dim() - 1) + (0, rows)).view(tensor.dtype)


def _bytes(tensor: Tensor) -> Tensor:
    """Views 8-bit floats as bytes, because few operators of torch support them."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
