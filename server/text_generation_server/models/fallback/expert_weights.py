"""Weights of the experts of a class, as the MoE kernels read them: with 16 bits, or quantised."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from text_generation_kernels import ExpertMatrix

from ...layers.weights import Codes, QuantisedReader, RowBlock, reader_of, stack
from .checkpoint import ClassCheckpoint, module_of

FIRST, SECOND = "gate_up_proj", "down_proj"


def read_experts(
    checkpoint: ClassCheckpoint, module: nn.Module, name: str, adds_bias: bool
) -> tuple[ExpertMatrix, ExpertMatrix]:
    """Both matrices of all experts of the module `name`, or this rank's part of them. `adds_bias`: whether this rank
    adds that of the second. Raises ModelFilesError.
    """
    biases = [
        checkpoint.read(f"{name}.{each}_bias") if getattr(module, f"{each}_bias", None) is not None else None
        for each in (FIRST, SECOND)
    ]
    names = f"{name}.{FIRST}", f"{name}.{SECOND}"
    readers = [_reader(checkpoint, each) for each in names]
    # Both have codes or none has.
    first, second = (
        ExpertMatrix(checkpoint.read(each)) if None in readers else _quantised(checkpoint, each, reader)
        for each, reader in zip(names, readers, strict=True)
    )
    return replace(first, bias=biases[0]), replace(second, bias=biases[1] if adds_bias else None)


def _reader(checkpoint: ClassCheckpoint, name: str) -> QuantisedReader | None:
    """That of all matrices of a stack. None: they have 16 bits, their schemes differ, or the MoE kernels do not read
    this rank's part of them.
    """
    modules = {module_of(each) for part in checkpoint.stored(name).parts for each in part}
    if not checkpoint.matrices.experts_take_codes:
        return None
    start, (_, outputs, inputs) = _first_input(checkpoint, name), _whole(checkpoint, name)
    found: set[QuantisedReader] = set()
    for each in modules:
        reader = reader_of(checkpoint.matrices, each)
        if not isinstance(reader, QuantisedReader) or not reader.reads_expert(each, (outputs, inputs), start):
            return None
        found.add(reader)
    return found.pop() if len(found) == 1 else None


def _quantised(checkpoint: ClassCheckpoint, name: str, reader: QuantisedReader | None) -> ExpertMatrix:
    stored = checkpoint.stored(name)
    if reader is None:
        raise ValueError("there is no reader of codes")
    if checkpoint.matrices.makes_quantised or not stored.is_stack:
        # For a moment there is one layer with 16 bits.
        weight = checkpoint.read(name)
        return stack(len(weight), ([reader.quantise([each]).codes()] for each in weight))
    experts = [[module_of(each) for each in expert] for expert in zip(*stored.parts, strict=True)]
    return stack(len(experts), (_codes(checkpoint, name, reader, expert) for expert in experts))


def _codes(checkpoint: ClassCheckpoint, name: str, reader: QuantisedReader, modules: Sequence[str]) -> Sequence[Codes]:
    """Of one expert's matrices, which stand one below the other."""
    cut, (_, rows, inputs) = checkpoint.cut(name), _whole(checkpoint, name)
    outputs = rows // len(modules)
    if cut.ranges and cut.dim == len(cut.whole) - 1:
        return [reader.read_columns(each, (outputs, inputs), cut.ranges[0]).codes() for each in modules]
    span = cut.ranges[0] if cut.ranges else (0, outputs)
    return [reader.read_rows([RowBlock(each, outputs, (span,))], inputs)[0].codes() for each in modules]


def _whole(checkpoint: ClassCheckpoint, name: str) -> tuple[int, int, int]:
    """Experts, outputs and inputs of the stack on all ranks."""
    experts, outputs, inputs = checkpoint.cut(name).whole
    return experts, outputs, inputs


def _first_input(checkpoint: ClassCheckpoint, name: str) -> int:
    """Of this rank's part."""
    cut = checkpoint.cut(name)
    return cut.ranges[0][0] if cut.ranges and cut.dim == len(cut.whole) - 1 else 0
