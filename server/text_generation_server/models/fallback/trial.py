"""Trials of small copies of modules, which show what a module computes."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

HIDDEN, INNER = 8, 6


def random_matrices(shapes: Mapping[str, tuple[int, int]]) -> dict[str, Tensor]:
    """Returns matrices for `outcome`, equal in every call."""
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@torch.no_grad()
def outcome(module: nn.Module, matrices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """Runs a copy of `module` with these matrices, [outputs, inputs] by the name of a child, on some tokens. Returns
    the tokens and the result, [tokens, HIDDEN], or None where the module cannot be called so.
    """
    small = copy.deepcopy(module)
    # This comes before `to_empty`: matrices of the model's size would take seconds to fill.
    for name, matrix in matrices.items():
        setattr(small, name, nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, device="meta"))
    small.to_empty(device="cpu")
    for parameter in small.parameters():
        parameter.fill_(0.5)
    for name, matrix in matrices.items():
        small.get_parameter(f"{name}.weight").copy_(matrix)
    # The tokens have all magnitudes, so that they reach the bounds of activations.
    x = torch.randn(1, 16, HIDDEN, generator=torch.Generator().manual_seed(1)) * torch.logspace(-1, 2, 16)[:, None]
    try:
        result = small.float()(x)
    except (TypeError, RuntimeError, ValueError, IndexError, AttributeError):
        return None
    is_fit = isinstance(result, Tensor) and result.shape == x.shape
    return (x[0], result[0]) if is_fit else None
