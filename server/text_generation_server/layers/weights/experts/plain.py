"""16-bit experts, from every layout: as stored, or dequantised."""

from collections.abc import Callable

import torch
from torch import Tensor

from ....config.names import ExpertLayout
from ....errors import ModelFilesError
from ....weights import Slice
from ..blocks import RowBlock
from ..mxfp4 import BLOCK, dequantise
from ..readers import reader_of
from .shard import ExpertShard, Target, shared_experts


def read_plain(shard: ExpertShard) -> tuple[Tensor, Tensor]:
    """Reads gate and up rows `[all, 2 * inner, hidden]`, without a gate `[all, inner, hidden]`, and down
    `[all, hidden, inner]`. Raises ModelFilesError.
    """
    spec, inner, source = shard.spec, shard.inner, shard.checkpoint.source
    routed_experts = len(shard.experts)
    total = routed_experts + shared_experts(spec)
    gate_up = source.empty((total, (2 if spec.gated else 1) * inner, shard.hidden))
    down = source.empty((total, shard.hidden, inner))
    routed, shared = (
        (*gate_up[experts].split(inner, dim=1), down[experts])
        for experts in (slice(routed_experts), slice(routed_experts, None))
    )
    _READERS[shard.checkpoint.names.experts_layout](shard, routed)
    _read_shared(shard, shared)
    if (scales := shard.scales()) is not None:
        down[:routed_experts] *= scales[:, None, None]
    return gate_up, down


def _each(shard: ExpertShard, target: Target) -> None:
    """Reads a layout in which each expert has its own matrices."""
    for place, expert in enumerate(shard.experts):
        _read_network(shard, tuple(shard.name(name, expert) for name in _names(shard)), shard.spec.inner, place, target)


def _names(shard: ExpertShard) -> tuple[str, ...]:
    return shard.checkpoint.names.experts(shard.spec.gated)


def _read_network(
    shard: ExpertShard, names: tuple[str, ...], inner: int, expert: int, target: Target, first: int = 0
) -> None:
    """Fills one expert with this rank's shard of a network of `inner` elements, from its row `first` on. Gate and up of
    one name are one matrix, gate first.
    """
    start, stop = shard.span(inner, first)
    behind = inner if names[0] == names[1] else 0
    for half, (name, each) in enumerate(zip(names[:-1], target[:-1], strict=True)):
        rows = RowBlock(name, inner + behind, ((half * behind + start, half * behind + stop),))
        each[expert, : stop - start] = reader_of(shard.checkpoint, name).dense_rows(rows, shard.hidden)
        each[expert, stop - start :] = 0.0
    down, reader = target[-1], reader_of(shard.checkpoint, names[-1])
    down[expert, :, : stop - start] = reader.dense_columns(names[-1], (shard.hidden, inner), (start, stop))
    down[expert, :, stop - start :] = 0.0


def _read_shared(shard: ExpertShard, target: Target) -> None:
    """Reads the shared expert, cut into experts of the routed size."""
    spec = shard.spec
    stored = tuple(shard.name(name) for name in shard.checkpoint.names.shared(spec.gated))
    for index in range(shared_experts(spec)):
        _read_network(shard, stored, spec.shared_inner, index, target, first=index * spec.inner)


def _stacked(shard: ExpertShard, target: Target) -> None:
    """Reads `[experts, 2 * inner, hidden]` and `[experts, hidden, inner]`."""
    source, spec = shard.checkpoint.source, shard.spec
    # Some files name them without `.weight`, others with it.
    first, down = (name if source.has(name) else f"{name}.weight" for name in map(shard.name, _names(shard)[::2]))
    gate_up = source.read(first, (spec.experts, 2 * spec.inner, shard.hidden), shard.cut())
    gate, up = gate_up.chunk(2, dim=1)
    target[0].copy_(gate[:, shard.start : shard.stop])
    target[1].copy_(up[:, shard.start : shard.stop])
    shape, columns = (spec.experts, shard.hidden, spec.inner), shard.cut(Slice(2, shard.start, shard.stop))
    target[2].copy_(source.read(down, shape, columns))


def _transposed_stack(shard: ExpertShard, target: Target) -> None:
    """Reads `[experts, hidden, 2 * inner]` and `[experts, inner, hidden]`."""
    source, spec = shard.checkpoint.source, shard.spec
    first, down = map(shard.name, _names(shard)[::2])
    gate, up = source.read(first, (spec.experts, shard.hidden, 2 * spec.inner), shard.cut()).chunk(2, dim=2)
    target[0].copy_(gate[..., shard.start : shard.stop].transpose(1, 2))
    target[1].copy_(up[..., shard.start : shard.stop].transpose(1, 2))
    rows = shard.cut(Slice(1, shard.start, shard.stop))
    target[2].copy_(source.read(down, (spec.experts, spec.inner, shard.hidden), rows).transpose(1, 2))


def _as_shaped(shard: ExpertShard, target: Target) -> None:
    """Reads one of the two, whose shapes differ in at least one of the tensors."""
    (_stacked if _is_stacked(shard) else _transposed_stack)(shard, target)


def _is_stacked(shard: ExpertShard) -> bool:
    spec, names = shard.spec, map(shard.name, _names(shard)[::2])
    try:
        found = [shard.checkpoint.source.shape(name) for name in names]
    except ModelFilesError:
        # Random weights have no shapes; what a file lacks, its reader says.
        return True
    return found == [(spec.experts, 2 * spec.inner, shard.hidden), (spec.experts, shard.hidden, spec.inner)]


def _rows(shard: ExpertShard, target: Target) -> None:
    """Reads gate, up and transposed down, `[experts * inner, hidden]` each."""
    spec = shard.spec
    shape = (spec.experts * spec.inner, shard.hidden)
    rows = Slice(0, shard.experts.start * spec.inner, shard.experts.stop * spec.inner)
    for index, name in enumerate(_names(shard)):
        stored = shard.checkpoint.source.read(shard.name(name), shape, rows)
        mine = stored.view(-1, spec.inner, shard.hidden)[:, shard.start : shard.stop]
        target[index].copy_(mine if index < 2 else mine.transpose(1, 2))


def _interleaved(shard: ExpertShard, target: Target) -> None:
    """Reads interleaved gate and up columns, with 16 bits or in MXFP4."""
    first, _, last = _names(shard)
    spec, hidden = shard.spec, shard.hidden
    gate_up = _transposed(shard, first, 2 * spec.inner, hidden)
    target[0].copy_(gate_up[:, 0::2][:, shard.start : shard.stop])
    target[1].copy_(gate_up[:, 1::2][:, shard.start : shard.stop])
    target[2].copy_(_transposed(shard, last, hidden, spec.inner)[:, :, shard.start : shard.stop])


def _transposed(shard: ExpertShard, name: str, outputs: int, inputs: int) -> Tensor:
    """Reads [experts of this rank, outputs, inputs] of a tensor that is stored transposed, or in MXFP4 blocks."""
    source, experts, own, name = shard.checkpoint.source, shard.spec.experts, shard.cut(), shard.name(name)
    # A source of random weights has every tensor: the layout that needs no conversion comes first.
    if source.has(name) or not source.has(f"{name}_blocks"):
        return source.read(name, (experts, inputs, outputs), own).transpose(1, 2)
    groups = inputs // BLOCK
    blocks = source.read(f"{name}_blocks", (experts, outputs, groups, BLOCK // 2), own, dtype=torch.uint8)
    scales = source.read(f"{name}_scales", (experts, outputs, groups), own, dtype=torch.uint8)
    whole = source.empty((len(shard.experts), outputs, inputs))
    for expert in range(len(whole)):
        # One expert after the other: intermediate values take eight times the memory of the stored ones.
        whole[expert] = dequantise(blocks[expert], scales[expert], whole.dtype)
    return whole


_READERS: dict[ExpertLayout, Callable[[ExpertShard, Target], None]] = {
    "each": _each,
    "stacked": _stacked,
    "transposed": _transposed_stack,
    "as shaped": _as_shaped,
    "rows": _rows,
    "interleaved": _interleaved,
}
