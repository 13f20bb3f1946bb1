"""Fusion of a sublayer's last GEMM with what follows it: the all-reduce, the residual add, or the norm."""

from dataclasses import dataclass

from torch import Tensor

from ...distributed import PendingAllReduce, TensorParallelGroup
from ..weights import Activations, AdaptedDense, Dense, Linear, W8A8Linear
from .state import InferState

SublayerOutput = Tensor | PendingAllReduce
"""What a sublayer adds to the residual stream, in one of four states:

- a rank's partial sums [N, hidden], which an all-reduce has yet to add up;
- that all-reduce, which has begun;
- the residual stream itself, where the GEMM has added its result to it;
- split-K partials, float32 [splits, N, hidden], which only a group of one rank has.
"""


@dataclass(frozen=True)
class OutputFusion:
    """What the last GEMM of a sublayer, whose matrix is row parallel, may be fused with."""

    group: TensorParallelGroup
    """The ranks that share the matrix. The GEMV of a single token may send its partial sums to them by itself."""
    residual: Tensor | None = None
    """[1, hidden], the residual stream, where the GEMV may add to it."""
    takes_partials: bool = False
    """Whether the next `AddNorm` adds up split-K partials at no cost."""

    def apply(self, matrix: Linear, x: Activations, state: InferState) -> SublayerOutput:
        """Multiplies `x` [N, inputs] by `matrix`, fused as this matrix and this step allow."""
        if state.deterministic:
            return matrix.apply(x, state.linear_block)
        if isinstance(matrix, W8A8Linear) and self.takes_partials:
            return matrix.split_k(x)
        if isinstance(matrix, Dense | AdaptedDense):
            if self.residual is not None:
                return matrix.add(x, self.residual)
            if self.takes_partials and matrix.bias is None:
                return matrix.split_k(x)
        if not isinstance(matrix, Dense):
            return matrix.apply(x)
        begun = self.group.begin_gemv_all_reduce(x.x, matrix.weight, matrix.bias)
        return matrix.apply(x) if begun is None else begun
