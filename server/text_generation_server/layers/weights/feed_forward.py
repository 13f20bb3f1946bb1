"""Weights of a dense feed-forward network. Each rank has a shard of the inner dimension."""

from dataclasses import dataclass, replace

from torch import Tensor

from ...config.spec import DenseSpec
from .blocks import RowBlock, ranges
from .checkpoint import Checkpoint
from .formats import MatrixShard
from .linear import Linear
from .loading import column_parallel, row_parallel
from .readers import reader_of
from .split import even_span


@dataclass(frozen=True)
class DenseWeights:
    """The weights of one layer."""

    first: Linear
    """Column parallel: gate rows, if the network is gated, then up rows."""
    down: Linear
    """Down projection, row parallel."""
    act_scales: Tensor | None = None
    """[inputs of `down`] float32, by which AWQ has multiplied the columns of `down`: activations are divided by it."""


def load_dense(checkpoint: Checkpoint, layer: int, spec: DenseSpec) -> DenseWeights:
    """Reads this rank's shard. Raises ModelFilesError."""
    names, hidden, inner = checkpoint.names, checkpoint.spec.hidden_size, spec.inner
    stored = (names.gate, names.up) if spec.gated else (names.up,)
    if spec.gated and names.gate_up is not None:
        stored = (names.gate_up,)
    align = checkpoint.schemes.align(*(checkpoint.inside(layer, name) for name in (*stored, names.down)))
    start, stop = even_span(inner, checkpoint.group.rank, checkpoint.group.world_size, align)
    down_name, down_shape = checkpoint.inside(layer, names.down), (hidden, inner)
    order = reader_of(checkpoint, down_name).input_order(down_name, down_shape)
    # Where the second matrix has its inputs in another order (act-order), the first one makes them in that order.
    rows = ((start, stop),) if order is None else ranges(order[start:stop])
    if spec.gated and names.gate_up is not None:
        halves = (*rows, *((inner + first, inner + last) for first, last in rows))
        blocks = [RowBlock(checkpoint.inside(layer, names.gate_up), 2 * inner, halves)]
    else:
        blocks = [RowBlock(checkpoint.inside(layer, name), inner, rows) for name in stored]
    first = column_parallel(checkpoint, blocks, hidden, spec.in_bias)
    down = row_parallel(
        checkpoint,
        down_name,
        down_shape,
        (start, stop),
        spec.out_bias and checkpoint.is_first,
        in_order=order is not None,
    )
    scales = None if spec.gated else _act_scales(checkpoint, layer, inner, (start, stop))
    if scales is not None and down.site is not None:
        down = replace(down, site=replace(down.site, input_scales=scales))
    return DenseWeights(first, down, scales)


def _act_scales(checkpoint: Checkpoint, layer: int, inner: int, part: tuple[int, int]) -> Tensor | None:
    """Reads the scales of AutoAWQ for an activation without a gate, which cannot be folded into the first matrix."""
    module = MatrixShard.whole(checkpoint.source, checkpoint.inside(layer, checkpoint.names.activation), (1, inner))
    if not module.has("scales"):
        return None
    scales = module.read_scales("scales", (inner,), part)
    if not bool(scales.all()):
        raise module.error("scales", "holds zeros, by which values would be divided")
    return scales
