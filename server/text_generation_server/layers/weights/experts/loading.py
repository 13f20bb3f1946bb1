"""Loading of both matrices of a rank's experts: quantised where the MoE kernels read them so, else with 16 bits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from text_generation_kernels import ExpertMatrix, pack_codes

from ....weights import Slice
from .. import mxfp4
from ..blocks import RowBlock
from ..formats.packing import halves
from ..readers import Codes, QuantisedReader, reader_of
from .plain import read_plain
from .shard import ExpertShard, shared_experts
from .stacking import stack

_Network = tuple[tuple[str, ...], int, int]
"""Names of gate, if experts are gated, up and down, the inner size of the stored network, and where the expert begins
in it."""
_Readers = tuple[QuantisedReader, QuantisedReader]
"""The reader of all first and that of all second matrices."""


class Experts(NamedTuple):
    """The experts of a rank, or its shard of all experts: the routed ones, then the shared ones, without biases."""

    gate_up: ExpertMatrix
    """Gate rows, if experts are gated, then up rows."""
    down: ExpertMatrix
    has_shared: bool
    """Whether the shared expert is among them."""


def load_experts(shard: ExpertShard) -> Experts:
    """The shared network is left out where routed experts are quantised and it is not stored as they are: checkpoints
    often keep it with 16 bits, which all of them would have to have to be one matrix. Raises ModelFilesError.
    """
    checkpoint = shard.checkpoint
    is_each = checkpoint.names.experts_layout == "each"
    if not is_each and _has_blocks(shard):
        return Experts(*_blocks(shard), has_shared=False)
    readers = _readers(shard, _routed(shard)) if is_each or checkpoint.makes_quantised else None
    # Ranks that differ in where their shards begin must agree about this.
    if readers is not None and not _shares(shard, readers):
        shard = replace(shard, spec=replace(shard.spec, shared_inner=0))
    has_shared = shard.spec.shared_inner > 0
    if readers is None or not _begins_with_group(shard, readers[1]):
        gate_up, down = read_plain(shard)
        return Experts(ExpertMatrix(gate_up), ExpertMatrix(down), has_shared)
    return Experts(*(_each if is_each else _made)(shard, *readers), has_shared)


def _shares(shard: ExpertShard, readers: _Readers) -> bool:
    """Whether the shared expert is stored such that it can become further experts."""
    return shard.spec.shared_inner % shard.spec.inner == 0 and _readers(shard, _shared(shard)) == readers


def _begins_with_group(shard: ExpertShard, down: QuantisedReader) -> bool:
    """Whether this rank's shard of every network begins with a group."""
    sizes = shard.spec.inner, shard.spec.shared_inner
    return all(down.begins_group(inner, shard.start) for inner in sizes if inner)


def _has_blocks(shard: ExpertShard) -> bool:
    """Whether the files have MXFP4 that kernels read."""
    checkpoint, name = shard.checkpoint, shard.name(shard.checkpoint.names.expert_gate)
    is_stored = checkpoint.source.has(f"{name}_blocks") and reader_of(checkpoint, name).has_codes(name)
    return is_stored and shard.start % mxfp4.BLOCK == 0 and checkpoint.experts_take_codes


def _readers(shard: ExpertShard, networks: Sequence[_Network]) -> _Readers | None:
    """Returns the reader of all first and that of all second matrices. None: there are no such networks, their schemes
    differ, or the MoE kernels do not read a scheme.
    """
    checkpoint = shard.checkpoint
    if not checkpoint.experts_take_codes:
        return None
    found: list[set[QuantisedReader]] = [set(), set()]
    for stored, inner, at in networks:
        for name, shape in zip(stored, _shapes(shard, inner, len(stored)), strict=True):
            reader, is_down = reader_of(checkpoint, name), name == stored[-1]
            if not isinstance(reader, QuantisedReader) or not reader.reads_expert(name, shape, at if is_down else 0):
                return None
            found[is_down].add(reader)
    first, second = found
    return (first.pop(), second.pop()) if len(first) == len(second) == 1 else None


def _routed(shard: ExpertShard) -> list[_Network]:
    """Returns the network of each routed expert, or the one that stands for all where one tensor holds them all."""
    names = shard.checkpoint.names
    routed = names.experts(shard.spec.gated)
    numbers: Sequence[int] = shard.experts if names.experts_layout == "each" else (0,)
    return [(tuple(shard.name(each, expert) for each in routed), shard.spec.inner, 0) for expert in numbers]


def _shared(shard: ExpertShard) -> list[_Network]:
    """Returns the networks that the shared expert becomes."""
    names, spec = shard.checkpoint.names, shard.spec
    shared = tuple(shard.name(each) for each in names.shared(spec.gated))
    return [(shared, spec.shared_inner, index * spec.inner) for index in range(shared_experts(spec))]


def _shapes(shard: ExpertShard, inner: int, matrices: int) -> tuple[tuple[int, int], ...]:
    """Returns the shapes of the matrices of a network, of which the last is down."""
    return *((inner, shard.hidden),) * (matrices - 1), (shard.hidden, inner)


def _each(shard: ExpertShard, first: QuantisedReader, second: QuantisedReader) -> tuple[ExpertMatrix, ExpertMatrix]:
    """Reads layouts in which each expert has its own matrices."""
    networks, hidden = _routed(shard) + _shared(shard), shard.hidden

    def rows(name: str, inner: int, at: int) -> Codes:
        return first.read_rows([RowBlock(name, inner, (shard.span(inner, at),))], hidden)[0].codes()

    gate_up = ([rows(name, inner, at) for name in names[:-1]] for names, inner, at in networks)
    down = (
        second.read_columns(names[-1], (hidden, inner), shard.span(inner, at)).codes() for names, inner, at in networks
    )
    scales = shard.scales()
    if scales is not None:
        down = (each.scaled(scale) for each, scale in zip(down, scales, strict=True))
    return stack(len(networks), gate_up), stack(len(networks), ([each] for each in down))


def _made(shard: ExpertShard, first: QuantisedReader, second: QuantisedReader) -> tuple[ExpertMatrix, ExpertMatrix]:
    """Quantises layouts that have the experts of a layer in one tensor: for a moment, one layer exists with 16 bits."""
    gate_up, down = read_plain(shard)
    return (
        stack(len(gate_up), ([first.quantise([each]).codes()] for each in gate_up)),
        stack(len(down), ([second.quantise([each]).codes()] for each in down)),
    )


def _blocks(shard: ExpertShard) -> tuple[ExpertMatrix, ExpertMatrix]:
    """Reads MXFP4 of gpt-oss, which interleaves gate and up rows."""
    names, spec, experts = shard.checkpoint.names, shard.spec, len(shard.experts)
    rows = shard.cut(Slice(1, 2 * shard.start, 2 * shard.stop))
    columns = shard.cut(Slice(2, shard.start // mxfp4.BLOCK, -(-shard.stop // mxfp4.BLOCK)))
    gate_up = _stored_blocks(shard, names.expert_gate, 2 * spec.inner, shard.hidden, rows)
    down = _stored_blocks(shard, names.expert_down, shard.hidden, spec.inner, columns)
    order = torch.arange(2 * shard.inner).view(-1, 2).t().flatten()
    return stack(experts, _of_blocks(*gate_up, order)), stack(experts, _of_blocks(*down, None))


def _stored_blocks(
    shard: ExpertShard, template: str, outputs: int, inputs: int, cut: Slice | None
) -> tuple[Tensor, Tensor]:
    """Reads `blocks` [experts, outputs, groups, 16] and `scales` [experts, outputs, groups], or a shard of both."""
    source, name = shard.checkpoint.source, shard.name(template)
    shape = shard.spec.experts, outputs, inputs // mxfp4.BLOCK
    blocks = source.read(f"{name}_blocks", (*shape, mxfp4.BLOCK // 2), cut, dtype=torch.uint8)
    return blocks, source.read(f"{name}_scales", shape, cut, dtype=torch.uint8)


def _of_blocks(blocks: Tensor, scales: Tensor, order: Tensor | None) -> Iterator[Sequence[Codes]]:
    """Yields the matrix of each expert, with its rows in `order`."""
    table = mxfp4.table(blocks.device)
    for codes, exponents in zip(blocks, scales, strict=True):
        if order is not None:
            rows = order.to(blocks.device)
            codes, exponents = codes[rows], exponents[rows]
        packed = pack_codes(halves(codes.flatten(1)), 4)
        inputs = codes.shape[1] * mxfp4.BLOCK
        yield [Codes(packed, inputs, mxfp4.powers(exponents), None, table, mxfp4.BLOCK)]
