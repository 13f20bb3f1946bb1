"""What a dense feed-forward network holds: its inner dimension is shared among the ranks."""

from dataclasses import dataclass

from ...config.spec import DenseSpec
from .blocks import RowBlock
from .checkpoint import Checkpoint
from .linear import Linear
from .loading import column_parallel, row_parallel
from .split import even_span


@dataclass(frozen=True)
class DenseWeights:
    """Of one layer."""

    first: Linear
    """Column parallel: gate rows, if there are any, then up rows."""
    down: Linear
    """Row parallel."""


def load_dense(checkpoint: Checkpoint, layer: int, spec: DenseSpec) -> DenseWeights:
    """Reads this rank's part. Raises ModelFilesError."""
    names, hidden, inner = checkpoint.names, checkpoint.spec.hidden_size, spec.inner
    stored = (names.gate, names.up, names.down) if spec.gated else (names.up, names.down)
    if spec.gated and names.gate_up is not None:
        stored = (names.gate_up, names.down)
    align = checkpoint.schemes.align(*(checkpoint.inside(layer, name) for name in stored))
    start, stop = even_span(inner, checkpoint.group.rank, checkpoint.group.world_size, align)
    if spec.gated and names.gate_up is not None:
        halves = ((start, stop), (inner + start, inner + stop))
        blocks = [RowBlock(checkpoint.inside(layer, names.gate_up), 2 * inner, halves)]
    else:
        blocks = [RowBlock(checkpoint.inside(layer, name), inner, ((start, stop),)) for name in stored[:-1]]
    first = column_parallel(checkpoint, blocks, hidden, spec.in_bias)
    down = row_parallel(
        checkpoint,
        checkpoint.inside(layer, names.down),
        (hidden, inner),
        (start, stop),
        spec.out_bias and checkpoint.is_first,
    )
    return DenseWeights(first, down)
