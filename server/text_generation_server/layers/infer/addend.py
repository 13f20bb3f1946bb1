"""What a part of a layer adds to the running sum, and the ranks have parts of."""

from torch import Tensor

from ...distributed import SumUnderWay, TensorParallelGroup
from ..weights import Activations, Dense, Linear
from .state import InferState

Addend = Tensor | SumUnderWay
"""A rank's part, which is still to be summed over the ranks, or that sum, which has begun."""


def addend_of(matrix: Linear, x: Activations, state: InferState, group: TensorParallelGroup) -> Addend:
    """The product with a row-parallel matrix. That of a single token sends its results to the ranks itself."""
    if isinstance(matrix, Dense) and not state.deterministic:
        begun = group.begin_sum_of_product(x.x, matrix.weight, matrix.bias)
        if begun is not None:
            return begun
    return matrix.apply(x, state.linear_block)
