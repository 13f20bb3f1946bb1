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
from .part import ExpertPart, shared_experts
from .plain import read_plain
from .stacking import stack

_Network = tuple[tuple[str, ...], int, int]
"""Names of gate, if there is one, up and down, the inner size of what is stored, and where in it the expert begins."""
_Readers = tuple[QuantisedReader, QuantisedReader]
"""Of all first and of all second matrices."""


class Experts(NamedTuple):
    """Those of a rank, or its shard of them: the routed ones, then the shared ones, without biases."""

    gate_up: ExpertMatrix
    """Gate rows, if there are any, then up rows."""
    down: ExpertMatrix
    has_shared: bool
    """Whether the shared network is among them."""


def load_experts(part: ExpertPart) -> Experts:
    """The shared network is left out where routed experts are quantised and it is not stored as they are: checkpoints
    often keep it with 16 bits, which all of them would have to have to be one matrix. Raises ModelFilesError, and
    UnsupportedModel for experts in a scheme that no kernel reads.
    """
    checkpoint = part.checkpoint
    is_each = checkpoint.names.experts_layout == "each"
    if not is_each and _has_blocks(part):
        return Experts(*_blocks(part), has_shared=False)
    checkpoint.schemes.check_experts(name for names, _, _ in _routed(part) for name in names)
    readers = _readers(part, _routed(part)) if is_each or checkpoint.makes_quantised else None
    # Ranks that differ in where their shards begin must agree about this.
    if readers is not None and not _shares(part, readers):
        part = replace(part, spec=replace(part.spec, shared_inner=0))
    has_shared = part.spec.shared_inner > 0
    if readers is None or not _begins_with_group(part, readers[1]):
        gate_up, down = read_plain(part)
        return Experts(ExpertMatrix(gate_up), ExpertMatrix(down), has_shared)
    return Experts(*(_each if is_each else _made)(part, *readers), has_shared)


def _shares(part: ExpertPart, readers: _Readers) -> bool:
    """Whether the shared network is stored such that it can be further experts."""
    return part.spec.shared_inner % part.spec.inner == 0 and _readers(part, _shared(part)) == readers


def _begins_with_group(part: ExpertPart, down: QuantisedReader) -> bool:
    """Whether this rank's shard of every network does."""
    sizes = part.spec.inner, part.spec.shared_inner
    return all(down.begins_group(inner, part.start) for inner in sizes if inner)


def _has_blocks(part: ExpertPart) -> bool:
    """Whether the files have MXFP4 that kernels read."""
    checkpoint, name = part.checkpoint, part.name(part.checkpoint.names.expert_gate)
    is_stored = checkpoint.source.has(f"{name}_blocks") and reader_of(checkpoint, name).has_codes(name)
    return is_stored and part.start % mxfp4.BLOCK == 0 and checkpoint.experts_take_codes


def _readers(part: ExpertPart, networks: Sequence[_Network]) -> _Readers | None:
    """Those of all first and of all second matrices, whichever part of them is read. None: there are no such networks,
    their schemes differ, or the MoE kernels do not read a scheme.
    """
    checkpoint = part.checkpoint
    if not checkpoint.experts_take_codes:
        return None
    found: list[set[QuantisedReader]] = [set(), set()]
    for stored, inner, at in networks:
        for name, shape in zip(stored, _shapes(part, inner, len(stored)), strict=True):
            reader, is_down = reader_of(checkpoint, name), name == stored[-1]
            if not isinstance(reader, QuantisedReader) or not reader.reads_expert(name, shape, at if is_down else 0):
                return None
            found[is_down].add(reader)
    first, second = found
    return (first.pop(), second.pop()) if len(first) == len(second) == 1 else None


def _routed(part: ExpertPart) -> list[_Network]:
    """Each of them; where one tensor holds all, that one."""
    names = part.checkpoint.names
    routed = names.experts(part.spec.gated)
    numbers: Sequence[int] = part.experts if names.experts_layout == "each" else (0,)
    return [(tuple(part.name(each, expert) for each in routed), part.spec.inner, 0) for expert in numbers]


def _shared(part: ExpertPart) -> list[_Network]:
    """The experts that the shared network becomes."""
    names, spec = part.checkpoint.names, part.spec
    shared = tuple(part.name(each) for each in names.shared(spec.gated))
    return [(shared, spec.shared_inner, index * spec.inner) for index in range(shared_experts(spec))]


def _shapes(part: ExpertPart, inner: int, matrices: int) -> tuple[tuple[int, int], ...]:
    """Of so many of a network, the last of which is down."""
    return *((inner, part.hidden),) * (matrices - 1), (part.hidden, inner)


def _each(part: ExpertPart, first: QuantisedReader, second: QuantisedReader) -> tuple[ExpertMatrix, ExpertMatrix]:
    """Matrices of each expert by themselves."""
    networks, hidden = _routed(part) + _shared(part), part.hidden

    def rows(name: str, inner: int, at: int) -> Codes:
        return first.read_rows([RowBlock(name, inner, (part.span(inner, at),))], hidden)[0].codes()

    gate_up = ([rows(name, inner, at) for name in names[:-1]] for names, inner, at in networks)
    down = (
        [second.read_columns(names[-1], (hidden, inner), part.span(inner, at)).codes()] for names, inner, at in networks
    )
    return stack(len(networks), gate_up), stack(len(networks), down)


def _made(part: ExpertPart, first: QuantisedReader, second: QuantisedReader) -> tuple[ExpertMatrix, ExpertMatrix]:
    """Of layouts that have the experts of a layer in one tensor: for a moment there is one layer with 16 bits."""
    gate_up, down = read_plain(part)
    return (
        stack(len(gate_up), ([first.quantise([each]).codes()] for each in gate_up)),
        stack(len(down), ([second.quantise([each]).codes()] for each in down)),
    )


def _blocks(part: ExpertPart) -> tuple[ExpertMatrix, ExpertMatrix]:
    """MXFP4 of gpt-oss: gate and up rows by turns."""
    names, spec, experts = part.checkpoint.names, part.spec, len(part.experts)
    rows = part.cut(Slice(1, 2 * part.start, 2 * part.stop))
    columns = part.cut(Slice(2, part.start // mxfp4.BLOCK, -(-part.stop // mxfp4.BLOCK)))
    gate_up = _stored_blocks(part, names.expert_gate, 2 * spec.inner, part.hidden, rows)
    down = _stored_blocks(part, names.expert_down, part.hidden, spec.inner, columns)
    order = torch.arange(2 * part.inner).view(-1, 2).t().flatten()
    return stack(experts, _of_blocks(*gate_up, order)), stack(experts, _of_blocks(*down, None))


def _stored_blocks(
    part: ExpertPart, template: str, outputs: int, inputs: int, cut: Slice | None
) -> tuple[Tensor, Tensor]:
    """`blocks` [experts, outputs, groups, 16] and `scales` [experts, outputs, groups], or a part of both."""
    source, name = part.checkpoint.source, part.name(template)
    shape = part.spec.experts, outputs, inputs // mxfp4.BLOCK
    blocks = source.read(f"{name}_blocks", (*shape, mxfp4.BLOCK // 2), cut, dtype=torch.uint8)
    return blocks, source.read(f"{name}_scales", shape, cut, dtype=torch.uint8)


def _of_blocks(blocks: Tensor, scales: Tensor, order: Tensor | None) -> Iterator[Sequence[Codes]]:
    """Each expert's matrix, its rows in this order."""
    table = mxfp4.table(blocks.device)
    for codes, exponents in zip(blocks, scales, strict=True):
        if order is not None:
            rows = order.to(blocks.device)
            codes, exponents = codes[rows], exponents[rows]
        packed = pack_codes(halves(codes.flatten(1)), 4)
        inputs = codes.shape[1] * mxfp4.BLOCK
        yield [Codes(packed, inputs, mxfp4.powers(exponents), None, table, mxfp4.BLOCK)]
