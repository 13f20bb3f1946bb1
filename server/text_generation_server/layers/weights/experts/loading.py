"""Loading of both matrices of a rank's experts: as codes where the kernels read them, else with 16 bits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from text_generation_kernels import ExpertMatrix, pack_codes

from ....config.quantisation import BLOCK, Packed, Scheme
from ....weights import Slice
from .. import eight_bit, few_bits, mxfp4
from ..blocks import RowBlock
from ..checkpoint import Checkpoint
from ..formats.packing import halves
from ..loading import dense_columns, dense_rows, input_order, scheme_of
from .codes import Codes, stack
from .part import ExpertPart, shared_experts
from .plain import read_plain

_GROUP_UNIT = 32
"""Kernels read groups of multiples of this."""
_Network = tuple[tuple[str, ...], int, int]
"""Names of gate, if there is one, up and down, the inner size of what is stored, and where in it the expert begins."""


class Experts(NamedTuple):
    """Those of a rank, or its part of them: the routed ones, then the shared ones, without biases."""

    gate_up: ExpertMatrix
    """Gate rows, if there are any, then up rows."""
    down: ExpertMatrix
    has_shared: bool
    """Whether the shared network is among them."""


def load_experts(part: ExpertPart) -> Experts:
    """The shared network is left out where routed experts are codes and it is not stored as they are: checkpoints often
    keep it with 16 bits, which all of them would have to have to be one matrix. Raises ModelFilesError.
    """
    checkpoint = part.checkpoint
    is_each = checkpoint.names.experts_layout == "each"
    if not is_each and not checkpoint.makes_quantised and _has_blocks(part):
        return Experts(*_blocks(part), has_shared=False)
    schemes = _schemes(part, _routed(part)) if is_each or checkpoint.makes_quantised else None
    # Ranks that differ in where their parts begin must agree about this.
    if schemes is not None and not _shares(part, schemes):
        part = replace(part, spec=replace(part.spec, shared_inner=0))
    has_shared = part.spec.shared_inner > 0
    if schemes is None or not _begins_with_group(part, schemes[1]):
        gate_up, down = read_plain(part)
        return Experts(ExpertMatrix(gate_up), ExpertMatrix(down), has_shared)
    return Experts(*(_each if is_each else _made)(part, *schemes), has_shared)


def _shares(part: ExpertPart, schemes: tuple[Scheme, Scheme]) -> bool:
    """Whether the shared network is stored such that it can be further experts."""
    return part.spec.shared_inner % part.spec.inner == 0 and _schemes(part, _shared(part)) == schemes


def _begins_with_group(part: ExpertPart, down: Scheme) -> bool:
    """Whether this rank's part of every network does."""
    sizes = (part.spec.inner, part.spec.shared_inner) if part.spec.shared_inner else (part.spec.inner,)
    return all(_readable(down, inner, part.start) for inner in sizes)


def _multiplies_codes(checkpoint: Checkpoint) -> bool:
    """Kernels multiply codes by 16-bit numbers."""
    return not checkpoint.source.empty((0,)).is_cuda or checkpoint.dtype.itemsize == 2


def _has_blocks(part: ExpertPart) -> bool:
    """Whether the files have MXFP4 that kernels read."""
    checkpoint, name = part.checkpoint, part.name(part.checkpoint.names.expert_gate)
    is_stored = checkpoint.source.has(f"{name}_blocks") and scheme_of(checkpoint, name) is not None
    return is_stored and part.start % mxfp4.BLOCK == 0 and _multiplies_codes(checkpoint)


def _schemes(part: ExpertPart, networks: Sequence[_Network]) -> tuple[Scheme, Scheme] | None:
    """Of all first and of all second matrices, whichever part of them is read. None: there are none, they differ, or
    the kernels do not read codes of this kind.
    """
    checkpoint = part.checkpoint
    if not _multiplies_codes(checkpoint):
        return None
    found: list[set[Scheme | None]] = [set(), set()]
    for stored, inner, at in networks:
        for name, shape in zip(stored, _shapes(part, inner, len(stored)), strict=True):
            scheme = scheme_of(checkpoint, name)
            is_down = name == stored[-1]
            # What is quantised here begins with a group wherever it begins.
            begin = at if is_down and not checkpoint.makes_quantised else 0
            if not _readable(scheme, shape[1], begin):
                return None
            if not checkpoint.makes_quantised and input_order(checkpoint, name, shape) is not None:
                return None
            found[is_down].add(scheme)
    first, second = found
    if len(first) != 1 or len(second) != 1:
        return None
    one, other = first.pop(), second.pop()
    return None if one is None or other is None else (one, other)


def _readable(scheme: Scheme | None, inputs: int, start: int) -> bool:
    """Whether kernels read groups of this kind of which an expert, or a rank's part of it, begins at input `start`."""
    if scheme is None:
        return False
    if isinstance(scheme, Packed):
        group = scheme.group_size
        return not 0 < group < inputs or (group % _GROUP_UNIT == 0 and start % group == 0)
    return scheme.weights != "block" or start % BLOCK == 0


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


def _each(part: ExpertPart, first: Scheme, second: Scheme) -> tuple[ExpertMatrix, ExpertMatrix]:
    """Matrices of each expert by themselves."""
    networks = _routed(part) + _shared(part)
    gate_up = ([_rows(part, name, inner, at, first) for name in names[:-1]] for names, inner, at in networks)
    down = ([_columns(part, names[-1], inner, at, second)] for names, inner, at in networks)
    return stack(len(networks), gate_up), stack(len(networks), down)


def _rows(part: ExpertPart, name: str, inner: int, first: int, scheme: Scheme) -> Codes:
    checkpoint, block = part.checkpoint, RowBlock(name, inner, (part.span(inner, first),))
    if checkpoint.makes_quantised:
        return _quantised(dense_rows(checkpoint, block, part.hidden), scheme)
    if isinstance(scheme, Packed):
        return Codes.of_groups(few_bits.read_rows(checkpoint.source, [block], part.hidden, scheme)[0])
    return Codes.of_eight(eight_bit.read_rows(checkpoint.source, [block], part.hidden, scheme), scheme)


def _columns(part: ExpertPart, name: str, inner: int, first: int, scheme: Scheme) -> Codes:
    checkpoint, shape, columns = part.checkpoint, (part.hidden, inner), part.span(inner, first)
    if checkpoint.makes_quantised:
        return _quantised(dense_columns(checkpoint, name, shape, columns), scheme)
    if isinstance(scheme, Packed):
        return Codes.of_groups(few_bits.read_columns(checkpoint.source, name, shape, columns, scheme))
    return Codes.of_eight(eight_bit.read_columns(checkpoint.source, name, shape, columns, scheme), scheme)


def _quantised(weight: Tensor, scheme: Scheme) -> Codes:
    """Of a matrix [outputs, inputs] of 16 bits."""
    if isinstance(scheme, Packed):
        return Codes.of_groups(few_bits.quantise_weight(weight, scheme))
    return Codes.of_eight(eight_bit.quantise_weight(weight, scheme), scheme)


def _made(part: ExpertPart, first: Scheme, second: Scheme) -> tuple[ExpertMatrix, ExpertMatrix]:
    """Of layouts that have the experts of a layer in one tensor: for a moment there is one layer with 16 bits."""
    gate_up, down = read_plain(part)
    return (
        stack(len(gate_up), ([_quantised(each, first)] for each in gate_up)),
        stack(len(down), ([_quantised(each, second)] for each in down)),
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
