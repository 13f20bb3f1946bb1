"""What a mixture of experts holds: the inner dimension of every expert is shared among the ranks, the router is whole.

A network that every token passes besides becomes further experts of the same inner size, the last one filled up with
zeros, which add nothing: so one operator computes all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.names import ExpertLayout
from ...config.spec import MoeSpec
from ...errors import ConfigurationError
from ...weights import Slice
from .blocks import RowBlock
from .checkpoint import Checkpoint
from .linear import Dense, Linear
from .loading import dense_columns, dense_rows
from .mxfp4 import BLOCK, dequantise
from .split import even_span


@dataclass(frozen=True)
class MoeWeights:
    """Of one layer; `all` counts the routed and the shared experts, `inner` is this rank's part."""

    router: Linear
    """Logits of the routed experts, then of the shared ones' gate where there is one. float32 where the spec says."""
    correction: Tensor | None
    """[experts] float32"""
    gate_up: Tensor
    """[all, 2 * inner, hidden], gate rows first."""
    gate_up_bias: Tensor | None
    """[all, 2 * inner]"""
    down: Tensor
    """[all, hidden, inner]"""
    down_bias: Tensor | None
    """[all, hidden], on the first rank alone: outputs of the ranks are summed."""


@dataclass(frozen=True)
class _Part:
    """What the readers of the layouts below need: which experts' tensors, and which part of them is this rank's."""

    checkpoint: Checkpoint
    layer: int
    spec: MoeSpec
    start: int
    stop: int

    def name(self, template: str, expert: int | None = None) -> str:
        """The whole name of a tensor."""
        inside = self.checkpoint.inside(self.layer, template)
        return inside if expert is None else inside.replace("{expert}", str(expert))

    @property
    def hidden(self) -> int:
        return self.checkpoint.spec.hidden_size


Target = tuple[Tensor, Tensor, Tensor]
"""What is filled: gate and up [experts, inner of this rank, hidden], down [experts, hidden, inner of this rank]."""


def shared_experts(spec: MoeSpec) -> int:
    """Experts that the shared network becomes."""
    return -(-spec.shared_inner // spec.inner)


def load_moe(checkpoint: Checkpoint, layer: int, spec: MoeSpec) -> MoeWeights:
    """Reads this rank's part. Raises ModelFilesError, or ConfigurationError where there is none for each rank."""
    world_size = checkpoint.group.world_size
    if spec.inner < world_size:
        raise ConfigurationError(
            f"{world_size} shards cannot share the inner size {spec.inner} of the experts: "
            f"set --num-shard to at most {spec.inner}"
        )
    part = _Part(checkpoint, layer, spec, *even_span(spec.inner, checkpoint.group.rank, world_size))
    total, inner = spec.experts + shared_experts(spec), part.stop - part.start
    gate_up = checkpoint.source.empty((total, 2 * inner, part.hidden))
    down = checkpoint.source.empty((total, part.hidden, inner))
    routed, shared = (
        (gate_up[experts, :inner], gate_up[experts, inner:], down[experts])
        for experts in (slice(spec.experts), slice(spec.experts, None))
    )
    _READERS[checkpoint.names.experts_layout](part, routed)
    _read_shared(part, shared)
    gate_up_bias, down_bias = _biases(part)
    return MoeWeights(_router(part), _correction(part), gate_up, gate_up_bias, down, down_bias)


def _router(part: _Part) -> Linear:
    source, names, spec = part.checkpoint.source, part.checkpoint.names, part.spec
    dtype = torch.float32 if spec.route.wide else None
    weight = source.read(f"{part.name(names.router)}.weight", (spec.experts, part.hidden), dtype=dtype)
    if spec.shared_gate:
        gate = source.read(f"{part.name(names.shared_weight)}.weight", (1, part.hidden), dtype=dtype)
        weight = torch.cat((weight, gate))
    bias = source.read(f"{part.name(names.router)}.bias", (spec.experts,), dtype=dtype) if spec.route.bias else None
    return Dense(weight, bias)


def _correction(part: _Part) -> Tensor | None:
    if not part.spec.route.correction:
        return None
    name = part.name(part.checkpoint.names.router_correction)
    # In a narrower type, experts whose numbers differ little would be one to the choice.
    return part.checkpoint.source.read(name, (part.spec.experts,), dtype=torch.float32)


def _each(part: _Part, target: Target) -> None:
    """Matrices of each expert by themselves."""
    for expert in range(part.spec.experts):
        _read_network(part, tuple(part.name(name, expert) for name in _names(part)), part.spec.inner, expert, target)


def _names(part: _Part) -> tuple[str, str, str]:
    names = part.checkpoint.names
    return names.expert_gate, names.expert_up, names.expert_down


def _read_network(part: _Part, names: tuple[str, ...], inner: int, expert: int, target: Target, first: int = 0) -> None:
    """Fills one expert with this rank's part of a network of `inner`, from its row `first` on."""
    start, stop = min(first + part.start, inner), min(first + part.stop, inner)
    for name, each in zip(names[:2], target[:2], strict=True):
        rows = RowBlock(name, inner, ((start, stop),))
        each[expert, : stop - start] = dense_rows(part.checkpoint, rows, part.hidden)
        each[expert, stop - start :] = 0.0
    down = target[2]
    down[expert, :, : stop - start] = dense_columns(part.checkpoint, names[2], (part.hidden, inner), (start, stop))
    down[expert, :, stop - start :] = 0.0


def _read_shared(part: _Part, target: Target) -> None:
    """The shared network, cut into experts."""
    names, spec = part.checkpoint.names, part.spec
    stored = tuple(part.name(name) for name in (names.shared_gate, names.shared_up, names.shared_down))
    for index in range(shared_experts(spec)):
        _read_network(part, stored, spec.shared_inner, index, target, first=index * spec.inner)


def _stacked(part: _Part, target: Target) -> None:
    """`[experts, 2 * inner, hidden]` and `[experts, hidden, inner]`."""
    source, spec = part.checkpoint.source, part.spec
    first, _, last = _names(part)
    gate_up = source.read(f"{part.name(first)}.weight", (spec.experts, 2 * spec.inner, part.hidden))
    gate, up = gate_up.chunk(2, dim=1)
    target[0].copy_(gate[:, part.start : part.stop])
    target[1].copy_(up[:, part.start : part.stop])
    shape = (spec.experts, part.hidden, spec.inner)
    target[2].copy_(source.read(f"{part.name(last)}.weight", shape, Slice(2, part.start, part.stop)))


def _rows(part: _Part, target: Target) -> None:
    """Three times `[experts * inner, hidden]`, down transposed."""
    spec = part.spec
    for index, name in enumerate(_names(part)):
        stored = part.checkpoint.source.read(part.name(name), (spec.experts * spec.inner, part.hidden))
        mine = stored.view(spec.experts, spec.inner, part.hidden)[:, part.start : part.stop]
        target[index].copy_(mine if index < 2 else mine.transpose(1, 2))


def _interleaved(part: _Part, target: Target) -> None:
    """Gate and up by turns, as they are or in MXFP4."""
    first, _, last = _names(part)
    spec, hidden = part.spec, part.hidden
    gate_up = _transposed(part, first, 2 * spec.inner, hidden)
    target[0].copy_(gate_up[:, 0::2][:, part.start : part.stop])
    target[1].copy_(gate_up[:, 1::2][:, part.start : part.stop])
    target[2].copy_(_transposed(part, last, hidden, spec.inner)[:, :, part.start : part.stop])


def _transposed(part: _Part, name: str, outputs: int, inputs: int) -> Tensor:
    """[experts, outputs, inputs] of what is stored the other way round, or in blocks."""
    source, experts, name = part.checkpoint.source, part.spec.experts, part.name(name)
    # A source of random numbers has everything: what needs no conversion comes first.
    if source.has(name) or not source.has(f"{name}_blocks"):
        return source.read(name, (experts, inputs, outputs)).transpose(1, 2)
    groups = inputs // BLOCK
    blocks = source.read(f"{name}_blocks", (experts, outputs, groups, BLOCK // 2), dtype=torch.uint8)
    scales = source.read(f"{name}_scales", (experts, outputs, groups), dtype=torch.uint8)
    whole = source.empty((experts, outputs, inputs))
    for expert in range(experts):
        # One after the other: numbers on their way take eight times the room of what is stored.
        whole[expert] = dequantise(blocks[expert], scales[expert], whole.dtype)
    return whole


def _biases(part: _Part) -> tuple[Tensor | None, Tensor | None]:
    """Of the first product and of the second."""
    if not part.spec.bias:
        return None, None
    source, spec = part.checkpoint.source, part.spec
    first, _, last = _names(part)
    stored = source.read(f"{part.name(first)}_bias", (spec.experts, 2 * spec.inner))
    halves = [stored[:, half::2][:, part.start : part.stop] for half in (0, 1)]
    down_bias = source.read(f"{part.name(last)}_bias", (spec.experts, part.hidden))
    return torch.cat(halves, dim=1), down_bias if part.checkpoint.is_first else None


_READERS: dict[ExpertLayout, Callable[[_Part, Target], None]] = {
    "each": _each,
    "stacked": _stacked,
    "rows": _rows,
    "interleaved": _interleaved,
}
