"""16-bit experts, from every layout: as they are, or dequantised."""

from collections.abc import Callable

import torch
from torch import Tensor

from ....config.names import ExpertLayout
from ....weights import Slice
from ..blocks import RowBlock
from ..mxfp4 import BLOCK, dequantise
from ..readers import reader_of
from .shard import ExpertShard, Target, shared_experts


def read_plain(part: ExpertShard) -> tuple[Tensor, Tensor]:
    """Gate and up rows `[all, 2 * inner, hidden]`, without a gate `[all, inner, hidden]`, and `[all, hidden, inner]`.
    Raises ModelFilesError.
    """
    spec, inner, source = part.spec, part.inner, part.checkpoint.source
    routed_experts = len(part.experts)
    total = routed_experts + shared_experts(spec)
    gate_up = source.empty((total, (2 if spec.gated else 1) * inner, part.hidden))
    down = source.empty((total, part.hidden, inner))
    routed, shared = (
        (*gate_up[experts].split(inner, dim=1), down[experts])
        for experts in (slice(routed_experts), slice(routed_experts, None))
    )
    _READERS[part.checkpoint.names.experts_layout](part, routed)
    _read_shared(part, shared)
    return gate_up, down


def _each(part: ExpertShard, target: Target) -> None:
    """Matrices of each expert by themselves."""
    for place, expert in enumerate(part.experts):
        _read_network(part, tuple(part.name(name, expert) for name in _names(part)), part.spec.inner, place, target)


def _names(part: ExpertShard) -> tuple[str, ...]:
    return part.checkpoint.names.experts(part.spec.gated)


def _read_network(
    part: ExpertShard, names: tuple[str, ...], inner: int, expert: int, target: Target, first: int = 0
) -> None:
    """Fills one expert with this rank's part of a network of `inner`, from its row `first` on.

    Gate and up of one name are one matrix, gate first.
    """
    start, stop = part.span(inner, first)
    behind = inner if names[0] == names[1] else 0
    for half, (name, each) in enumerate(zip(names[:-1], target[:-1], strict=True)):
        rows = RowBlock(name, inner + behind, ((half * behind + start, half * behind + stop),))
        each[expert, : stop - start] = reader_of(part.checkpoint, name).dense_rows(rows, part.hidden)
        each[expert, stop - start :] = 0.0
    down, reader = target[-1], reader_of(part.checkpoint, names[-1])
    down[expert, :, : stop - start] = reader.dense_columns(names[-1], (part.hidden, inner), (start, stop))
    down[expert, :, stop - start :] = 0.0


def _read_shared(part: ExpertShard, target: Target) -> None:
    """The shared network, cut into experts."""
    spec = part.spec
    stored = tuple(part.name(name) for name in part.checkpoint.names.shared(spec.gated))
    for index in range(shared_experts(spec)):
        _read_network(part, stored, spec.shared_inner, index, target, first=index * spec.inner)


def _stacked(part: ExpertShard, target: Target) -> None:
    """`[experts, 2 * inner, hidden]` and `[experts, hidden, inner]`."""
    source, spec = part.checkpoint.source, part.spec
    # Some files name them as tensors, others as matrices.
    first, down = (name if source.has(name) else f"{name}.weight" for name in map(part.name, _names(part)[::2]))
    gate_up = source.read(first, (spec.experts, 2 * spec.inner, part.hidden), part.cut())
    gate, up = gate_up.chunk(2, dim=1)
    target[0].copy_(gate[:, part.start : part.stop])
    target[1].copy_(up[:, part.start : part.stop])
    shape, columns = (spec.experts, part.hidden, spec.inner), part.cut(Slice(2, part.start, part.stop))
    target[2].copy_(source.read(down, shape, columns))


def _rows(part: ExpertShard, target: Target) -> None:
    """Three times `[experts * inner, hidden]`, down transposed."""
    spec = part.spec
    shape = (spec.experts * spec.inner, part.hidden)
    rows = Slice(0, part.experts.start * spec.inner, part.experts.stop * spec.inner)
    for index, name in enumerate(_names(part)):
        stored = part.checkpoint.source.read(part.name(name), shape, rows)
        mine = stored.view(-1, spec.inner, part.hidden)[:, part.start : part.stop]
        target[index].copy_(mine if index < 2 else mine.transpose(1, 2))


def _interleaved(part: ExpertShard, target: Target) -> None:
    """Gate and up by turns, as they are or in MXFP4."""
    first, _, last = _names(part)
    spec, hidden = part.spec, part.hidden
    gate_up = _transposed(part, first, 2 * spec.inner, hidden)
    target[0].copy_(gate_up[:, 0::2][:, part.start : part.stop])
    target[1].copy_(gate_up[:, 1::2][:, part.start : part.stop])
    target[2].copy_(_transposed(part, last, hidden, spec.inner)[:, :, part.start : part.stop])


def _transposed(part: ExpertShard, name: str, outputs: int, inputs: int) -> Tensor:
    """[experts of this rank, outputs, inputs] of what is stored the other way round, or in blocks."""
    source, experts, own, name = part.checkpoint.source, part.spec.experts, part.cut(), part.name(name)
    # A source of random numbers has everything: what needs no conversion comes first.
    if source.has(name) or not source.has(f"{name}_blocks"):
        return source.read(name, (experts, inputs, outputs), own).transpose(1, 2)
    groups = inputs // BLOCK
    blocks = source.read(f"{name}_blocks", (experts, outputs, groups, BLOCK // 2), own, dtype=torch.uint8)
    scales = source.read(f"{name}_scales", (experts, outputs, groups), own, dtype=torch.uint8)
    whole = source.empty((len(part.experts), outputs, inputs))
    for expert in range(len(whole)):
        # One after the other: numbers on their way take eight times the room of what is stored.
        whole[expert] = dequantise(blocks[expert], scales[expert], whole.dtype)
    return whole


_READERS: dict[ExpertLayout, Callable[[ExpertShard, Target], None]] = {
    "each": _each,
    "stacked": _stacked,
    "rows": _rows,
    "interleaved": _interleaved,
}
