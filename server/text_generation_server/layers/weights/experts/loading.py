"""From a checkpoint to both matrices of a rank's experts: as codes where the kernels read them, else with 16 bits."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ....config.quantisation import BLOCK, Packed, Scheme
from ....kernels import ExpertMatrix, pack_codes
from ....weights import Slice
from .. import eight_bit, few_bits, mxfp4
from ..blocks import RowBlock
from ..formats.packing import halves
from ..loading import dense_columns, dense_rows, input_order, scheme_of
from .codes import Codes, stack
from .part import ExpertPart, shared_experts
from .plain import read_plain

_GROUP_UNIT = 32
"""Kernels read groups of multiples of this."""
_Network = tuple[tuple[str, ...], int, int]
"""Names of gate, up and down, the inner size of what is stored, and where in it an expert begins."""


def load_experts(part: ExpertPart) -> tuple[ExpertMatrix, ExpertMatrix]:
    """The first matrices, gate rows first, and the second ones, without biases: this rank's part of the routed experts,
    then of the shared ones. Raises ModelFilesError.
    """
    schemes = _schemes(part)
    if schemes is None:
        gate_up, down = read_plain(part)
        return ExpertMatrix(gate_up), ExpertMatrix(down)
    if part.checkpoint.names.experts_layout == "each":
        return _each(part, *schemes)
    if part.checkpoint.makes_quantised:
        return _made(part, *schemes)
    return _blocks(part)


def _schemes(part: ExpertPart) -> tuple[Scheme, Scheme] | None:
    """Of all first and of all second matrices. None: they differ, or the kernels do not read codes of this kind."""
    checkpoint, names = part.checkpoint, part.checkpoint.names
    # Kernels multiply codes by 16-bit numbers.
    if checkpoint.source.empty((0,)).is_cuda and checkpoint.dtype.itemsize != 2:
        return None
    if names.experts_layout != "each" and not checkpoint.makes_quantised:
        stored = checkpoint.source.has(f"{part.name(names.expert_gate)}_blocks")
        scheme = scheme_of(checkpoint, part.name(names.expert_gate)) if stored else None
        return (scheme, scheme) if scheme is not None and part.start % mxfp4.BLOCK == 0 else None
    if part.spec.shared_inner % part.spec.inner:
        return None
    found: list[set[Scheme | None]] = [set(), set()]
    for stored, inner, at in _networks(part):
        for name, shape in zip(stored, _shapes(part, inner), strict=True):
            scheme = scheme_of(checkpoint, name)
            is_down = name == stored[2]
            # What is quantised here begins with a group wherever it begins.
            begin = part.start if checkpoint.makes_quantised else part.start + at
            if not _readable(scheme, shape[1], begin if is_down else 0):
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


def _networks(part: ExpertPart) -> Iterator[_Network]:
    """All experts; where one tensor holds all of them, that one."""
    names, spec = part.checkpoint.names, part.spec
    routed = names.expert_gate, names.expert_up, names.expert_down
    if names.experts_layout == "each":
        for expert in part.experts:
            yield tuple(part.name(each, expert) for each in routed), spec.inner, 0
    else:
        yield tuple(part.name(each) for each in routed), spec.inner, 0
    shared = names.shared_gate, names.shared_up, names.shared_down
    for index in range(shared_experts(spec)):
        yield tuple(part.name(each) for each in shared), spec.shared_inner, index * spec.inner


def _shapes(part: ExpertPart, inner: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    return (inner, part.hidden), (inner, part.hidden), (part.hidden, inner)


def _each(part: ExpertPart, first: Scheme, second: Scheme) -> tuple[ExpertMatrix, ExpertMatrix]:
    """Matrices of each expert by themselves."""
    networks = list(_networks(part))
    gate_up = ([_rows(part, name, inner, at, first) for name in names[:2]] for names, inner, at in networks)
    down = ([_columns(part, names[2], inner, at, second)] for names, inner, at in networks)
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
