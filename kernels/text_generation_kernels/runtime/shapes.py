"""Errors for shapes that do not fit, and tile widths of heads."""

from torch import Tensor


def shapes_error(operator: str, **tensors: Tensor | None) -> ValueError:
    """Names the operator and the shape of each tensor that is given."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    return ValueError(f"{operator}: shapes do not fit: {shapes}")


def padded_head_dim(head_dim: int, in_words: bool = False) -> int:
    """Columns of a tile: a power of two, at least what an MMA instruction takes; `in_words`: of four codes each."""
    return max(64 if in_words else 16, 1 << (head_dim - 1).bit_length())
