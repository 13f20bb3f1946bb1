"""What operators say of shapes that do not fit."""

from torch import Tensor


def shapes_error(operator: str, **tensors: Tensor | None) -> ValueError:
    """Names the operator, and the shape of each of its tensors that there is."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    return ValueError(f"{operator}: shapes do not fit: {shapes}")
