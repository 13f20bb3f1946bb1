"""Act-order: checkpoints that were quantised in the order of the inputs' activations say for each input which group it
is in (`g_idx`). Sorting the columns by group makes groups contiguous again (as ExLlama does).
"""

import torch
from torch import Tensor

from .shard import MatrixShard, Span

_INTEGERS = (torch.int32, torch.int64)


def input_order(shard: MatrixShard, suffix: str, group_size: int) -> Tensor | None:
    """Returns [inputs] int64, the input of each column when columns are sorted by group. None: they are already sorted.

    Raises ModelFilesError where a group does not have `group_size` inputs.
    """
    if not shard.has(suffix):
        return None
    inputs = shard.shape[1]
    span = Span.of(inputs, group_size, (0, inputs))
    stored = shard.read(suffix, (inputs,), _INTEGERS)
    sorted_groups = torch.arange(inputs, device=stored.device) // span.size
    if torch.equal(stored.long(), sorted_groups) or bool((stored == -1).all()):
        return None
    groups, order = torch.sort(stored.long(), stable=True)
    if not torch.equal(groups, sorted_groups):
        raise shard.error(suffix, f"does not put {span.size} inputs into each of {span.count} groups")
    return order


def places(shard: MatrixShard, order: Tensor | None) -> tuple[int, int]:
    """Returns the range in which the columns of `shard` are stored: with act-order, all columns."""
    return shard.columns if order is None else (0, shard.shape[1])
