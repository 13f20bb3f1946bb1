"""Weights of a mixture of experts: a rank's shard of the experts (`experts/shard.py`), and the router whole.

A shared expert, which every token passes, becomes further routed experts of the same inner size, the last one padded
with zeros: so one operator computes all of them. In four cases it stays a dense network, of which each rank has a
shard: where the routed experts are quantised and it is stored otherwise, where they read a latent state, where some
change nothing, and with expert parallelism, where it would keep one rank busy while the others wait.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from text_generation_kernels import ExpertMatrix

from ...config.spec import DenseSpec, MoeSpec
from ...errors import ModelFilesError
from ...weights import DummySource
from .adapted_experts import ExpertSite
from .blocks import RowBlock
from .checkpoint import Checkpoint
from .experts import ExpertShard, load_experts
from .feed_forward import DenseWeights, load_dense
from .linear import Dense, Linear
from .loading import column_parallel
from .sites import Site


@dataclass(frozen=True)
class MoeWeights:
    """The weights of one layer: the routed experts, then the shared ones; `inner` is that of this rank's shard."""

    experts: range
    """The numbers of this rank's routed experts."""
    router: Linear
    """Makes the logits of the routed experts, then of the shared experts' gate where they have one; float32 where the
    spec says so."""
    correction: Tensor | None
    """[experts] float32"""
    gate_up: ExpertMatrix
    """From hidden to 2 * inner, gate rows first; without a gate to inner."""
    down: ExpertMatrix
    """From inner to hidden. One rank alone has its bias, because outputs are all-reduced."""
    shared: DenseWeights | None
    """This rank's shard of the shared expert, where it is not among the experts."""
    latent_in: Linear | None = None
    """From hidden to the state of the experts, whole on every rank, where that is another one."""
    latent_out: Linear | None = None
    """Back, likewise: it multiplies partial sums, which are all-reduced after it."""
    stored: ExpertSite | None = None
    """Where the experts come from; None: they are not made of stored matrices."""
    by_token: Tensor | None = None
    """[ids, top_k] int32, the experts of each token id, where logits do not choose them."""
    adds_input: bool = False
    """Whether this rank adds what experts that change nothing put out, because outputs are all-reduced."""


def load_moe(checkpoint: Checkpoint, layer: int, spec: MoeSpec) -> MoeWeights:
    """Reads this rank's shard. Raises ModelFilesError, or ConfigurationError where there is none for each rank."""
    shard = ExpertShard.of(checkpoint, layer, spec)
    gate_up, down, has_shared = load_experts(shard)
    gate_up_bias, down_bias = _biases(shard)
    gate_up, down = replace(gate_up, bias=gate_up_bias), replace(down, bias=down_bias)
    shared = None if has_shared or spec.shared is None else _shared(checkpoint, layer, spec.shared)
    latent = _latent(checkpoint, layer, spec.latent) if spec.latent else (None, None)
    stored = ExpertSite(shard if has_shared else replace(shard, spec=replace(shard.spec, shared_inner=0)))
    of_router = _router(shard), _correction(shard)
    adds = bool(spec.identity) and checkpoint.is_first
    table = _by_token(shard) if spec.route.by_token else None
    return MoeWeights(shard.experts, *of_router, gate_up, down, shared, *latent, stored, table, adds)


def _latent(checkpoint: Checkpoint, layer: int, width: int) -> tuple[Linear, Linear]:
    names, hidden = checkpoint.names, checkpoint.spec.hidden_size
    first = RowBlock(checkpoint.inside(layer, names.latent_in), width, ((0, width),))
    last = RowBlock(checkpoint.inside(layer, names.latent_out), hidden, ((0, hidden),))
    return column_parallel(checkpoint, [first], hidden, False), column_parallel(checkpoint, [last], width, False)


def _shared(checkpoint: Checkpoint, layer: int, spec: DenseSpec) -> DenseWeights:
    names = checkpoint.names
    matrices = {"gate": names.shared_gate, "up": names.shared_up, "down": names.shared_down}
    dense = replace(names, **matrices, gate_up=names.shared_gate_up)
    return load_dense(replace(checkpoint, names=dense), layer, spec)


def _router(shard: ExpertShard) -> Linear:
    source, names, spec = shard.checkpoint.source, shard.checkpoint.names, shard.spec
    hidden = shard.checkpoint.spec.hidden_size
    dtype = torch.float32 if spec.route.wide else None
    choices = spec.experts + spec.identity
    weight = source.read(f"{shard.name(names.router)}.weight", (choices, hidden), dtype=dtype)
    blocks = [RowBlock(shard.name(names.router), choices, ((0, choices),))]
    if spec.shared_gate:
        blocks.append(RowBlock(shard.name(names.shared_weight), 1, ((0, 1),)))
        gate = source.read(f"{shard.name(names.shared_weight)}.weight", (1, hidden), dtype=dtype)
        weight = torch.cat((weight, gate))
    bias = source.read(f"{shard.name(names.router)}.bias", (choices,), dtype=dtype) if spec.route.bias else None
    return Dense(weight, bias, site=Site(tuple(blocks), hidden))


def _correction(shard: ExpertShard) -> Tensor | None:
    if not shard.spec.route.correction:
        return None
    names = shard.checkpoint.names
    rows = (1,) if names.correction_is_row else ()
    shape = (*rows, shard.spec.experts + shard.spec.identity)
    # In a narrower type, top-k could not tell experts whose numbers differ little.
    return shard.checkpoint.source.read(shard.name(names.router_correction), shape, dtype=torch.float32).flatten()


def _by_token(shard: ExpertShard) -> Tensor:
    """Reads which experts compute each token id; with random weights they are successive ones."""
    source, spec, name = shard.checkpoint.source, shard.spec, shard.name(shard.checkpoint.names.router_table)
    shape = shard.checkpoint.spec.vocab_size, spec.route.top_k
    if isinstance(source, DummySource):
        device = source.empty((0,)).device
        return (torch.arange(shape[0] * shape[1], device=device) % spec.experts).view(shape).to(torch.int32)
    table = source.raw(name, shape=shape, dtypes=(torch.int64, torch.int32))
    if bool(((table < 0) | (table >= spec.experts)).any()):
        raise ModelFilesError(f"tensor `{name}` names experts other than the {spec.experts} that there are")
    return table.to(torch.int32)


def _biases(shard: ExpertShard) -> tuple[Tensor | None, Tensor | None]:
    """Reads the biases of the first and of the second GEMM."""
    if not shard.spec.bias:
        return None, None
    source, spec = shard.checkpoint.source, shard.spec
    first, last = shard.checkpoint.names.expert_gate, shard.checkpoint.names.expert_down
    stored = source.read(f"{shard.name(first)}_bias", (spec.experts, 2 * spec.inner), shard.cut())
    halves = [stored[:, half::2][:, shard.start : shard.stop] for half in (0, 1)]
    down_bias = source.read(f"{shard.name(last)}_bias", (spec.experts, shard.hidden), shard.cut())
    adds_it = shard.checkpoint.is_first or shard.checkpoint.group.expert_parallel
    return torch.cat(halves, dim=1), down_bias if adds_it else None
