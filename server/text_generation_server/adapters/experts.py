"""Pairs of experts, from PEFT's flattened layout to a change of each expert.

PEFT's factors of a parameter `[experts, ...]` are `A [experts * r, inputs]`, expert by expert, and
`B [outputs, r * experts]`, in which the expert is the fastest index.
"""

from dataclasses import dataclass

from torch import Tensor

from ..config.names import ExpertLayout
from ..config.spec import MoeSpec
from ..errors import AdapterError
from .base import BaseModel, ModelTensors
from .config import AdapterConfig
from .delta import Change, Delta, ExpertDeltas
from .keys import Site


@dataclass(frozen=True)
class _Factors:
    a: Tensor
    """[experts, r, inputs]"""
    b: Tensor
    """[experts, outputs, r]"""
    scale: float

    def delta(self, expert: int, rows: slice = slice(None), transposed: bool = False) -> Delta:
        return Delta(self.a[expert], self.b[expert, rows], self.scale, transposed=transposed)


def expert_changes(
    base: BaseModel, config: AdapterConfig, site: Site, module: str, a: Tensor, b: Tensor
) -> dict[str, Change]:
    """Returns the changes of the tensors of experts whose module is `module` in the checkpoint. Raises AdapterError."""
    decoder = base.decoder
    found = None if decoder is None else decoder.experts_of(module)
    if decoder is None or found is None:
        raise AdapterError(
            f"{config.path}: `{site.module}` has no weight of its own, and its layer no experts of ours: the adapter "
            "is of another model"
        )
    layer, moe = found
    factors, is_down = _factors(decoder, config, site, moe, a, b)
    if decoder.names.experts_layout == "each":
        return _each(decoder, layer, moe, factors, is_down)
    return _stacked(base, decoder, layer, factors, is_down)


def stacked_changes(
    base: BaseModel, config: AdapterConfig, site: Site, module: str, a: Tensor, b: Tensor
) -> ExpertDeltas | None:
    """Returns the change of the weight of `module`, where that has one of the matrices of all experts of a layer, as in
    files of Step 3.5; None: it is another module. Raises AdapterError.
    """
    decoder = base.decoder
    if decoder is None or not decoder.names.experts_apart:
        return None
    shape = base.shape(f"{module}.weight")
    if shape is None or len(shape) != 3:
        return None
    experts, outputs, inputs = shape
    rank, rest = divmod(a.shape[0], experts)
    if rest or not rank or (*a.shape, *b.shape) != (rank * experts, inputs, outputs, rank * experts):
        raise AdapterError(
            f"{config.path}: `{site.module}` has factors {list(a.shape)} and {list(b.shape)}, which do not fit "
            f"{experts} experts of [{outputs}, {inputs}]: the adapter is of another model"
        )
    scale = config.scale(config.parameter_of(site.module), rank)
    by_expert = b.reshape(outputs, rank, experts).permute(2, 0, 1)
    factors = _Factors(a.reshape(experts, rank, -1), by_expert, scale)
    return ExpertDeltas(tuple(factors.delta(expert) for expert in range(experts)))


def _factors(
    decoder: ModelTensors, config: AdapterConfig, site: Site, moe: MoeSpec, a: Tensor, b: Tensor
) -> tuple[_Factors, bool]:
    """Returns the factors of each expert, and whether they change the second matrix."""
    hidden, inner = moe.latent or decoder.spec.hidden_size, moe.inner
    first = 2 * inner if moe.gated else inner
    wanted = {(hidden, first): False, (inner, hidden): True}
    sizes = a.shape[1], b.shape[0]
    # Classes that store [inputs, outputs] without saying so have both sizes exchanged.
    is_exchanged = sizes not in wanted and sizes[::-1] in wanted and decoder.names.experts_layout == "transposed"
    known = wanted.get((sizes[1], sizes[0]) if is_exchanged else sizes)
    experts, rest = moe.experts, a.shape[0] % moe.experts
    if known is None or rest or a.shape[0] != b.shape[1]:
        raise AdapterError(
            f"{config.path}: `{site.module}` has factors {list(a.shape)} and {list(b.shape)}, which fit none of "
            f"{experts} experts from {hidden} to {inner} elements and back: the adapter is of another model"
        )
    rank = a.shape[0] // experts
    scale = config.scale(f"{site.module}.{'down_proj' if known else 'gate_up_proj'}", rank)
    by_expert = b.reshape(b.shape[0], rank, experts).permute(2, 0, 1)
    return _Factors(a.reshape(experts, rank, -1), by_expert, scale), known


def _each(decoder: ModelTensors, layer: int, moe: MoeSpec, factors: _Factors, is_down: bool) -> dict[str, Change]:
    """Changes of matrices that each expert has for itself. PEFT's first matrix has gate rows, then up rows."""
    names = decoder.names
    if is_down:
        parts = [(names.expert_down, slice(None))]
    elif not moe.gated or names.expert_gate == names.expert_up:
        parts = [(names.expert_up, slice(None))]
    else:
        parts = [(names.expert_gate, slice(0, moe.inner)), (names.expert_up, slice(moe.inner, None))]
    return {
        f"{decoder.inside(layer, template).replace('{expert}', str(expert))}.weight": factors.delta(expert, rows)
        for expert in range(moe.experts)
        for template, rows in parts
    }


_TRANSPOSED: dict[ExpertLayout, bool] = {"stacked": False, "interleaved": True}


def _stacked(base: BaseModel, decoder: ModelTensors, layer: int, factors: _Factors, is_down: bool) -> dict[str, Change]:
    """Changes of a tensor of all experts, which has the layout of the class that was trained."""
    names = decoder.names
    name = decoder.inside(layer, names.expert_down if is_down else names.expert_gate)
    name = name if base.source.has(name) or not base.source.has(f"{name}.weight") else f"{name}.weight"
    shape, (experts, outputs, _) = base.shape(name), factors.b.shape
    inputs = factors.a.shape[2]
    transposed = _TRANSPOSED.get(names.experts_layout, shape == (experts, inputs, outputs) and inputs != outputs)
    if shape is not None and shape != (experts, *((inputs, outputs) if transposed else (outputs, inputs))):
        raise AdapterError(
            f"`{name}` has the shape {list(shape)}, in a layout of experts for which adapters of this form are not read"
        )
    return {name: ExpertDeltas(tuple(factors.delta(expert, transposed=transposed) for expert in range(experts)))}
