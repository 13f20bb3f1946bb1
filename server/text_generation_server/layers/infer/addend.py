"""Addend of a sublayer to the residual stream, and where its last GEMM leaves it."""

from dataclasses import dataclass

from torch import Tensor

from ...distributed import PendingAllReduce, TensorParallelGroup
from ..weights import Activations, Dense, Linear, W8A8Linear
from .state import InferState

Addend = Tensor | PendingAllReduce
"""A rank's part [N, hidden], which is still to be summed over the ranks, or that sum, which has begun. The running sum
itself, where the addend is in it already. Float32 [parts, N, hidden] of one rank alone, yet to be added up.
"""


@dataclass(frozen=True)
class Destination:
    """Where the product with a row-parallel matrix may leave its results, so that less is left to do behind it."""

    group: TensorParallelGroup
    """Of the ranks that have parts. To these the product of a single token sends its results itself."""
    total: Tensor | None = None
    """[1, hidden], the running sum, where a product may add to it."""
    takes_parts: bool = False
    """Whether what reads the sum next adds up parts at no cost (`Junction.takes_parts`)."""

    def product(self, matrix: Linear, x: Activations, state: InferState) -> Addend:
        """Of `x` [N, inputs] with `matrix`."""
        if state.deterministic:
            return matrix.apply(x, state.linear_block)
        if isinstance(matrix, W8A8Linear) and self.takes_parts:
            return matrix.in_parts(x)
        if isinstance(matrix, Dense):
            if self.total is not None:
                return matrix.add(x, self.total)
            if self.takes_parts and matrix.bias is None:
                return matrix.in_parts(x)
            if (begun := self.group.begin_gemv_all_reduce(x.x, matrix.weight, matrix.bias)) is not None:
                return begun
        return matrix.apply(x)
