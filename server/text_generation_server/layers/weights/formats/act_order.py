"""Groups that are no neighbours: checkpoints that were quantised in the order of how much inputs matter say for each
input which group it is in (`g_idx`). Columns sorted by group make groups whole again (as ExLlama does).
"""

import torch
from torch import Tensor

from .shard import MatrixShard, Span

_INTEGERS = (torch.int32, torch.int64)


def input_order(part: MatrixShard, suffix: str, group_size: int) -> Tensor | None:
    """[inputs] int64: the input of each column when columns are sorted by group. None: they are already.

    Raises ModelFilesError where groups are not of `group_size` inputs.
    """
    if not part.has(suffix):
        return None
    inputs = part.shape[1]
    span = Span.of(inputs, group_size, (0, inputs))
    stored = part.read(suffix, (inputs,), _INTEGERS)
    sorted_groups = torch.arange(inputs, device=stored.device) // span.size
    if torch.equal(stored.long(), sorted_groups) or bool((stored == -1).all()):
        return None
    groups, order = torch.sort(stored.long(), stable=True)
    if not torch.equal(groups, sorted_groups):
        raise part.error(suffix, f"does not put {span.size} inputs into each of {span.count} groups")
    return order


def places(part: MatrixShard, order: Tensor | None) -> tuple[int, int]:
    """Where the columns of `part` are stored: anywhere, if they have an order of their own."""
    return part.columns if order is None else (0, part.shape[1])
