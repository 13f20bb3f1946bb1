"""Errors for shapes that do not fit, and tile widths of heads."""

from torch import Tensor


def shapes_error(operator: str, **tensors: Tensor | None) -> ValueError:
    """Names the operator and the shape of each tensor that is given."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    return ValueError(f"{operator}: shapes do not fit: {shapes}")


def padded_head_dim(head_dim: int, in_word: int = 1) -> int:
    """Columns of a tile: a power of two, at least what an MMA instruction takes, which are so many words of `in_word`
    codes where those have GEMMs of their own.
    """
    return max(16 * in_word, 1 << (head_dim - 1).bit_length())
